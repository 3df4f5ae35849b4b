-- SPDX-License-Identifier: Apache-2.0
--- What a request asks an HTTP server of Perigee's for: the path and the query
-- of its target, and the route of a path by the request's method. A route is a
-- table with `run(call, server)`, `role` (of control/tokens), and `gives`, the
-- media type of its answer, JSON by default; false: whoever asks takes it. What
-- refuses is an answer: a status, a body and headers (control/problem).
local calls = require "perigee.control.call"
local errors = require "perigee.runtime.errors"
local log = require "perigee.runtime.log"
local problem = require "perigee.control.problem"

local M = {}

local NONE = {}
local SLASH = 47
local JSON = "application/json"

local function no_path(path)
  return problem(404, "not_found", ("there is no path %s here"):format(path))
end

local function allowed(methods)
  local list = { "OPTIONS" }
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

-- The answer to OPTIONS: the methods of a path, or of the server at all.
local function options(methods)
  return 204, "", { "Allow", methods and allowed(methods)
    or "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT" }
end

local function not_taken(kind)
  return problem(406, "unsupported", "what is here is " .. kind)
end

--- The path and the query of a target, which may be a whole URL.
function M.parts(target)
  if target:byte() ~= SLASH then
    target = target:match "^%a[%w+.-]*://[^/?]*(.*)$" or target
    if target:byte() ~= SLASH then target = "/" .. target end
  end
  local mark = target:find("?", 1, true)
  if not mark then return calls.path(target) end
  return calls.path(target:sub(1, mark - 1)), target:sub(mark + 1)
end

-- Sets a call's query. Nil if it can be answered; or an answer.
local function ask(call, query, gives)
  local status, body, headers
  call.query = NONE
  if query then call.query, status, body, headers = calls.query(query) end
  if not call.query then return status, body, headers end
  if gives and not calls.takes(call, gives) then return not_taken(gives) end
end

--- Chooses the route of a path by its methods (nil: there is no such path), and
-- sets the call's `route`, `method` and `query`. Nil; or an answer.
function M.choose(call, path, methods, query)
  local method = call.request.method
  if call.request.target == "*" and method == "OPTIONS" then
    return options()
  end
  if not methods then return no_path(path) end
  local route = route_of(methods, method)
  if not route and method == "OPTIONS" then return options(methods) end
  if not route then return no_method(methods) end
  call.route, call.method = route, method
  local gives = route == methods.GET and route.gives
  if gives == nil then gives = JSON end
  return ask(call, query, gives)
end

-- ---- Running ---------------------------------------------------------------

--- The answer of a server that has failed itself.
function M.failure()
  return problem(500, "remote", "this server has failed; its log tells how")
end

local function raised(failure)
  return debug.traceback(errors.shown(failure), 2)
end

local function noted(call, fine, status, body, headers)
  call.failed = not fine
  if fine then
    call.status, call.body, call.headers = status or false, body, headers
    return
  end
  log.write("error", "answering a request failed: " .. tostring(status))
  call.status, call.body, call.headers = M.failure()
end

--- Has f(call, server) answer a call that is not answered yet: sets its status,
-- body and headers if it does, and whether it has `failed`.
function M.step(call, f, server)
  if call.status then return end
  noted(call, xpcall(f, raised, call, server))
end

return M
