-- SPDX-License-Identifier: Apache-2.0
--- The entries of a scope, for backends whose servers stream changes. One task
-- reads, as long as somebody watches and for some seconds after. The feed keeps
-- what it knew while no server answers, and tries again.
--
-- A backend makes a class of this one by M.class(), with two methods. `read`
-- reads until is_over(), or until it fails and returns a kind and why. It sets
-- `known` (entries by name) and `looked` (these are all), and notes and tells
-- `changes`. `stop` closes its connection, also under a read.
local changes = require "perigee.registry.changes"
local entries = require "perigee.registry.entry"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local tasks = require "perigee.runtime.task"

local M = {}

local LINGER = 10                       -- seconds without a waiting future
local PAUSE = 0.1                       -- seconds between attempts

local Feed = {}
Feed.__index = Feed

local sets = setmetatable({}, { __mode = "k" })

--- A class of feeds. Its objects are made by M.start().
function M.class()
  local class = setmetatable({}, Feed)
  class.__index = class
  return class
end

--- Is there nothing more to read, since nobody watches, or it was closed?
function Feed:is_over()
  if self.changes:is_wanted() then self.wanted = loop.now() end
  return self.over or loop.now() - self.wanted > LINGER * 1e9
end

--- Waits a little before something is tried again.
function M.pause() loop.wait(futures.new(), loop.deadline(PAUSE)) end

local function read_on(feed)
  while not feed:is_over() do
    local kind, why = feed:read()
    feed.failed = kind ~= nil
    if kind then feed.changes:tell(nil, kind, why) end
    M.pause()
  end
end

-- An answer of an unexpected type raises, and ends the feed.
local function run(feed)
  local fine, why = pcall(read_on, feed)
  if fine then return feed:close("closed", "nobody watched") end
  feed:close("protocol", errors.shown(why))
end

--- Begins to follow a scope with a feed of that class; fields: what the class
-- needs besides.
function M.start(class, scope, fields)
  local feed = setmetatable(fields, class)
  feed.scope, feed.known, feed.looked = scope, {}, false
  feed.wanted, feed.over, feed.failed = loop.now(), false, false
  feed.changes = changes.new("scope " .. scope)
  tasks.spawn(run, feed)
  return feed
end

-- The changes since filter.from, or all entries.
local function answer(feed, filter)
  local names = filter.from and feed.changes:since(filter.from)
  local told = {}
  for i, name in ipairs(names or {}) do
    told[i] = { name = name, entry = feed.known[name] }
  end
  if names then
    return { revision = feed.changes:revision(), changes = told }
  end
  for _, entry in pairs(feed.known) do told[#told + 1] = entry end
  return { revision = feed.changes:revision(),
           entries = entries.select(told, filter) }
end
jit.off(answer)

--- Answers a watch (Registry:watch).
function Feed:watch(filter)
  local names = filter.from and self.changes:since(filter.from)
  if self.looked and not (names and #names == 0) then
    return answer(self, filter)
  end
  return self.changes:next(answer, self, filter)
end

--- Ends it: who waits for a change gets nil, kind and why.
function Feed:close(kind, why)
  if self.over then return end
  self.over = true
  self:stop()
  self.changes:tell(nil, kind, why)
end

-- ---- The feeds of a registry -----------------------------------------------

--- A set of feeds by a key, such as their scope.
function M.set()
  local set = {}
  sets[set] = true
  return set
end

--- The feed of a set under a key; a new one, new(...), if there is none, or it
-- is over.
function M.of(set, key, new, ...)
  local feed = set[key]
  if feed and not feed.over then return feed end
  feed = new(...)
  set[key] = feed
  return feed
end

-- Tasks are not resumed after a stop.
local function close_all()
  for set in pairs(sets) do
    for key, feed in pairs(set) do
      set[key] = nil
      feed:close("closed", "the loop was stopped")
    end
  end
end
jit.off(close_all)
loop.dropped[#loop.dropped + 1] = close_all

return M
