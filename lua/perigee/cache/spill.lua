-- SPDX-License-Identifier: Apache-2.0
--- Host memory below a store whose slabs are memory of a GPU: a store of its
-- own, with slabs that clients read, too. What is near its eviction from the
-- GPU is copied there by the engine (moves.lua), and found there when it was
-- evicted. What is got there again and again is copied back, by the engine as
-- well, while clients go on reading it below.
--
--   a value is    event                                     becomes
--   above         the GPU's is nearly full, and it is cold  on its way
--   on its way    the engine has copied it                  in both
--   on its way    it is evicted above                       still on its way
--   on its way    the copy has failed, or its lease was     above, if it is
--                 over before                               there still
--   in both       it is evicted above                       below
--   any           its key is put or deleted                 not below
--   below         the host's is full, and it is cold        gone
--   below         it is hot (perigee_cache_hot)             coming back
--   coming back   the engine has copied it                  in both
--   coming back   the copy has failed, or its lease was     below, if it is
--                 over before                               there still
--
-- The lease of the value, and the reservation of its other place, last until
-- the copy is over: so a put of a key that is coming back is refused as busy. A
-- value that is evicted before it is on its way is gone.
local colds = require "perigee.cache.cold"
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"

local ffi = require "ffi"
local C = native.C
local core = require "perigee.native".C

local M = {}

local Spill = {}
Spill.__index = Spill

-- WAY: bytes that may be on their way, whatever the GPU has; as many may be
-- coming back. BACK: the part of the GPU's memory that may be, but one value
-- may always: more would evict what has no copy below yet. HOT: values that are
-- looked at in a turn. LATE: ns for which a value with a TTL may be on its way,
-- which it lives longer.
local WAY, BACK, HOT, LATE = 2 ^ 30, 1 / 16, 16, 1e8
local OK = core.PERIGEE_OK
local hot, place = native.cold_t(HOT), native.place_t()

--- Puts a store below another one, which has no client yet.
function M.new(store, below)
  C.perigee_cache_spill(store.cache, below.cache)
  below.moves = store.moves             -- is told of slabs that go
  return setmetatable({
    store = store, below = below, cold = colds.new(store, WAY),
    client = tonumber(C.perigee_cache_client(below.cache)), on_way = {},
    coming = {}, bytes = 0, most = math.min(store.memory * BACK, WAY),
  }, Spill)
end

-- ---- From the GPU's memory to the host's ------------------------------------

