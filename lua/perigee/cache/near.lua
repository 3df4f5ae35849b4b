-- SPDX-License-Identifier: Apache-2.0
--- Copies of values in a client's own memory (option `near` of `Agent:cache`),
-- of keys that it gets again and again from caches of other hosts. The store of
-- perigee/cache.so keeps them, as a cache's does; nobody else sees it.
--
-- The cache is asked whether the key has that version still, which takes a
-- request, but moves no value; unless what is stale will do (`till`).
--
--   a copy is   event                                 becomes
--   none        its key was got before, and is now    fresh
--   fresh       its time is over                      old
--   old         the cache has that version still      fresh
--   old         the cache has another, or none        none
--   any         this client puts or deletes the key;  none
--               others need its room
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"
local slices = require "perigee.memory.slice"

local ffi = require "ffi"
local C = native.C
local core = require "perigee.native".C
local copy, text = ffi.copy, ffi.string
local now, tonumber = loop.now, tonumber

local M = {}

local Near = {}
Near.__index = Near

local OK, NO_MEMORY = core.PERIGEE_OK, core.PERIGEE_NO_MEMORY
local WANTS, PIECE = C.PERIGEE_CACHE_WANTS, C.PERIGEE_CACHE_PIECE
-- TRIES: to find room. STEPS: of a turn. KEYS: that are known, at least, before
-- it is looked which copies have gone for others.
local TRIES, STEPS, KEYS = 4, 256, 256
local place, put, want = native.place_t(), native.put_t(), native.want_t()

-- ---- Memory ----------------------------------------------------------------

local function slab_of(bytes)
  return native.power_of_two(math.max(2 ^ 16, math.min(bytes / 16, 2 ^ 26)))
end

-- Private memory of the engine's.
local function more(self, length)
  local region = self.engine:alloc(length)
  if not region then return nil end
  self.regions[#self.regions + 1] = region
  return region
end

local function close(self, region)
  for i, each in ipairs(self.regions) do
    if each == region then table.remove(self.regions, i) break end
  end
  region:close(0)
end

-- Takes back what the store has no use for, so that what it wants is within
-- the bytes that it may have.
local function take_back(self)
  while want.idle >= 0 do
    local number = tonumber(want.idle)
    if C.perigee_cache_remove(self.cache, number) < 0 then return end
    close(self, self.slabs[number])
    self.slabs[number] = nil
    C.perigee_cache_wants(self.cache, want)
  end
end

-- Gives the store what it wants; returns whether it has got that.
local function feed(self)
  C.perigee_cache_wants(self.cache, want)
  take_back(self)
  local length = tonumber(want.slab)
  local piece = want.pieces > 0 and more(self, PIECE)
  if piece then C.perigee_cache_grow(self.cache, piece.pointer) end
  local slab = length > 0 and more(self, length)
  if slab then
    self.slabs[tonumber(want.next)] = slab
    C.perigee_cache_add(self.cache, slab.pointer, length)
  end
  return slab or piece
end

--- Makes room for copies of `bytes` bytes in an engine's memory; nil: there is
-- none.
function M.new(engine, bytes)
  local out = native.cache_out_t()
  local options = native.options_t { quota = bytes, slab = slab_of(bytes) }
  if C.perigee_cache_open(options, now(), out) < 0 then return nil end
  local self = setmetatable({
    engine = engine, cache = ffi.gc(out[0], C.perigee_cache_close),
    regions = {}, slabs = {}, till = {}, count = 0, most = KEYS }, Near)
  if not feed(self) then return nil end
  self.client = tonumber(C.perigee_cache_client(self.cache))
  return self
end

-- ---- Copies ----------------------------------------------------------------

--- The version of a key's copy, and whether it is fresh; nil: there is none.
function Near:version(key)
  local till = self.till[key]
  if not till or C.perigee_cache_stat(self.cache, key, #key, now(), place)
    ~= OK then
    return nil
  end
  return tonumber(place.version), till > now()
end

--- Gives a key's copy, which `version` has found: into a slice, or as a string.
-- Returns it; nil: the slice is none that this can copy to, or too short.
function Near:get(key, into)
  local length = tonumber(place.length)
  local from = self.slabs[tonumber(place.slab)].pointer
    + tonumber(place.offset)
  local part
  if not into then
    part = text(from, length)
  elseif slices.is_slice(into) and into.count == 1 and into.pointer ~= nil
    and into.length >= length then
    copy(into.pointer, from, length)
    part = slices.first(into, length)
  else
    return nil
  end
  C.perigee_cache_touch(self.cache, key, #key, now())
  return part
end

--- The cache has said that a key's copy is right; it is fresh until `till`.
function Near:refresh(key, till)
  if self.till[key] then self.till[key] = till end
end

-- Forgets the keys of copies that have gone for others.
local function sweep(self)
  self.count = 0
  for key in pairs(self.till) do
    if self:version(key) then
      self.count = self.count + 1
    else
      self.till[key] = nil
    end
  end
  self.most = math.max(2 * self.count, KEYS)
end
jit.off(sweep)

local function reserve(self, key, length)
  put.length, put.client = length, self.client
  local status
  for _ = 1, TRIES do
    status = C.perigee_cache_reserve(self.cache, key, #key, put, now(), place)
    if status == NO_MEMORY then
      C.perigee_cache_turn(self.cache, now(), STEPS)
    elseif status ~= WANTS or not feed(self) then
      break
    end
  end
  return status
end

--- Keeps a copy of a value of this version: a string, or a slice of one block
-- of host memory. Else, or without room for it, there is none.
function Near:put(key, value, version, till)
  self:forget(key)
  local from, length = value, #value
  if type(value) ~= "string" then
    if not slices.is_slice(value) or value.count ~= 1 then return end
    from, length = value.pointer, value.length
  end
  if from == nil or reserve(self, key, length) ~= OK then return end
  local slab = self.slabs[tonumber(place.slab)]
  copy(slab.pointer + tonumber(place.offset), from, length)
  C.perigee_cache_seal_again(self.cache, place.entry, 0, version, now())
  self.till[key], self.count = till, self.count + 1
  if self.count > self.most then sweep(self) end
end

function Near:forget(key)
  if not self.till[key] then return end
  self.till[key], self.count = nil, self.count - 1
  C.perigee_cache_delete(self.cache, key, #key)
end

function Near:close()
  for _, region in ipairs(self.regions) do region:close(0) end
  self.regions, self.till = {}, {}
end

return M
