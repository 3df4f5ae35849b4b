-- SPDX-License-Identifier: Apache-2.0
--- Host memory below a store whose slabs are memory of a GPU: a store of its
-- own, with slabs that clients read, too. What is near its eviction from the
-- GPU is copied there by the engine (moves.lua), and found there when it was
-- evicted. It does not come back to the GPU.
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
--
-- The lease of the value above, and the reservation below, last until the copy
-- is over. A value that is evicted before it is on its way is gone.
local colds = require "perigee.cache.cold"
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"

local ffi = require "ffi"
local C = native.C
local core = require "perigee.native".C

local M = {}

local Spill = {}
Spill.__index = Spill

-- WAY: bytes that may be on their way, whatever the GPU has. LATE: ns for which
-- a value with a TTL may be, which it lives longer.
local WAY, LATE = 2 ^ 30, 1e8
local OK = core.PERIGEE_OK

--- Puts a store below another one, which has no client yet.
function M.new(store, below)
  C.perigee_cache_spill(store.cache, below.cache)
  return setmetatable({
    store = store, below = below, cold = colds.new(store, WAY),
    client = tonumber(C.perigee_cache_client(below.cache)), on_way = {},
  }, Spill)
end

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

--- A key has another value, or none: that below is void.
function Spill:forget(key)
  local one = self.on_way[key]
  if one then one.void = true end
  C.perigee_cache_delete(self.below.cache, key, #key)
end

--- Something was sealed: others may have to go soon.
function Spill:sealed() write_cold(self) end

--- Does what is to be done now; called again and again.
function Spill:turn() write_cold(self) end

--- Is a key's value below, or above?
function Spill:fetch(key)
  return self.store:has(key) or self.below:has(key)
end

--- Closes the store below, with the one above.
function Spill:close() self.below:close() end

return M