-- Its reservation below is sealed, if it has the value; else it is given up.
-- right: was it copied, while its place above was its own?
local function arrived(self, one, right)
  local store, below, at = self.store, self.below, one.at
  self.cold:over(at)
  self.on_way[one.key] = nil
  if not store.cache then return end
  if not right or one.void or loop.now() > one.late then
    return below:give_up(one.entry)
  end
  if below:seal_again(one.entry, one.key, at.checksum, at.version) == OK then
    C.perigee_cache_mark(store.cache, one.key, #one.key, at.version, 1)
  end
end

-- Has the engine copy a value to its place below.
local function send(self, one, slice)
  self.on_way[one.key] = one
  local slab = self.store.slabs[tonumber(one.at.slab)]
  self.store.moves:copy(slab.name, tonumber(one.at.offset), slice,
    function(fine)
      arrived(self, one, self.cold:release(one.at) and fine)
    end)
  return OK
end

-- Copies a value that is cold. Returns a status.
local function write_one(self, cold)
  local key = ffi.string(cold.key, cold.key_length)
  if self.on_way[key] then return OK end
  local at, status = self.cold:lease(cold)
  if not at then return status end
  local entry, slice = self.below:place_again(self.client, key,
    tonumber(at.length), { ttl = tonumber(cold.left) })
  if entry then
    return send(self, { key = key, at = at, entry = entry, void = false,
                        late = cold.left > 0 and loop.now() + LATE or math.huge
                      }, slice)
  end
  self.cold:release(at)
  self.cold:over(at)
  return slice
end

-- Copies some of what is cold.
local function write_cold(self)
  self.cold:write(write_one, self)
end

-- ---- From the host's memory to the GPU's ------------------------------------

-- Leases a value below. Returns its place; or nil.
local function lease(self, key)
  local status = C.perigee_cache_lease(self.below.cache, self.client, key, #key,
                                       loop.now(), place)
  return status == OK and native.place_t(place) or nil
end

-- Gives such a lease back; returns whether that was the value's until now.
local function release(self, at)
  local cache = self.below.cache
  return cache
    and C.perigee_cache_release(cache, self.client, at.lease) == OK
end

-- Is this version of a key below?
local function is_below(self, key, version)
  return C.perigee_cache_stat(self.below.cache, key, #key, loop.now(), place)
    == OK and place.version == version
end

-- Its reservation above is sealed, if it has the value; else it is given up.
-- right: was it copied, while its place below was its own?
local function came(self, one, right)
  local store, key, at = self.store, one.key, one.at
  self.coming[key] = nil
  self.bytes = self.bytes - tonumber(at.length)
  if not store.cache then return end
  if not right or one.void or loop.now() > one.late then
    return store:give_up(one.entry)
  end
  if store:seal_again(one.entry, key, at.checksum, at.version) == OK
    and is_below(self, key, at.version) then
    C.perigee_cache_mark(store.cache, key, #key, at.version, 1)
  end
end

-- Has the engine copy a value to its place above.
local function bring(self, one, slice)
  local at = one.at
  self.coming[one.key] = one
  self.bytes = self.bytes + tonumber(at.length)
  self.store.moves:copy(self.below.slabs[tonumber(at.slab)].name,
    tonumber(at.offset), slice, function(fine)
      came(self, one, release(self, at) and fine)
    end)
end

-- Reserves a place above, if not too much is coming. Returns its entry and
-- slice; or nil. What has a value above by then has a newer one.
local function place_for(self, key, length, left)
  local store = self.store
  if self.bytes > 0 and self.bytes + length > self.most then return nil end
  local entry, slice = store:place_again(self.cold.client, key, length,
                                         { ttl = tonumber(left) })
  if entry and store:has(key) then return store:give_up(entry) end
  return entry, slice
end

-- Copies a value that is hot back.
local function bring_one(self, key)
  local at = not self.coming[key] and lease(self, key)
  if not at then return end
  local left = C.perigee_cache_left(self.below.cache, key, #key, loop.now())
  local entry, slice = place_for(self, key, tonumber(at.length), left)
  if not entry then return release(self, at) end
  bring(self, { key = key, at = at, entry = entry, void = false,
                late = left > 0 and loop.now() + LATE or math.huge }, slice)
end

local function bring_hot(self)
  local n = C.perigee_cache_hot(self.store.cache, hot, HOT, loop.now())
  for i = 0, n - 1 do
    bring_one(self, ffi.string(hot[i].key, hot[i].key_length))
  end
end
jit.off(bring_hot)

-- ---- What the store tells it ------------------------------------------------

local function void(one)
  if one then one.void = true end
end

--- A key has another value, or none: that below is void.
function Spill:forget(key)
  void(self.on_way[key])
  void(self.coming[key])
  C.perigee_cache_delete(self.below.cache, key, #key)
end

--- Something was sealed: others may have to go soon.
function Spill:sealed() write_cold(self) end

--- Does what is to be done now; called again and again.
function Spill:turn()
  bring_hot(self)
  write_cold(self)
end

--- Is a key's value below?
function Spill:has(key) return self.below:has(key) end

--- Is a key's value below, or above?
function Spill:fetch(key)
  return self.store:has(key) or self:has(key)
end

--- Closes the store below, with the one above.
function Spill:close() self.below:close() end

return M
