-- SPDX-License-Identifier: Apache-2.0
--- Records in Redis, where agents' registries keep theirs, too, by the same
-- commands (registry/redis). A store has
--
--   read(names, lists)    reads what is there now. names: { space, name,
--                         take = f(cell or nil) }; lists: { space, prefix,
--                         after, take = f(name, cell), true: no more of them }.
--                         The store's time in seconds, and the revision at
--                         which the names were read, if it has such; or nil, a
--                         kind and why
--   write(writes)         all or none of { space, name, cell, text, ttl,
--                         renew, unlisted }: sets a name, which has that
--                         cell now (nil: which is not there), to text (nil:
--                         removes it), for ttl seconds (0: until it is
--                         removed); or begins its ttl anew, if `renew`. An
--                         `unlisted` name need be in no list and no feed. True;
--                         false if another was quicker; or nil, a kind and
--                         why, if it failed, or may have
--   follow(space)         a feed (registry/feed) whose `known` are cells
--   target.text           what messages call it
--   close()
--
-- The first two wait, in a task. Both answer only when the store has
-- acknowledged.
local cells = require "perigee.control.cells"
local connections = require "perigee.registry.redis.connection"
local feeds = require "perigee.registry.redis.feed"
local keys = require "perigee.registry.redis.keys"
local redis = require "perigee.registry.redis"
local changes = require "perigee.registry.redis.writes"

local M = {}

local NIL = connections.NIL

local Store = {}
Store.__index = Store

--- The store at an address (of registry/redis); or nil and what it should be.
function M.open(address)
  local registry, why = redis.open(address)
  if not registry then return nil, why end
  return setmetatable({ registry = registry, target = registry.target,
                        connection = registry.connection,
                        patience = registry.patience }, Store)
end

-- ---- Reading ---------------------------------------------------------------

local function cell_of(reply)
  return reply ~= NIL and { text = reply } or nil
end

function Store:read(names, lists)
  local commands = { { "TIME" } }
  for i, each in ipairs(names) do
    -- Takes what is no text for nothing, where GET fails.
    commands[i + 1] = { "MGET", keys.name(each.space, each.name) }
  end
  local replies, kind, why = self.connection:ask(commands)
  if not replies then return nil, kind, why end
  for i, each in ipairs(names) do each.take(cell_of(replies[i + 1][1])) end
  for _, list in ipairs(lists) do
    local fine
    fine, kind, why = self.registry:each(list.space, list,
      function(name, text) return list.take(name, { text = text }) end)
    if not fine then return nil, kind, why end
  end
  return keys.term(replies[1]) * 1e-6   -- as exact as terms are
end

-- ---- Writing ---------------------------------------------------------------

local function milliseconds(write)
  return write.ttl > 0 and math.ceil(write.ttl * 1000) or nil
end

-- Renews what is to be renewed, which is no part of the transaction, and
-- watches and reads the other names.
local function preparing(writes)
  local commands = {}
  for _, write in ipairs(writes) do
    local key = keys.name(write.space, write.name)
    for _, command in ipairs(write.renew
      and changes.prolonging(key, milliseconds(write))
      or { { "WATCH", key }, { "MGET", key }, { "PTTL", key } }) do
      commands[#commands + 1] = command
    end
  end
  return commands
end

-- Gives another's name that was renewed the TTL that it had before.
local function give_back(connection, write, before)
  local back = changes.giving_back(keys.name(write.space, write.name), before,
                                   milliseconds(write))
  if back then connection:send { back } end
end

local ABSENT = -2                       -- the PTTL of what is not there

-- Is there still what was read? Nil, a kind and why if there is what is no
-- text, which is not overwritten. What was renewed, and is another's, gets its
-- TTL back.
local function are_same(connection, writes, replies)
  local at, same, foreign = 0, true, false
  for _, write in ipairs(writes) do
    local now = replies[at + 2]
    if not write.renew then
      now = now[1]
      foreign = foreign or now == NIL and replies[at + 3] ~= ABSENT
        and write.name
    end
    local is_same = now == (write.cell and write.cell.text or NIL)
    if write.renew and not is_same then
      give_back(connection, write, replies[at + 1])
    end
    same, at = same and is_same, at + (write.renew and 2 or 3)
  end
  if not foreign then return same end
  return nil, "name_taken", "what is no text is in the place of " .. foreign
end

local function transaction(writes)
  local commands = { { "MULTI" } }
  for _, write in ipairs(writes) do
    local some = write.renew and {}
      or changes.commands(write.space, write.name, write.text,
                          milliseconds(write))
    -- The first one alone writes the key.
    for i = 1, write.unlisted and math.min(#some, 1) or #some do
      commands[#commands + 1] = some[i]
    end
  end
  commands[#commands + 1] = { "EXEC" }
  return commands
end

local function write_all(registry, writes)
  local connection = registry.connection
  local life = connection.life
  local replies, kind, why = connection:ask(preparing(writes))
  if not replies then return nil, kind, why end
  local same, other, what = are_same(connection, writes, replies)
  local commands = transaction(writes)
  if #commands == 2 then return same end -- it writes nothing
  if not same then
    connection:send { { "UNWATCH" } }
    return same, other, what
  end
  local fine, done, reason = registry:exec(commands, life)
  if not fine then return nil, done, reason end
  return done
end

function Store:write(writes)
  return self.registry:alone(write_all, writes)
end

-- ---- Following -------------------------------------------------------------

local function decode(text) return { text = text }, cells.ttl(text) end

function Store:follow(space)
  return feeds.new(self.registry, space, self.target, self.patience,
                   self.registry.ttl, decode)
end

function Store:close() self.connection:close() end

return M
