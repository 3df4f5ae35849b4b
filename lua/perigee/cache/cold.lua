-- SPDX-License-Identifier: Apache-2.0
--- What of a store is near its eviction, and is to be written to what is below
-- it (tier.lua, spill.lua) before: some values at a time, once memory is nearly
-- full. A lease keeps each where it is meanwhile.
local native = require "perigee.cache.native"
local loop = require "perigee.runtime.loop"

local C = native.C
local core = require "perigee.native".C

local M = {}

local Cold = {}
Cold.__index = Cold

-- WRITES: at a time. COLD: the part of the memory beyond which cold values are
-- written. LOOKS: entries that are looked at for that. UNDER_WAY: the part of
-- memory that may be being written, which holds its space.
local WRITES, COLD, LOOKS, UNDER_WAY = 16, 0.7, 256, 1 / 8
local cold, place = native.cold_t(WRITES), native.place_t()

--- Makes it for a store. most: bytes that may be being written besides.
function M.new(store, most)
  return setmetatable({
    store = store, client = tonumber(C.perigee_cache_client(store.cache)),
    counters = native.counters_t(), most = most or math.huge, writes = 0,
    bytes = 0 }, Cold)
end

-- Is memory nearly full, and not too much of it being written?
local function should_write(self)
  local counters = self.counters
  C.perigee_cache_count(self.store.cache, counters)
  local quota = tonumber(counters.quota)
  return tonumber(counters.used) > COLD * quota
    and self.bytes < math.min(quota * UNDER_WAY, self.most)
end

--- Calls f(owner, one) for some of what is cold (struct perigee_cache_cold), if
-- memory is nearly full. f begins to write it, and returns a status.
function Cold:write(f, owner)
  if self.writes >= WRITES or not should_write(self) then return end
  local n = C.perigee_cache_coldest(self.store.cache, cold,
                                    WRITES - self.writes, LOOKS)
  for i = 0, n - 1 do
    local status = f(owner, cold[i])
    if status == core.PERIGEE_AGAIN or not should_write(self) then break end
  end
end
jit.off(Cold.write)

--- Leases a value that is cold, and counts it as being written. Returns its
-- place, which is the caller's; or nil and a status.
function Cold:lease(one)
  local status = C.perigee_cache_lease(self.store.cache, self.client, one.key,
                                       one.key_length, loop.now(), place)
  if status < 0 then return nil, status end
  self.writes = self.writes + 1
  self.bytes = self.bytes + tonumber(place.length)
  return native.place_t(place)
end

--- Gives its lease back; returns whether that was the value's until now.
function Cold:release(at)
  local cache = self.store.cache
  return cache
    and C.perigee_cache_release(cache, self.client, at.lease) == core.PERIGEE_OK
end

--- It is not being written any more.
function Cold:over(at)
  self.writes = self.writes - 1
  self.bytes = self.bytes - tonumber(at.length)
end

return M
