-- SPDX-License-Identifier: Apache-2.0
--- The keys of a scope in Redis, and its entries as texts.
--
--   perigee:{SCOPE}:name:NAME   the entry as JSON, with a TTL
--   perigee:{SCOPE}:names       a sorted set of the names, all of score 0, so
--                               in the order of their bytes
--   perigee:{SCOPE}:changes     a stream: fields name and entry (empty: gone)
--
-- The braces keep a scope in one slot of a cluster. Characters other than
-- letters, digits, _ and - are written as %XX, so the keys of different names
-- and scopes never clash.
local percent = require "perigee.runtime.percent"
local text = require "perigee.registry.text"

local M = { encode = text.encode, decode = text.decode }

local function escape(given) return percent.encode(given, "%w_-") end

--- The beginning of all keys of a scope.
function M.scope(scope) return ("perigee:{%s}:"):format(escape(scope)) end

local function key(scope, rest) return M.scope(scope) .. rest end

function M.name(scope, name) return key(scope, "name:" .. escape(name)) end
function M.names(scope) return key(scope, "names") end

--- The name of whose entry a key is; nil if it is none of the scope's.
function M.name_of(found, scope)
  local start = key(scope, "name:")
  if type(found) ~= "string" or found:sub(1, #start) ~= start then return end
  return percent.decode(found:sub(#start + 1))
end

--- The pattern of SCAN for the keys of a scope's entries.
function M.pattern(scope) return key(scope, "name:*") end
function M.changes(scope) return key(scope, "changes") end

--- Is it a reply to the command TIME?
function M.is_time(reply)
  return type(reply) == "table" and tonumber(reply[1]) ~= nil
    and tonumber(reply[2]) ~= nil
end

--- The time in milliseconds of such a reply.
function M.time(reply)
  return tonumber(reply[1]) * 1000 + math.floor(tonumber(reply[2]) / 1000)
end

--- The number of a taking at a time of the server's. It is greater than the
-- number in other, the entry before (or nil). It is greater than those of all
-- takings before, too, unless the server's time has gone back since.
function M.term(reply, other)
  local micros = tonumber(reply[1]) * 1e6 + tonumber(reply[2])
  return math.max(micros, (other and other.term or 0) + 1)
end

return M
