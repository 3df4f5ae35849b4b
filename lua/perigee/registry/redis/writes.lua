-- SPDX-License-Identifier: Apache-2.0
--- The commands of a transaction that writes a name of a scope.
local keys = require "perigee.registry.redis.keys"

local M = {}

local CHANGES = 10000                   -- the stream's approximate length

--- The commands that set a name to text for some milliseconds (nil: until it is
-- removed), or remove it if text is nil. They belong between MULTI and EXEC.
function M.commands(scope, name, text, milliseconds)
  local key, index = keys.name(scope, name), keys.names(scope)
  local change = { "XADD", keys.changes(scope), "MAXLEN", "~", CHANGES, "*",
                   "name", name, "entry", text or "" }
  if not text then
    return { { "DEL", key }, { "ZREM", index, name }, change }
  end
  local set = { "SET", key, text }
  if milliseconds then set[4], set[5] = "PX", milliseconds end
  return { set, { "ZADD", index, 0, name }, change }
end

--- The commands that tell a key's TTL, give it one of some milliseconds instead
-- and tell its text. They are no transaction, since a full server would refuse
-- that.
function M.prolonging(key, milliseconds)
  return { { "PTTL", key }, { "GETEX", key, "PX", milliseconds } }
end

--- The command that gives a key its TTL again, where the second command found
-- another's text; nil if its TTL (the first one's reply) was no longer.
function M.giving_back(key, before, milliseconds)
  if before == -1 then return { "GETEX", key, "PERSIST" } end
  local is_longer = type(before) == "number" and before > milliseconds
  return is_longer and { "GETEX", key, "PX", before } or nil
end

return M
