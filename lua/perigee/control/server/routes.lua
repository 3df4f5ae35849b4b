-- SPDX-License-Identifier: Apache-2.0
--- Which handler a request is for, and whether it may call it.
local about = require "perigee.control.server.about"
local calls = require "perigee.control.server.call"
local errors = require "perigee.errors"
local log = require "perigee.log"
local loop = require "perigee.loop"
local parts = require "perigee.control.server.parts"
local problem = require "perigee.control.server.problem"

local M = {}

-- What is below /v1/scopes/{scope}/: the routes of all, of one, and of its
-- lease, each by method.
local RESOURCES = {
  agents = require "perigee.control.server.agents".routes,
  entities = require "perigee.control.server.entities".routes,
  regions = parts.regions,
  services = parts.services,
  topology = require "perigee.control.server.topology".routes,
  watch = require "perigee.control.server.watch".routes,
}

-- Each segment ends at a slash or at the end (%f), so that a path that does not
-- match is not tried with all shorter segments.
local SCOPED = "^/v1/scopes/([^/]+)/([^/]+)%f[/%z]/?([^/]*)%f[/%z]/?([^/]*)$"
local NONE = {}

local function no_path(path)
  return problem(404, "not_found", ("there is no path %s here"):format(path))
end

local function allowed(methods)
  local list = {}
  for name in pairs(methods) do
    list[#list + 1] = name
    if name == "GET" then list[#list + 1] = "HEAD" end
  end
  table.sort(list)
  return table.concat(list, ", ")
end
jit.off(allowed)

local function no_method(methods)
  return problem(405, "no_method", "this path does not know this method", nil,
                 { "Allow", allowed(methods) })
end

local function route_of(methods, method)
  return methods[method] or method == "HEAD" and methods.GET
end

local function methods_of(resource, name, last)
  if name == "" and last == "" then return resource.all end
  if last == "" then return resource.one end
  return last == "renew" and resource.renew
end

local function named(call)
  local fine, status, body, headers = calls.name(call.scope, "scope")
  if fine and call.name then
    fine, status, body, headers = calls.name(call.name, "name")
  end
  if not fine then return status, body, headers end
end

-- Finds the route. Nil; or an answer.
local function find(call, server)
  local request = call.request
  local path, query = request.target, ""
  local mark = path:find("?", 1, true)
  if mark then path, query = path:sub(1, mark - 1), path:sub(mark + 1) end
  local scope, kind, name, last = path:match(SCOPED)
  local resource = kind and RESOURCES[kind]
  local methods = resource and methods_of(resource, name, last)
    or about.paths[path]
  if not methods then return no_path(path) end
  local route = route_of(methods, request.method)
  if not route then return no_method(methods) end
  call.route, call.query = route, mark and calls.query(query) or NONE
  call.method, call.state = request.method, server.state
  if not scope then return nil end
  call.scope, call.kind = calls.segment(scope), kind
  call.name = name ~= "" and calls.segment(name) or nil
  return named(call)
end

-- Nil if the call may be run; or an answer.
local function admit(call, server)
  if not call.scope then return nil end
  local status, body, headers
  call.role, status, body, headers = server.tokens:admits(
    call.request, call.scope, call.route.role, loop.now() * 1e-9)
  if not call.role then return status, body, headers end
  call.token = status
end

local function run(call, server) return call.route.run(call, server) end

--- The answer of a server that has failed itself.
function M.failure()
  return problem(500, "remote", "this server has failed; its log tells how")
end

local function raised(failure)
  return debug.traceback(errors.shown(failure), 2)
end

local function noted(call, fine, status, body, headers)
  if fine then
    call.status, call.body, call.headers = status or false, body, headers
    return
  end
  log.write("error", "answering a request failed: " .. tostring(status))
  call.status, call.body, call.headers = M.failure()
end

local function step(call, f, server)
  if call.status then return end
  noted(call, xpcall(f, raised, call, server))
end

--- The call of a request: its status is false if it may be run, with a `scope`
-- unless it asks of the server itself. Else it is answered.
function M.admitted(server, request)
  local call = { request = request, stream = false, status = false }
  step(call, find, server)
  step(call, admit, server)
  return call
end

--- Runs a call that is not answered yet: it has the answer in its fields
-- status, body and headers, or in `stream` a function that begins one.
function M.run(server, call)
  step(call, run, server)
  return call
end

--- Does both.
function M.handle(server, request)
  return M.run(server, M.admitted(server, request))
end

--- Sends a call's answer, or begins its stream.
function M.send(call)
  if call.stream then return call.stream() end
  return call.request:answer(call.status, call.body, call.headers)
end

return M
