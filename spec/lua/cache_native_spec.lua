-- SPDX-License-Identifier: Apache-2.0
-- The cache's store, driven from Lua as a service will: memory that is given
-- when it is wanted, a put, a request, and a look into the directory.
local ffi = require "ffi"
local native = require "perigee.cache.native"

local C = native.C

-- A store with the memory that it wants.
local function store(options)
  local out, self = native.cache_out_t(), { slabs = {}, pieces = {} }
  assert.equals(0, C.perigee_cache_open(native.options_t(options), 0, out))
  self.cache = ffi.gc(out[0], C.perigee_cache_close)
  function self.feed()
    local want = native.want_t()
    C.perigee_cache_wants(self.cache, want)
    if want.slab > 0 then
      local slab = ffi.new("char[?]", want.slab)
      local number = C.perigee_cache_add(self.cache, slab, want.slab)
      self.slabs[tonumber(number)] = slab
    end
    if want.pieces > 0 then
      local all = ffi.new("char[?]", C.PERIGEE_CACHE_PIECE + 4096)
      local at = ffi.cast("uintptr_t", all)
      local piece = all + tonumber((4096 - at % 4096) % 4096)
      local number = C.perigee_cache_grow(self.cache, piece)
      self.pieces[tonumber(number)] = { all, piece }
    end
  end
  self.feed()
  self.client = tonumber(C.perigee_cache_client(self.cache))
  return self
end

local function put(self, key, value)
  local place = native.place_t()
  local what = native.put_t { length = #value, client = self.client }
  local status
  repeat
    status = C.perigee_cache_reserve(self.cache, key, #key, what, 0, place)
    if status == C.PERIGEE_CACHE_WANTS then self.feed() end
  until status ~= C.PERIGEE_CACHE_WANTS
  assert.equals(0, status)
  ffi.copy(self.slabs[place.slab] + place.offset, value, #value)
  return tonumber(C.perigee_cache_seal(self.cache, place.entry, 0, 0))
end

describe("The cache's store", function()
  local self

  before_each(function()
    self = store { quota = 2 ^ 24, slab = 2 ^ 20 }
    assert.equals(1, put(self, "key", "value"))
  end)

  it("answers a request with a small value", function()
    local request = "\1\3\1\0\1\0\0\0\3\0key" -- LOCATE, values of up to 1 KiB
    local reply = ffi.new "uint8_t[512]"
    local n = C.perigee_cache_answer(self.cache, self.client, request, #request,
      reply, 512, 0)
    assert.equals(8 + 4 + 56 + 4 + 5, tonumber(n))
    assert.equals("value", ffi.string(reply + 72, 5))
  end)

  it("is seen in its directory", function()
    local view, place = C.perigee_cache_view_open(), native.place_t()
    C.perigee_cache_view_piece(view, 0, self.pieces[0][2])
    assert.equals(0, C.perigee_cache_seen(view, "key", 3, place))
    assert.equals("value",
      ffi.string(self.slabs[place.slab] + place.offset, place.length))
    assert.equals(1, C.perigee_cache_same(view, "key", 3, place))
    assert.equals(0, C.perigee_cache_delete(self.cache, "key", 3))
    assert.equals(0, C.perigee_cache_same(view, "key", 3, place))
    C.perigee_cache_view_close(view)
  end)

  it("counts", function()
    local counters = native.counters_t()
    C.perigee_cache_count(self.cache, counters)
    assert.equals(1, tonumber(counters.entries))
    assert.equals(5, tonumber(counters.values))
  end)
end)
