-- SPDX-License-Identifier: Apache-2.0
-- A control server for one spec, and an HTTP client that asks it about scope
-- "s". State: `server`, `client`.
local assert = require "luassert"
local cases = require "spec.support.cases"
local control = require "spec.support.control"

local M = { server = nil, client = nil }

local LONG = 60 * cases.slow

--- Asks a server from now on: a table with its `url`.
function M.use(server)
  M.server, M.client = server, require "perigee.net.http".new()
end

--- Starts a server (control.start), and asks it from now on. Returns it.
function M.begin(...)
  cases.engine()
  M.use(control.start(...))
  return M.server
end

--- For after_each.
function M.finish()
  if M.client then M.client:close() end
  M.client = nil
  cases.cleanup()
end

--- For `headers`: asks as a stranger, who has no token.
M.STRANGER = {}

--- Headers, a list of lines, with the token of a server's user, who this
-- process is, unless one of them is about tokens.
function M.headers(url, headers)
  local list = { unpack(headers or {}) }
  if headers == M.STRANGER or table.concat(list):find "Authorization:" then
    return list
  end
  local token = require "perigee.registry.http.own".find(url)
  if token then list[#list + 1] = "Authorization: Bearer " .. token end
  return list
end

--- A request for the client. A path without "/" is one of the scope's; a body
-- that is a table is encoded. headers: as of M.headers.
function M.request(method, path, body, headers)
  if type(body) == "table" then body = require "cjson".encode(body) end
  local list = M.headers(M.server.url, headers)
  if body then list[#list + 1] = "Content-Type: application/json" end
  if path:sub(1, 1) ~= "/" then path = "/v1/scopes/s/" .. path end
  return { method = method, url = M.server.url .. path, body = body,
           headers = list, timeout = LONG, limit = 2 ^ 24 }
end

--- Status, decoded body and headers of the answer to such a request.
function M.ask(...)
  local answer = assert(M.client:ask(M.request(...)))
  return answer.status, require "cjson.safe".decode(answer.body),
         answer.headers
end

--- Expects a problem of this status and kind in the answer to such a request;
-- returns its body.
function M.refused(status, kind, ...)
  local got, body, headers = M.ask(...)
  assert.equal(status, got, body and body.detail)
  assert.equal("application/problem+json", headers["content-type"])
  assert.equal(status, body.status)
  assert.equal(kind, body.kind, body.detail)
  return body
end

--- An agent's entry with this epoch, and more fields.
function M.entry(epoch, more)
  local all = { addresses = { "tcp://a:1" }, epoch = epoch or "1",
                host = "h", pid = 7 }
  for name, value in pairs(more or {}) do all[name] = value end
  return all
end

return M
