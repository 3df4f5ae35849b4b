-- SPDX-License-Identifier: Apache-2.0
--- Follows the changes of a scope in Redis, by the scope's stream, on a
-- connection of its own.
--
-- Redis reports nothing when a TTL ends. So the TTL of an entry is read, which
-- is its holder's choice, and read again when that is over: the entry is gone
-- or has a new TTL.
-- A new connection goes on from the last id that was read. It looks at once at
-- the names whose TTL is over, so no end is missed however often connections
-- break.
--
-- All entries are read again if the stream does not continue from there (the
-- server was emptied or replaced, or has had more changes than the stream
-- keeps). An entry that is missing then is reported as gone only after a TTL,
-- since its holder may take the name again meanwhile; that TTL is not begun
-- anew.
local connections = require "perigee.registry.redis.connection"
local feeds = require "perigee.registry.feed"
local keys = require "perigee.registry.redis.keys"
local loop = require "perigee.runtime.loop"
local turns = require "perigee.runtime.turn"

local M = {}

local NIL = connections.NIL
local BLOCK = 2                         -- seconds that the server holds a read
local GRACE = 0.02                      -- seconds after the end of a TTL
local BATCH = 30                        -- changes of a reply, which has room
                                        -- for as many of the longest entries
local TTLS = 200                        -- that are asked for at once

local Feed = feeds.class()

-- ---- What is known ---------------------------------------------------------

local function expect(feed, name, seconds)
  feed.due[name] = loop.now() + (seconds + GRACE) * 1e9
end

local function set(feed, name, text)
  local entry, seconds
  if text then
    entry, seconds = feed.decode(text, feed.scope, name, feed.now)
  end
  if entry == nil and feed.known[name] == nil then return end
  feed.known[name] = entry
  feed.due[name], feed.missed[name] = nil, nil
  if entry then expect(feed, name, seconds or -GRACE) end
  feed.changes:note(name)
end

-- ---- Reading ---------------------------------------------------------------

-- Is the stream's last id (from XREVRANGE) lower than the last id read?
local function is_behind(last, read)
  local a, b = last:match "^(%d+)-(%d+)$"
  local c, d = read:match "^(%d+)-(%d+)$"
  a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  return a < c or a == c and b < d
end

local function last_of(reply) return reply[1] and reply[1][1] or "0-0" end

-- Has the server what it had when the stream was read last? A server that was
-- started again numbers its connections from 1.
local function continues(feed)
  if not feed.looked then return false end
  local replies, kind, why = feed.connection:ask {
    { "XREVRANGE", feed.stream, feed.last, feed.last, "COUNT", 1 } }
  if not replies then return nil, kind, why end
  local before = feed.number
  feed.number = feed.connection.number
  return replies[1][1] ~= nil and feed.number >= before
end

-- Notes that an entry is missing after all were read again.
local function miss(feed, name)
  if feed.missed[name] then return end
  feed.missed[name] = true
  expect(feed, name, feed.ttl)
end

-- Reads all entries.
local function look(feed)
  local replies, kind, why = feed.connection:ask {
    { "XREVRANGE", feed.stream, "+", "-", "COUNT", 1 }, { "TIME" } }
  if not replies then return nil, kind, why end
  feed.now, feed.last = keys.time(replies[2]), last_of(replies[1])
  local list
  list, kind, why = feed.redis:all(feed.scope, feed.connection)
  if not list then return nil, kind, why end
  for name, text in pairs(list) do
    set(feed, name, text)
    -- It may have begun long ago, whatever its text says of its TTL.
    if feed.known[name] ~= nil then feed.due[name] = loop.now() end
    turns.give()
  end
  for name in pairs(feed.known) do
    if not list[name] then miss(feed, name) end
  end
  feed.looked, feed.number = true, feed.connection.number
  feed.heard = true
  return true
end
jit.off(look)

local function take(feed, stream)
  for _, message in ipairs(stream) do
    local fields = {}
    for i = 1, #message[2], 2 do fields[message[2][i]] = message[2][i + 1] end
    feed.last = message[1]
    if fields.name and fields.entry then
      set(feed, fields.name, fields.entry ~= "" and fields.entry or nil)
      turns.give()
    end
  end
end

-- The seconds until the next TTL ends.
local function until_due(feed)
  local first = math.huge
  for _, at in pairs(feed.due) do first = math.min(first, at) end
  return math.max(0, (first - loop.now()) * 1e-9)
end
jit.off(until_due)

-- Reads changes; on a new connection those that there are.
local function follow(feed)
  local seconds = feed.heard and math.min(BLOCK, until_due(feed)) or 0
  seconds = math.max(0.001, seconds)
  local replies, kind, why = feed.connection:ask({
    { "TIME" },
    { "XREVRANGE", feed.stream, "+", "-", "COUNT", 1 },
    { "XREAD", "COUNT", BATCH, "BLOCK", math.ceil(seconds * 1000), "STREAMS",
      feed.stream, feed.last },
    { "XREVRANGE", feed.stream, feed.last, feed.last, "COUNT", 1 } }, seconds)
  if kind == "too_large" then return look(feed) end -- it goes on behind those
  if not replies then return nil, kind, why end
  feed.now, feed.heard = keys.time(replies[1]), true
  if is_behind(last_of(replies[2]), feed.last) then return look(feed) end
  if replies[3] == NIL then return true end
  local stream = replies[3][1][2]
  -- Changes before these may be lost if the last one that was read is.
  if #stream >= BATCH and not replies[4][1] then return look(feed) end
  take(feed, stream)
  return true
end

-- Reads the TTLs of the entries whose time is over.
local function check_due(feed)
  local names, commands, now = {}, {}, loop.now()
  for name, at in pairs(feed.due) do
    if at <= now and #names < TTLS then
      names[#names + 1] = name
      commands[#commands + 1] = { "PTTL", keys.name(feed.scope, name) }
    end
  end
  if #names == 0 then return true end
  local replies, kind, why = feed.connection:ask(commands)
  if not replies then return nil, kind, why end
  for i, name in ipairs(names) do
    local left = replies[i]
    if left == -2 then
      set(feed, name, nil)
    else
      expect(feed, name, left < 0 and feed.ttl or left / 1000)
    end
  end
  return true
end
jit.off(check_due)

-- ---- Running ---------------------------------------------------------------

-- Begins on a connection, which may be a new one.
local function resume(feed)
  local fine, kind, why = continues(feed)
  if fine == false then return look(feed) end
  return fine, kind, why
end

function Feed:read()
  self.heard = false
  local fine, kind, why = resume(self)
  while fine and not self:is_over() do
    fine, kind, why = check_due(self)
    if fine then
      if self.heard then self.changes:tell(true) end
      fine, kind, why = follow(self)
    end
  end
  return kind, why
end

function Feed:stop() self.connection:close() end

--- Begins to follow a scope. redis:all(scope, connection) returns the texts of
-- its entries by name. decode(text, scope, name, now) makes what is known of a
-- text, and the seconds of its TTL, if it knows them (by default an entry).
function M.new(redis, scope, target, patience, ttl, decode)
  return feeds.start(Feed, scope, {
    redis = redis, ttl = ttl, stream = keys.changes(scope),
    decode = decode or keys.decode,
    connection = connections.new(target, patience), last = "0-0", now = 0,
    number = 0, due = {}, missed = {}, heard = false })
end

return M
