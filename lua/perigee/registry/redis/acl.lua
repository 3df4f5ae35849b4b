-- SPDX-License-Identifier: Apache-2.0
--- The rights that a Redis user needs for registries: our keys, and the
-- commands that are sent. Each command is named, so that nothing comes with a
-- newer server. No command of them is in the categories @scripting, @admin or
-- @dangerous.
local keys = require "perigee.registry.redis.keys"

local M = {}

local BEGINNING = "auth hello select time"
local READING = "get mget pttl zrange zrangebylex xrevrange xread"
local WRITING = "multi exec watch unwatch set del getex zadd zrem xadd"

local function allowed(...)
  local text = {}
  for i, list in ipairs { ... } do
    text[i] = list:gsub("%S+", "+%0")
  end
  return "-@all " .. table.concat(text, " ")
end

--- The names of all commands that are sent to a server of names, in one text.
M.COMMANDS = table.concat({ BEGINNING, READING, WRITING }, " ")

--- The rules for a user, as ACL SETUSER takes them. options: `scope`: the only
-- one that the user may touch (default: all); `read`: agents that only look up,
-- list and watch, and have no names.
function M.rules(options)
  options = options or {}
  local pattern = options.scope and keys.scope(options.scope) .. "*"
    or "perigee:*"
  return ("resetkeys %s%s resetchannels %s"):format(
    options.read and "%R~" or "~", pattern,
    options.read and allowed(BEGINNING, READING)
      or allowed(BEGINNING, READING, WRITING))
end

--- The rules for a user of Sentinels.
function M.sentinel_rules()
  return "resetkeys resetchannels &+switch-master -@all +auth +hello +ping "
    .. "+subscribe +sentinel|get-master-addr-by-name"
end

--- The command for redis-cli that makes a user. options: as of M.rules, and
-- `sentinel`: the user is one of Sentinels'.
function M.command(user, password, options)
  local rules = options and options.sentinel and M.sentinel_rules()
    or M.rules(options)
  return ("ACL SETUSER %s on >%s %s"):format(user, password, rules)
end

return M
