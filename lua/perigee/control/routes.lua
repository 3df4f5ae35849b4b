-- SPDX-License-Identifier: Apache-2.0
--- Finds the handler of a request, and checks that the request may call it.
local about = require "perigee.control.about"
local asked = require "perigee.control.asked"
local calls = require "perigee.control.call"
local lines = require "perigee.control.lines"
local loop = require "perigee.runtime.loop"
local parts = require "perigee.control.parts"
local problem = require "perigee.control.problem"

local M = {}

local step = asked.step

-- The collections below /v1/scopes/{scope}/. Each has the routes of all
-- records, of one, of its lease, and of what it counts, each by method.
local RESOURCES = {
  agents = require "perigee.control.agents".routes,
  entities = require "perigee.control.entities".routes,
  regions = parts.regions,
  services = parts.services,
  topology = require "perigee.control.topology".routes,
  watch = require "perigee.control.watch".routes,
}

local SCOPES = "/v1/scopes/"
local SLASH = 47
local ALL = "*"                         -- the scope of a token that is for all
local LARGEST = 2 ^ 20                  -- bytes of room that are waited for

local function methods_of(resource, name, last)
  if name == "" and last == "" then return resource.all end
  if last == "" then return resource.one end
  return last == "renew" and resource.renew
    or last == "stats" and resource.stats
end

-- The segment of a path that begins at a place, and where the next one does;
-- "" and nil after the last one.
local function segment(path, at)
  if not at then return "" end
  local slash = path:find("/", at, true)
  if not slash then return path:sub(at) end
  return path:sub(at, slash - 1), slash + 1
end

-- The scope, kind and name in a path, and what follows the name; nil of a path
-- that is of no scope. Nothing is encoded in it that need not be.
local function segments(path)
  if path:sub(1, #SCOPES) ~= SCOPES then return nil end
  local scope, kind, name, last, at
  scope, at = segment(path, #SCOPES + 1)
  kind, at = segment(path, at)
  name, at = segment(path, at)
  last, at = segment(path, at)
  if not at then return scope, kind, name, last end
end

-- The methods of a path, and the scope, kind and name that are in it.
local function methods_at(path)
  if path:byte(-1) == SLASH or path:find("//", 1, true) then return nil end
  local scope, kind, name, last = segments(path)
  local resource = kind and RESOURCES[kind]
  local methods = resource and methods_of(resource, name, last)
  return methods or about.paths[path], methods and scope, kind, name
end

-- Sets the scope and the name of a call. Nil if they are names; or an answer.
local function place(call, scope, kind, name)
  call.scope, call.kind = calls.segment(scope), kind
  call.name = name ~= "" and calls.segment(name) or nil
  local fine, status, body, headers = calls.name(call.scope, "scope")
  if fine and call.name then
    fine, status, body, headers = calls.name(call.name, "name")
  end
  if not fine then return status, body, headers end
end

-- Finds the route. Nil; or an answer.
local function find(call, server)
  local path, query = asked.parts(call.request.target)
  local methods, scope, kind, name = methods_at(path)
  if not methods and server.page then methods = server.page.paths[path] end
  call.state = server.state
  local status, body, headers = asked.choose(call, path, methods, query)
  if status or not scope then return status, body, headers end
  return place(call, scope, kind, name)
end

-- Nil if the call may be run; or an answer. What is of no scope tells of all,
-- and so takes a token for all.
local function admit(call, server)
  local status, body, headers
  local role = call.route.role
  if not role then return nil end
  call.role, status, body, headers = server.tokens:admits(
    call.request, call.scope or ALL, role, loop.now() * 1e-9)
  if not call.role then return status, body, headers end
  call.token = status
  call.trusted = call.token ~= false or call.role == "admin"
end

local function run(call, server) return call.route.run(call, server) end

M.failure = asked.failure

--- The call of a request: its status is false if it is for a handler, with a
-- `scope` unless it asks of the server itself. Else it is answered.
function M.found(server, request)
  -- All that a call gets is here, so that the table has its size at once.
  local call = { request = request, stream = false, status = false, body = nil,
                 headers = nil, route = nil, method = nil, state = nil,
                 query = nil, scope = nil, kind = nil, name = nil, role = nil,
                 token = nil, trusted = nil, wrote = nil, failed = false }
  step(call, find, server)
  return call
end

--- Answers a call that may not be run.
function M.admit(server, call)
  step(call, admit, server)
  return call
end

--- The call of a request, which is answered as well if it may not be run.
function M.admitted(server, request)
  return M.admit(server, M.found(server, request))
end

--- Runs a call that is not answered yet: it has the answer in its fields
-- status, body and headers, or in `stream` a function that begins one.
function M.run(server, call)
  step(call, run, server)
  return call
end

--- Sends a call's answer, or begins its stream.
function M.send(server, call)
  server.counts:answered(call)
  if call.stream then return call.stream() end
  return call.request:answer(call.status, call.body, call.headers)
end

-- ---- Turns -----------------------------------------------------------------

-- Its connection is closed, as its place may be wanted, too.
local function refuse(server, call, why)
  call.status, call.body, call.headers = problem(503, "no_memory", why, nil,
                                                 { "Connection", "close" })
  call.stream = false
  M.send(server, call)
end

--- Lines up a call of M.admitted or M.found (control/lines).
function M.line_up(server, call)
  if server.lines:add(call) then return end
  refuse(server, call, "so many ask for lists that this one will have no turn")
end

-- The room that an answer waits for: a larger one would wait for as long as a
-- few clients read nothing.
local function needs_of(call) return math.min(#call.body, LARGEST) end

-- It is run again when there is room.
local function park(server, call)
  local needs = needs_of(call)
  call.status, call.body, call.headers = false, nil, nil
  if server.lines:park(call, needs) then return end
  refuse(server, call, "so many do not take their answers that there is no "
    .. "room for this one")
end

--- Sends a call's answer, unless it has only read and there is no room.
function M.answer(server, call)
  if not call.stream and call.body and lines.is_reading(call)
    and needs_of(call) > server.web:room() then
    return park(server, call)
  end
  return M.send(server, call)
end

return M
