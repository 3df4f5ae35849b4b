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

return M
