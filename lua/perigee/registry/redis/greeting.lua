-- SPDX-License-Identifier: Apache-2.0
--- The first words of a new connection: the user and password, the database,
-- and HELLO, whose reply tells what the server is. ROLE and INFO would tell it
-- too, but a user without dangerous commands may not run them.
local failures = require "perigee.registry.redis.failure"

local M = {}

local REPLICA = "it is a replica, not the master"
local SENTINEL = "it is a Sentinel: name it as redis+sentinel://HOST/MASTER"
local SERVER = "it is no Sentinel"

--- The commands for a target; HELLO is the last.
function M.commands(target)
  local list = {}
  if target.password then
    list[1] = target.user and { "AUTH", target.user, target.password }
      or { "AUTH", target.password }
  end
  list[#list + 1] = { "HELLO", 2 }
  if target.database and target.database ~= 0 then
    table.insert(list, #list, { "SELECT", target.database })
  end
  return list
end

local function facts_of(reply)
  local facts = {}
  for i = 1, #reply - 1, 2 do
    if type(reply[i]) == "string" then facts[reply[i]] = reply[i + 1] end
  end
  return facts
end

--- The number of this connection, which the reply to HELLO tells; or nil.
function M.number(reply)
  return type(reply) == "table" and tonumber(facts_of(reply).id) or nil
end

--- Checks a reply. True; or nil, a kind and why the server will not do for
-- target.
function M.check(target, command, reply)
  if type(reply) == "table" and reply.failure then
    return nil, failures.read(reply.failure)
  end
  if command[1] ~= "HELLO" then return true end
  if type(reply) ~= "table" then
    return nil, "protocol", "what it answers to HELLO is no list"
  end
  local facts = facts_of(reply)
  local is_sentinel = facts.mode == "sentinel"
  if is_sentinel and not target.is_sentinel then
    return nil, "unsupported", SENTINEL
  elseif target.is_sentinel and not is_sentinel then
    return nil, "unsupported", SERVER
  elseif target.masters and facts.role ~= "master" then
    return nil, "peer_lost", REPLICA
  end
  return true
end

return M
