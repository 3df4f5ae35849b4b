-- SPDX-License-Identifier: Apache-2.0
--- The keys of a scope in Redis, and the encoding of entries.
--
--   perigee:{SCOPE}:name:NAME   the entry as JSON, with a TTL
--   perigee:{SCOPE}:names       a sorted set of the names, all of score 0, so
--                               in the order of their bytes
--   perigee:{SCOPE}:changes     a stream: fields name and entry (empty: gone)
--
-- The braces keep a scope in one slot of a cluster. Characters other than
-- letters, digits, _ and - are written as %XX, so the keys of different names
-- and scopes never clash.
local entries = require "perigee.registry.entry"

local json = require "cjson.safe".new()
json.decode_max_depth(32)

local M = {}

local function escape(text)
  return (text:gsub("[^%w_-]", function(c)
    return ("%%%02X"):format(c:byte())
  end))
end

--- The beginning of all keys of a scope.
function M.scope(scope) return ("perigee:{%s}:"):format(escape(scope)) end

local function key(scope, rest) return M.scope(scope) .. rest end

function M.name(scope, name) return key(scope, "name:" .. escape(name)) end
function M.names(scope) return key(scope, "names") end
function M.changes(scope) return key(scope, "changes") end

--- Encodes an entry as text; nil and why if that fails. `since` is replaced by
-- the server's time at which it began. now: the server's time in milliseconds.
function M.encode(entry, now)
  local since = entry.since
  local copy = {}
  for field, value in pairs(entry) do copy[field] = value end
  copy.since, copy.began = nil, now - (since or 0) * 1000
  return json.encode(copy)
end
jit.off(M.encode)

--- Decodes a text as the entry of name in scope; nil if it is not that entry.
function M.decode(text, scope, name, now)
  local value = type(text) == "string" and json.decode(text)
  local entry = entries.trusted(value, scope, name)
  if not entry then return nil end
  local began = tonumber(entry.began)
  entry.began, entry.since = nil, nil
  if began then entry.since = math.max(0, (now - began) / 1000) end
  return entry
end

--- The time in milliseconds of a reply to the command TIME.
function M.time(reply)
  return tonumber(reply[1]) * 1000 + math.floor(tonumber(reply[2]) / 1000)
end

return M
