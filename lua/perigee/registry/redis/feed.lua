-- SPDX-License-Identifier: Apache-2.0
--- What changes in a scope in Redis: one task reads its stream by a connection
-- of its own, while somebody watches and for some seconds after, and knows all
-- entries that there are. While the server is away it asks again and again.
--
-- Nothing is told where a TTL ends: so each entry is looked at again when its
-- time, as last heard, is over, and is either gone or has a new time.
--
-- Where the stream does not go on from what was read last (the server was
-- emptied, or another took its place), all is looked at anew. Who is not there
-- then is told to be gone only when its time is over: its holder takes the name
-- again by itself meanwhile.
local changes = require "perigee.registry.changes"
local connections = require "perigee.registry.redis.connection"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local keys = require "perigee.registry.redis.keys"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local M = {}

local NIL = connections.NIL
local BLOCK = 2                         -- seconds that the server holds a read
local LINGER = 10                       -- without anybody who asks
local PAUSE = 0.1                       -- before a lost server is asked again
local GRACE = 0.02                      -- seconds after the end of a TTL
local BATCH = 1000

local Feed = {}
Feed.__index = Feed

-- ---- What is known ---------------------------------------------------------

local function expect(feed, name, seconds)
  feed.due[name] = loop.now() + (seconds + GRACE) * 1e9
end

local function set(feed, name, text)
  local entry = text and keys.decode(text, feed.scope, name, feed.now)
  if entry == nil and feed.known[name] == nil then return end
  feed.known[name] = entry
  feed.due[name] = nil
  if entry then expect(feed, name, feed.ttl) end
  feed.changes:note(name)
end

-- ---- Reading ---------------------------------------------------------------

-- Is the stream's last id, of a reply to XREVRANGE, behind the one read?
local function is_behind(last, read)
  local a, b = last:match "^(%d+)-(%d+)$"
  local c, d = read:match "^(%d+)-(%d+)$"
  a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  return a < c or a == c and b < d
end

local function last_of(reply) return reply[1] and reply[1][1] or "0-0" end

-- Looks at all that there is.
local function look(feed)
  local replies, kind, why = feed.connection:ask {
    { "XREVRANGE", feed.stream, "+", "-", "COUNT", 1 }, { "TIME" } }
  if not replies then return nil, kind, why end
  feed.now, feed.last = keys.time(replies[2]), last_of(replies[1])
  local list
  list, kind, why = feed.redis:all(feed.scope, feed.connection)
  if not list then return nil, kind, why end
  for name, text in pairs(list) do set(feed, name, text) end
  for name in pairs(feed.known) do
    if not list[name] then expect(feed, name, feed.ttl) end
  end
  feed.looked = true
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
    end
  end
end

-- The seconds until something is due.
local function until_due(feed)
  local first = math.huge
  for _, at in pairs(feed.due) do first = math.min(first, at) end
  return math.max(0, (first - loop.now()) * 1e-9)
end
jit.off(until_due)

local function follow(feed)
  local seconds = math.max(0.001, math.min(BLOCK, until_due(feed)))
  local replies, kind, why = feed.connection:ask({
    { "TIME" },
    { "XREVRANGE", feed.stream, "+", "-", "COUNT", 1 },
    { "XREAD", "COUNT", BATCH, "BLOCK", math.ceil(seconds * 1000), "STREAMS",
      feed.stream, feed.last } }, seconds)
  if not replies then return nil, kind, why end
  feed.now = keys.time(replies[1])
  if is_behind(last_of(replies[2]), feed.last) then return look(feed) end
  if replies[3] ~= NIL then take(feed, replies[3][1][2]) end
  return true
end

-- Looks again at those whose time is over.
local function check_due(feed)
  local names, commands, now = {}, {}, loop.now()
  for name, at in pairs(feed.due) do
    if at <= now and #names < BATCH then
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

local function is_over(feed)
  if feed.changes:is_wanted() then feed.wanted = loop.now() end
  return feed.over or loop.now() - feed.wanted > LINGER * 1e9
end

local function read_on(feed)
  local fine, kind, why = look(feed)
  while fine and not is_over(feed) do
    feed.changes:tell(true)
    fine, kind, why = follow(feed)
    if fine then fine, kind, why = check_due(feed) end
  end
  return kind, why
end

-- What is known stays so while the server is away.
local function try_again(feed)
  while not is_over(feed) do
    local kind, why = read_on(feed)
    if kind then feed.changes:tell(nil, kind, why) end
    loop.wait(futures.new(), loop.deadline(PAUSE))
  end
end

-- What the server says may be of other shapes than it should be.
local function run(feed)
  local fine, why = pcall(try_again, feed)
  if fine then return feed:close("closed", "nobody watched") end
  feed:close("protocol", errors.shown(why))
end

--- Begins to follow a scope. redis has `all`, which gives its entries' texts by
-- name.
function M.new(redis, scope, target, patience, ttl)
  local feed = setmetatable({
    redis = redis, scope = scope, ttl = ttl, stream = keys.changes(scope),
    connection = connections.new(target, patience), last = "0-0", now = 0,
    known = {}, due = {}, wanted = loop.now(), over = false, looked = false,
    changes = changes.new("scope " .. scope),
  }, Feed)
  tasks.spawn(run, feed)
  return feed
end

--- Ends it.
function Feed:close(kind, why)
  if self.over then return end
  self.over = true
  self.connection:close()
  self.changes:tell(nil, kind, why)
end

return M
