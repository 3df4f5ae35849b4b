-- SPDX-License-Identifier: Apache-2.0
-- Copies of values in a client's own memory.
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local perigee = require "perigee"

local LENGTH = 50000
local PIECE = require "perigee.cache.native".C.PERIGEE_CACHE_PIECE

describe("a copy in a client's memory", function()
  local agent, region, cache, near, far

  local function opens()
    cache = assert(perigee.cache { name = "far", scope = cases.scope,
                                   memory = 2 ^ 24, lease = 0.3,
                                   checksum = true })
    assert(cases.eventually(function() return far:stats() end))
    assert(near:stats())
  end

  before_each(function()
    agent = assert(cases.agent())
    region = agent.engine:alloc(2 ^ 20)
    near = assert(agent:cache("far", { map = false, near = 2 ^ 20, stale = 0.5,
                                       reconnect = 20 }))
    far = assert(agent:cache("far", { map = false, reconnect = 20 }))
    opens()
  end)

  after_each(function()
    near:close()
    far:close()
    cache:close()
    cases.cleanup()
  end)

  local function put(key, seed)
    region:slice(0, LENGTH):write(cases.bytes(LENGTH, seed))
    assert(far:put(key, region:slice(0, LENGTH)))
  end

  local function is(key, seed)
    return assert(near:get(key)) == cases.bytes(LENGTH, seed)
  end

  local function hits() return cache:counters().hits end

  it("is given without a request, once its key was got twice", function()
    put("k", 1)
    assert.is_true(is("k", 1) and is("k", 1))
    local before = hits()
    assert.is_true(is("k", 1) and is("k", 1))
    local into = region:slice(LENGTH, LENGTH)
    assert.equal(LENGTH, assert(near:get("k", { into = into })).length)
    assert.is_true(into:string() == cases.bytes(LENGTH, 1))
    assert.equal(before, hits())
  end)

  it("is not given for long after another has put the key", function()
    put("k", 1)
    for _ = 1, 3 do assert.is_true(is("k", 1)) end
    put("k", 2)
    assert(cases.eventually(function() return is("k", 2) end))
    assert(far:delete "k")
    assert(cases.eventually(function() return near:get "k" == nil end))
  end)

  it("is not given once this client has put or deleted the key", function()
    put("k", 1)
    for _ = 1, 3 do assert.is_true(is("k", 1)) end
    assert(near:put("k", "own"))
    assert.equal("own", near:get "k")
    put("k", 1)
    for _ = 1, 3 do near:get "k" end
    assert(near:delete "k")
    assert.is_nil((near:get "k"))
  end)

  it("is not given once this client has got a newer value", function()
    local long = assert(agent:cache("far", { map = false, near = 2 ^ 20,
                                             stale = 60 }))
    put("k", 1)
    for _ = 1, 3 do assert(long:get "k") end
    assert.is_number(long.only.near:version "k")
    put("k", 2)
    long.only.leases:clear()
    local into = region:slice(LENGTH, LENGTH)
    assert.same({ LENGTH }, long:get_many { { key = "k", into = into } })
    assert.is_true(into:string() == cases.bytes(LENGTH, 2))
    assert.is_true(long:get "k" == cases.bytes(LENGTH, 2))
    long:close()
  end)

  it("is not given to clients of another life of the cache", function()
    put("k", 1)
    for _ = 1, 3 do assert.is_true(is("k", 1)) end
    cache:close()
    opens()
    put("k", 2)                         -- the same version as before
    assert.is_true(is("k", 2))
  end)

  it("leaves no key behind when it goes for others", function()
    local value = region:slice(0, 8000)
    for i = 1, 600 do assert(far:put("n" .. i, value)) end
    for i = 1, 1200 do assert(near:get("n" .. math.ceil(i / 2))) end
    local keys = 0
    for _ in pairs(near.only.near.till) do keys = keys + 1 end
    assert.is_true(keys <= 260, keys)   -- of 131 copies
  end)

  it("is not looked at once the client has been closed meanwhile", function()
    put("k", 1)
    for _ = 1, 3 do assert.is_true(is("k", 1)) end
    perigee.sleep(0.6)                  -- it is old: the cache is asked
    local got = perigee.spawn(function() return near:get "k" end)
    perigee.sleep(0)
    near:close()
    assert.is_true(got:wait(5) == cases.bytes(LENGTH, 1))
  end)

  it("is not taken for a value of the cache that takes the name", function()
    put("k", 1)
    for _ = 1, 3 do assert.is_true(is("k", 1)) end
    local keeper = assert(agent:cache("far", { map = false }))
    assert(keeper:get("k", { into = region:slice() })) -- the drain lasts
    local drained = perigee.spawn(function() return cache:drain(10) end)
    perigee.sleep(0.01)
    local successor = assert(perigee.cache { name = "far", scope = cases.scope,
                                             memory = 2 ^ 24 })
    cases.await(function() return (far:put("k", "other")) end) -- version 1, too
    perigee.sleep(0.6)                  -- the copy is old
    assert.is_true(near:get "k" == "other")
    drained:wait(20)
    successor:close()
  end)

  it("is none of bytes that are not those that were put", function()
    local checks = assert(agent:cache("far", { map = false, near = 2 ^ 20,
                                               stale = 5, checksum = true }))
    put("k", 1)
    for _, slab in pairs(caches.store(cache).slabs) do
      slab.pointer[100] = slab.pointer[100] + 1
    end
    for _ = 1, 5 do
      local value, err = checks:get "k"
      assert.is_true(value == nil)
      assert.equal("protocol", err.kind)
    end
    checks:close()
  end)

  -- Bytes of memory that copies have, but for their directory.
  local function taken()
    local bytes = 0
    for _, each in ipairs(near.only.near.regions) do
      bytes = bytes + each.length
    end
    return bytes - PIECE
  end

  it("goes for others, in as much memory as was given", function()
    for i = 1, 60 do put("k" .. i, i) end
    for _ = 1, 3 do
      for i = 1, 60 do assert.is_true(is("k" .. i, i)) end
    end
    assert.is_true(taken() > 0 and taken() <= 2 ^ 20, taken())
  end)

  -- Each length wants slabs of its own.
  it("has no more memory if copies of other lengths come", function()
    local before = agent.engine:stats().regions
    for round = 1, 3 do
      for kib = 40, 300, 20 do
        local key, value = "k" .. kib, region:slice(0, kib * 1024)
        assert(far:put(key, value))
        for _ = 1, 3 do assert(near:get(key)) end
        assert.is_true(taken() <= 2 ^ 20, ("round %d, copies of %d KiB: %d "
          .. "bytes"):format(round, kib, taken()))
      end
    end
    assert.is_true(agent.engine:stats().regions - before < 32)
  end)
end)
