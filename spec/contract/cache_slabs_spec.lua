-- SPDX-License-Identifier: Apache-2.0
-- What a client has mapped of a cache of its host: no more than the cache has.
-- Values of other sizes have the cache replace its slabs.
local cases = require "spec.support.cases"
local caches = require "spec.support.caches"
local maps = require "perigee.cache.mapped"
local native = require "perigee.cache.native"
local perigee = require "perigee"

local ffi = require "ffi"

local MEMORY, LEASE = 2 ^ 23, 0.1
local SIZES = { 2 ^ 20, 3 * 2 ^ 17, 7 * 2 ^ 17, 2 ^ 17, 5 * 2 ^ 17 }

describe("what a client has mapped of a cache", function()
  before_each(function()
    caches.start(("{ memory = %d, slab = 2^20, lease = %g }"):format(MEMORY,
                                                                    LEASE))
  end)
  after_each(cases.cleanup)

  -- Puts, gets and deletes as many values as the cache has room for.
  local function fill(blocks, size, into)
    local count = math.floor(MEMORY / size) - 1
    for i = 1, count do
      assert(blocks:put("k" .. i, ("x"):rep(size)))
      assert.equal(size, assert(blocks:get("k" .. i, { into = into })).length)
    end
    for i = 1, count do blocks:delete("k" .. i) end -- some may have gone
    perigee.sleep(2 * LEASE)
  end

  local function fill_often(blocks, agent)
    local region = cases.alloc(agent.engine, 2 ^ 20)
    for _ = 1, 2 do
      for _, size in ipairs(SIZES) do fill(blocks, size, region:slice()) end
    end
  end

  for _, map in ipairs { true, false } do
    it("is what the cache has, whatever has come and gone, "
      .. (map and "by the map" or "by requests"), function()
      local blocks, agent = caches.client { map = map }
      local before = cases.mapped()
      fill_often(blocks, agent)
      -- The session, the directory and the slabs, which have 0.6 MiB at least.
      assert.is_true(cases.mapped() - before < 24, cases.mapped() - before)
    end)
  end

  it("is in place as long as there is a view of it", function()
    if not caches.mapped then return end
    local blocks, agent = caches.client {}
    assert(blocks:put("viewed", ("v"):rep(2 ^ 20)))
    local view = assert(blocks:view "viewed")
    local slabs, number = blocks.only.leases.slabs, view.lease.slab
    assert(blocks:delete "viewed")
    fill_often(blocks, agent)
    assert(blocks:put("other", ("o"):rep(2 ^ 20)))
    local other = assert(blocks:view "other")
    -- As if the cache had told of the next slab of that index.
    maps.lost(slabs, number)
    assert.is_nil(slabs[number])
    assert.equal(0, view:left())
    assert.equal(118, tonumber(view.pointer[2 ^ 20 - 1]))
    local before = cases.mapped()
    view:close()
    assert.is_true(cases.mapped() <= before)
    assert.equal(111, tonumber(other.pointer[2 ^ 20 - 1]))
    other:close()
  end)

  it("is nothing once the client is closed", function()
    local requests, agent = caches.client { map = false }
    assert(requests:put("k", ("x"):rep(2 ^ 19)))
    local region = cases.alloc(agent.engine, 2 ^ 20)
    assert(requests:get("k", { into = region:slice() }))
    local before = cases.mapped()
    local blocks = assert(agent:cache(caches.name))
    assert(blocks:get("k", { into = region:slice() }))
    if caches.mapped then assert.is_true(cases.mapped() > before) end
    blocks:close()
    assert.equal(before, cases.mapped())
    assert(requests:get("k", { into = region:slice() }))
  end)

  it("is nothing if the client is closed while it maps", function()
    local requests, agent = caches.client { map = false }
    assert(requests:put("k", "value"))
    assert.equal("value", requests:get "k")
    local before = cases.mapped()
    local blocks = assert(agent:cache(caches.name))
    local open, opened = maps.open, false
    finally(function() maps.open = open end)
    function maps.open(...)
      opened = true
      local map = open(...)
      blocks:close()
      return map
    end
    blocks:get "k"
    assert.is_true(opened)
    assert.equal(before, cases.mapped())
  end)
end)

ffi.cdef [[
struct spec_files { uint64_t soft, hard; };
int spec_files_get(int, struct spec_files *) __asm__("getrlimit");
int spec_files_set(int, const struct spec_files *) __asm__("setrlimit");
]]

-- Each slab is a region with a descriptor; an engine has 1024 regions, and a
-- process 1024 descriptors, unless they are told otherwise.
describe("a cache of many slabs", function()
  local FILES, MANY = 7, 1100           -- RLIMIT_NOFILE, of Linux
  local limit, before = ffi.new "struct spec_files", nil

  before_each(function()
    ffi.C.spec_files_get(FILES, limit)
    before = limit.soft
    limit.soft = limit.hard
    ffi.C.spec_files_set(FILES, limit)
  end)

  after_each(function()
    cases.cleanup()
    limit.soft = before
    ffi.C.spec_files_set(FILES, limit)
  end)

  -- Reserves places of a slab each, to which nothing is written: memory that
  -- nobody has written to takes none of the system's.
  it("uses all its memory", function()
    if cases.memory ~= "host" then return end
    local store = caches.store(caches.open {
      memory = MANY * 2 ^ 20, slab = 2 ^ 20, reservations = MANY })
    local client = tonumber(native.C.perigee_cache_client(store.cache))
    for i = 1, MANY do
      local entry, why = store:place_again(client, "key." .. i, 2 ^ 20, {})
      assert.is_truthy(entry, ("after %d slabs: %s"):format(i - 1, tostring(
        why)))
    end
    assert.equal(MANY * 2 ^ 20, store:counters().slabs)
  end)
end)
