-- SPDX-License-Identifier: Apache-2.0
--- Hot keys (option `hot` of `Agent:cache`): what this client gets so often
-- that the one cache that has it may be the bottleneck is read from the next
-- caches of the key's order, too (ring.lua), by turns. Those have copies.
--
-- A copy's key says of which life of which cache it is, and of which version
-- (cache.h, "Hot keys"): it is the bytes of that version for ever. So it is the
-- client that knows what may be read: it asks the key's cache for the version,
-- and reads copies of that one alone, for `stale` from when it asked, as long
-- as it knows of no other. Nobody has to remove copies when the key is put or
-- deleted, when its cache is restarted, or when another cache has it: no client
-- asks for them any more. They go when their time is over, or before all else
-- if their cache is full.
--
--   a key    event                                     becomes
--   cold     it is got MANY times in about a second    hot
--   hot      its cache has told of its version         known
--   known    `stale` is over; this client has put or   hot
--            deleted it, or has heard of another
--            version; its cache has another session
--   hot,     it is not got so often any more, and      cold
--   known    others need its room
--
-- Who finds no copy gets the value from its cache, and puts the copy; others go
-- to the key's cache meanwhile. A cache that gives none is not asked for a
-- while. Whatever goes wrong with a copy, the key's cache has the value.
local bytes = require "perigee.cache.bytes"
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"
local ring = require "perigee.cache.ring"

local bit = require "bit"
local ffi = require "ffi"
local C = native.C
local now, tonumber, min, max = loop.now, tonumber, math.min, math.max

local M = {}

local Hot = {}
Hot.__index = Hot

-- A key is counted where the first BITS bits of its hash say; keys that share
-- a count are hot together, which costs some copies. Counts are halved each
-- WINDOW (ns).
local BITS, WINDOW, MANY = 12, 1e9, 64
local COUNTS, MOST = 2 ^ BITS, 2 ^ 16 - 1
-- KEYS: hot ones at a time. PAUSE, LONG: ns for which a cache is not asked for
-- a copy again that it did not have; that it could not take, or that was wrong.
-- LASTS: ns that a copy lives at least.
local KEYS, PAUSE, LONG, LASTS = 256, 0.25e9, 5e9, 10e9
local LONGEST = C.PERIGEE_CACHE_KEY - C.PERIGEE_CACHE_COPY_PREFIX
local PREFIX = "\0copy\0"
local counts_t = ffi.typeof("uint16_t[?]")

--- Makes it for the caches of a set. options: those of `Agent:cache`.
function M.new(set, options)
  local stale = options.stale * 1e9
  return setmetatable({
    set = set, caches = options.hot, stale = stale,
    checks = options.checksum or false, counts = counts_t(COUNTS), at = now(),
    known = {}, keys = 0, swept = 0,
    reads = 0, made = 0,                -- copies that were read, and put
    asked = { ttl = max(2 * stale, LASTS), if_absent = true, pin = "copy" },
  }, Hot)
end

-- ---- Counting --------------------------------------------------------------

local function halve(self, time)
  local windows = min(math.floor((time - self.at) / WINDOW), 16)
  for i = 0, COUNTS - 1 do
    self.counts[i] = bit.rshift(self.counts[i], windows)
  end
  self.at = time
end

