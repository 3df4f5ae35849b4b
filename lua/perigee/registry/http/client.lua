-- SPDX-License-Identifier: Apache-2.0
--- Asks one of several control servers, the same as long as it answers, else
-- the next one (registry/servers).
local asks = require "perigee.registry.ask"
local http = require "perigee.net.http"
local json = require "perigee.net.json"
local own = require "perigee.registry.http.own"
local servers = require "perigee.registry.servers"
local percent = require "perigee.runtime.percent"

local M = {}

local LIMIT = 8 * 2 ^ 20                -- bytes of an answer
local UNREAD = 2 ^ 18                   -- bytes of a stream that are kept

-- Failures after which another server may do better. All that is asked may be
-- asked twice.
local ELSEWHERE = { not_found = true, peer_lost = true, timeout = true,
                    denied = false, closed = false }

local Client = {}
Client.__index = Client

-- A server that is not ready says so.
local function judge(answer, kind)
  if answer and answer.status ~= 503 or kind and not ELSEWHERE[kind] then
    return "final"
  end
  return "passing"
end

-- Only streams have that function; all else comes from a server.
local function drop(answer)
  if type(answer.close) == "function" then answer:close() end
end

--- A client of target's servers (control/address).
function M.new(target, patience)
  local client = setmetatable({ target = target, patience = patience,
                                http = false, doors = {} }, Client)
  client.servers = servers.new(target.servers, patience, {
    judge = judge, drop = drop, repeats = false,
    probe = function(url, seconds) return client:probe(url, seconds) end })
  return client
end

-- The way to ask a server: { token (false: none), url }. Without a token in the
-- address it is the server's own, if this user runs it.
local function door_of(client, url)
  local server, token = url, client.target.token
  local door = client.doors[url]
  if door then return door end
  door = { token = token or false, url = url }
  if not token then
    token, door.url = own.find(url)
    door.token = token or false
  end
  client.doors[server] = door
  return door
end

-- A server that was started anew has another token. Is there one that was not
-- tried?
local function find_another(client, url, door)
  client.doors[url] = nil
  local found = door_of(client, url).token
  return found and found ~= door.token
end

local function headers_of(door, more)
  local list = { unpack(more or {}) }
  if door.token then
    list[#list + 1] = "Authorization: Bearer " .. door.token
  end
  return list
end

local function request_of(client, door, seconds, method, path, body, more)
  local list = headers_of(door, more)
  if body then list[#list + 1] = "Content-Type: application/json" end
  return { method = method, url = door.url .. path, body = body,
           headers = list, timeout = seconds, limit = LIMIT,
           tls = client.target.tls }
end

-- Calls f(http, request, url) for a server.
local function try(client, url, f, ...)
  local door = door_of(client, url)
  local answer, kind, why = f(client.http, request_of(client, door, ...), url)
  if answer and answer.status == 401 and find_another(client, url, door) then
    drop(answer)
    return f(client.http, request_of(client, door_of(client, url), ...), url)
  end
  if not answer then client.doors[url] = nil end
  return answer, kind, why
end

local function has_http(client)
  if client.http then return true end
  local made, kind, why = http.new()
  client.http = made or false
  return made ~= nil, kind, why
end

-- Calls f(http, request, url) for one server after the other until one answers.
local function try_all(client, f, method, path, body, more)
  local fine, kind, why = has_http(client)
  if not fine then return nil, kind, why end
  local answer
  answer, kind, why = client.servers:ask(client.patience,
    function(url, seconds)
      return try(client, url, f, seconds, method, path, body, more)
    end)
  if answer then return answer end
  return nil, asks.unreached(kind), ("%s: %s"):format(client.target.text, why)
end

--- Asks whether a server is there, in a task. For registry/servers.
function Client:probe(url, seconds)
  return try(self, url, function(web, request) return web:ask(request) end,
             seconds, "GET", "/healthz")
end

local KINDS = { [401] = "denied", [403] = "denied", [404] = "not_found",
                [409] = "name_taken", [413] = "too_large",
                [429] = "no_memory", [500] = "remote", [503] = "peer_lost",
                [507] = "no_memory" }

-- The contents of an answer that is no success: a kind, a text, the whole.
local function problem(client, answer)
  local value = json.decode_long(answer.body)
  if type(value) ~= "table" then value = {} end
  local why = type(value.detail) == "string" and value.detail
    or "it answers with " .. answer.status
  return KINDS[answer.status] or "protocol",
         ("%s: %s"):format(client.target.text, why), value
end

local function ask(web, request) return web:ask(request) end

--- Asks, in a task. Returns the answer's value (true if there is no body), its
-- headers and its length; or nil, a kind, why and what a problem says. Only a
-- record that is missing, and nothing else, is `not_found`.
function Client:ask(method, path, body)
  local answer, kind, why = try_all(self, ask, method, path, body)
  if not answer then return nil, kind, why end
  if answer.status == 204 then return true, answer.headers end
  if answer.status < 200 or answer.status > 299 then
    return nil, problem(self, answer)
  end
  local value, failed, wrong = json.decode_long(answer.body)
  if type(value) == "table" then
    return value, answer.headers, #answer.body
  elseif failed == "too_large" then
    return nil, failed, ("%s: of what it answers %s"):format(self.target.text,
                                                             wrong)
  end
  return nil, "protocol", self.target.text .. ": what it answers is no JSON"
end

-- A stream, with the server's URL.
local function stream(web, request, url)
  request.limit = UNREAD
  local opened, kind, why = web:stream(request)
  if opened then opened.server = url end
  return opened, kind, why
end

--- Opens a stream of events, from the one with this id on (nil: all). Returns
-- it; or nil, a kind, why and, if it was refused, what the problem says. It is
-- ended by close(), or when its server hangs and there is another one.
function Client:events(path, id)
  local more = { "Accept: text/event-stream" }
  if id then more[2] = "Last-Event-ID: " .. id end
  local opened, kind, why = try_all(self, stream, "GET", path, nil, more)
  if not opened then return nil, kind, why end
  if opened.status == 200 then
    self.servers:keep(opened, opened.server)
    return opened
  end
  local answer = { status = opened.status, body = opened:read(self.patience)
                   or "" }
  opened:close()
  return nil, problem(self, answer)
end

--- Ends a stream of events.
function Client:close(opened) self.servers:close(opened) end

--- Encodes a body; nil and why if that fails.
function M.encode(value) return json.encode(value) end

--- A text as a part of a path or a query.
function M.escape(text)
  return percent.encode(text, percent.UNRESERVED)
end

return M
