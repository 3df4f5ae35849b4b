-- SPDX-License-Identifier: Apache-2.0
--- Asks one of several control servers, the same as long as it answers, else
-- the next one.
local asks = require "perigee.registry.ask"
local http = require "perigee.control.http"
local json = require "perigee.control.json"
local own = require "perigee.registry.control.own"

local M = {}

local LIMIT = 8 * 2 ^ 20                -- bytes of an answer
local UNREAD = 2 ^ 18                   -- bytes of a stream that are kept

-- Failures after which another server may do better. All that is asked may be
-- asked twice.
local ELSEWHERE = { not_found = true, peer_lost = true, timeout = true,
                    denied = false, closed = false }

local Client = {}
Client.__index = Client

--- A client of target's servers (control/address).
function M.new(target, patience)
  return setmetatable({ target = target, patience = patience, at = 1,
                        http = false, doors = {} }, Client)
end

-- How to ask the present server: { token (false: none), url }. Without a token
-- in the address it is the server's own, if this user runs it.
local function door_of(client)
  local url, token = client.target.servers[client.at], client.target.token
  local door = client.doors[url]
  if door then return door end
  door = { token = token or false, url = url }
  if not token then
    token, door.url = own.find(url)
    door.token = token or false
  end
  client.doors[url] = door
  return door
end

-- A server that was started anew has another token. Is there one that was not
-- tried?
local function find_another(client, door)
  client.doors[client.target.servers[client.at]] = nil
  local found = door_of(client).token
  return found and found ~= door.token
end

local function headers_of(door, more)
  local list = { unpack(more or {}) }
  if door.token then
    list[#list + 1] = "Authorization: Bearer " .. door.token
  end
  return list
end

local function request_of(client, door, method, path, body, more)
  local list = headers_of(door, more)
  if body then list[#list + 1] = "Content-Type: application/json" end
  return { method = method, url = door.url .. path, body = body,
           headers = list, timeout = client.patience, limit = LIMIT,
           tls = client.target.tls }
end

-- Calls f(http, request) for the present server.
local function try(client, f, ...)
  local door = door_of(client)
  local answer, kind, why = f(client.http, request_of(client, door, ...))
  if answer and answer.status == 401 and find_another(client, door) then
    if answer.close then answer:close() end
    return f(client.http, request_of(client, door_of(client), ...))
  end
  if not answer then client.doors = {} end
  return answer, kind, why
end

-- Asks no more of a server, unless others have left it already.
local function leave(client, at)
  if client.at == at then client.at = at % #client.target.servers + 1 end
end

-- Calls f(http, request) for one server after the other until one answers.
local function try_all(client, f, ...)
  local kind, why
  if not client.http then
    client.http, kind, why = http.new()
    if not client.http then
      client.http = false
      return nil, kind, why
    end
  end
  local answer
  for _ = 1, #client.target.servers do
    local at = client.at
    if answer and answer.close then answer:close() end
    answer, kind, why = try(client, f, ...)
    if answer and answer.status ~= 503 or kind and not ELSEWHERE[kind] then
      break
    end
    leave(client, at)
  end
  if answer then return answer end
  return nil, asks.unreached(kind), ("%s: %s"):format(client.target.text, why)
end

local KINDS = { [401] = "denied", [403] = "denied", [404] = "not_found",
                [409] = "name_taken", [413] = "too_large",
                [429] = "no_memory", [500] = "remote", [503] = "peer_lost",
                [507] = "no_memory" }

-- What an answer that is no success says: a kind, a text, the whole.
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

local function stream(web, request)
  request.limit = UNREAD
  return web:stream(request)
end

--- Opens a stream of events, from the one with this id on (nil: all). Returns
-- it; or nil, a kind, why and, if it was refused, what the problem says.
function Client:events(path, id)
  local more = { "Accept: text/event-stream" }
  if id then more[2] = "Last-Event-ID: " .. id end
  local opened, kind, why = try_all(self, stream, "GET", path, nil, more)
  if not opened then return nil, kind, why end
  if opened.status == 200 then return opened end
  local answer = { status = opened.status, body = opened:read(self.patience)
                   or "" }
  opened:close()
  return nil, problem(self, answer)
end

--- Encodes a body; nil and why if that fails.
function M.encode(value) return json.encode(value) end

--- A text as a part of a path or a query.
function M.escape(text)
  return (text:gsub("[^%w_.~-]", function(c)
    return ("%%%02X"):format(c:byte())
  end))
end

return M