-- Counts a get; returns whether its key is hot.
local function is_hot(self, key)
  local time = now()
  if time - self.at >= WINDOW then halve(self, time) end
  local hash = C.perigee_cache_hash(key, #key, 0)
  local i = tonumber(bit.rshift(hash, 64 - BITS))
  local count = min(self.counts[i] + 1, MOST)
  self.counts[i] = count
  return count >= MANY and #key <= LONGEST
end

-- ---- What is known ---------------------------------------------------------

-- Forgets keys of which nothing is known any more; not often.
local function sweep(self, time)
  if time < self.swept + WINDOW then return end
  self.swept, self.keys = time, 0
  for key, one in pairs(self.known) do
    if one.till <= time then
      self.known[key] = nil
    else
      self.keys = self.keys + 1
    end
  end
end
jit.off(sweep)

-- Returns what is known of a hot key; nil: there are too many.
local function known_of(self, key)
  local one = self.known[key]
  if one then return one end
  if self.keys >= KEYS then sweep(self, now()) end
  if self.keys >= KEYS then return nil end
  one = { name = false, version = 0, length = 0, sum = 0, till = 0, ask_at = 0,
          owner = false, session = false, live = false, others = {},
          after = {}, turn = math.random(0, self.caches) }
  self.known[key], self.keys = one, self.keys + 1
  return one
end

-- Is this still the version that a key has, as far as this client may know?
local function holds(one, key, owner, version)
  return one.version == version and one.owner == owner
    and one.session == owner.session
    and owner.leases:is_newest(key, version) and one.till > now()
end

-- Asks the cache that has a key for its version. Returns whether it is known.
local function learn(self, one, key, owner)
  local time = now()
  if time < one.ask_at then return false end
  one.ask_at = time + min(PAUSE, self.stale)
  local there = owner:version(key)
  if not there then return false end
  local session = owner.session
  if one.version ~= there.version or one.session ~= session then
    one.name = PREFIX .. session.epoch .. ("%016x"):format(there.version) .. key
    for n in ipairs(one.after) do one.after[n] = 0 end
  end
  one.owner, one.session, one.till = owner, session, time + self.stale
  one.version, one.length, one.sum = there.version, there.length,
                                     there.checksum
  return true
end

-- Returns the number of the cache whose turn it is; nil: the one that has the
-- key.
local function choose(self, one, key)
  local live = self.set.live
  if one.live ~= live then
    one.live, one.others, one.after = live, {}, {}
    for n = 2, min(self.caches, #live) do
      one.others[n - 1], one.after[n - 1] = ring.owner(live, key, n), 0
    end
  end
  one.turn = (one.turn + 1) % (#one.others + 1)
  if one.turn > 0 and one.after[one.turn] <= now() then return one.turn end
end

-- ---- Copies ----------------------------------------------------------------

-- Says that a cache is not asked for this copy for a while.
local function leave(one, from, n, ns)
  if one.others[n] == from then one.after[n] = now() + ns end
end

-- Is it asked for this copy: has nobody left it meanwhile?
local function is_asked(one, from, n)
  return one.others[n] == from and one.after[n] <= now()
end

-- Gets a value from the cache that has it, and puts a copy.
local function make_copy(self, one, key, into, owner, n)
  local from, name, version, session = one.others[n], one.name, one.version,
                                       one.session
  leave(one, from, n, PAUSE)
  local part, got = owner:get_version(key, into)
  if not part or got ~= version or owner.session ~= session then return part end
  local fine, err = from:put(name, part, self.asked)
  if fine or err.code == "exists" then
    self.made = self.made + (fine and 1 or 0)
    leave(one, from, n, 0)
  elseif err.code ~= "busy" then
    self.set:leave(from, err)
    leave(one, from, n, LONG)
  end
  return part
end

-- Are these the bytes of that version, as far as its cache has told?
local function is_right(self, one, part)
  local length = type(part) == "string" and #part or part.length
  return length == one.length and (not self.checks
    or bytes.is_whole(part, one.sum))
end

-- Gets a copy's value, or makes the copy; nil: the key's cache is to be asked.
local function read(self, one, key, into, owner, n)
  local from, version = one.others[n], one.version
  if not self.set:reach(from) then return leave(one, from, n, LONG) end
  local part, err = from:get(one.name, into)
  if part and holds(one, key, owner, version) then
    if is_right(self, one, part) then
      self.reads = self.reads + 1
      return part
    end
    leave(one, from, n, LONG)
  elseif not part and err.kind == "not_found" then
    if is_asked(one, from, n) then
      return make_copy(self, one, key, into, owner, n)
    end
  elseif not part then
    self.set:leave(from, err)
    leave(one, from, n, LONG)
  end
  return nil
end

-- The cache that has a key, if others may spare it requests: it is not on this
-- host, and there is no copy here.
local function owner_of(self, key)
  local set = self.set
  local owner = set:owner(key, 1)
  if not owner or #set.live < 2 or not set:reach(owner) or owner.map
    or owner.near and owner.near:version(key) then
    return nil
  end
  return owner
end

local function get_hot(self, key, into)
  local owner = owner_of(self, key)
  local one = owner and known_of(self, key)
  if not one or not holds(one, key, owner, one.version)
    and not learn(self, one, key, owner) then return nil end
  local n = choose(self, one, key)
  if not n or into and into.length < one.length then return nil end
  return read(self, one, key, into, owner, n)
end

--- Gets a value as `Member:get` does, from the cache that has it or a copy.
function Hot:get(key, into)
  local part = is_hot(self, key) and get_hot(self, key, into)
  if part then return part end
  return self.set:first(key, "get", into)
end

return M
