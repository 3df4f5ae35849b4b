-- SPDX-License-Identifier: Apache-2.0
-- Slices of one region on demand.
local cases = require "spec.support.cases"

local LENGTH = 2 ^ 20

after_each(cases.cleanup)

local function region(length, options)
  return assert(cases.engine():alloc(length or LENGTH, options))
end

-- The bytes that a slice takes.
local function taken(memory, slice)
  return math.max(1, math.ceil(slice.length / memory.align)) * memory.align
end

-- Checks that slices lie apart, and that the numbers are theirs.
local function check(memory, live)
  table.sort(live, function(a, b) return a.offset < b.offset end)
  local used, free_from = 0, 0
  for _, slice in ipairs(live) do
    assert(slice.offset >= free_from and slice.offset % memory.align == 0)
    free_from = slice.offset + taken(memory, slice)
    used = used + taken(memory, slice)
  end
  local stats = memory:stats()
  assert.equal(used, stats.used)
  assert.equal(stats.length, stats.used + stats.free)
  assert.equal(#live, stats.slices)
  assert.is_true(free_from <= stats.length and stats.high_water >= used)
end

-- Gives slices of random sizes and takes random ones back.
local function churn(memory, steps)
  local live = {}
  for i = 1, steps do
    if #live > 0 and math.random() < 0.48 then
      memory:free(table.remove(live, math.random(#live)))
    else
      local most = math.random() < 0.1 and LENGTH / 8 or 3000
      local n, largest = math.random(0, most), memory:stats().largest
      local slice = memory:alloc(n)
      assert(slice or n > largest, "what stats called the largest was refused")
      live[#live + 1] = slice
      assert(not slice or slice.length == n)
    end
    if i % 500 == 0 then check(memory, live) end
  end
  return live
end

describe("an allocator of a region", function()
  it("gives slices that lie apart, and becomes whole again", function()
    for _, align in ipairs { 64, 1, 4096 } do
      local memory = region():allocator { align = align }
      local live = churn(memory, 5000)
      assert.is_true(#live > 50)
      for _, slice in ipairs(live) do memory:free(slice) end
      local stats = memory:stats()
      assert.same({ LENGTH, 0, 0 }, { stats.largest, stats.used, stats.slices })
      memory:free(assert(memory:alloc(LENGTH)))
    end
  end)

  it("rounds up to its alignment, and no more", function()
    local memory = region(64 * 1000):allocator()
    for _ = 1, 1000 do assert(memory:alloc(64)) end
    assert.same({ nil, "no_memory" }, { (memory:alloc(0)),
                                        select(2, memory:alloc(0)).kind })
    assert.equal(0, memory:stats().largest)
    local odd = region(5000):allocator()      -- 78 times 64, and 8
    assert.equal(4992, odd:stats().largest)
    assert.equal(4992, assert(odd:alloc(4990)).length + 2)
    assert.equal(0, region(63):allocator():stats().length)
  end)

  -- One class has blocks of several sizes, the last one freed first.
  it("finds an exact hole behind smaller ones", function()
    local memory = region(2 ^ 24):allocator { align = 1 }
    local exact = {}
    for i = 1, 100 do
      exact[i] = assert(memory:alloc(100000))
      assert(memory:alloc(1))           -- holes stay apart
    end
    local less = assert(memory:alloc(99000))
    assert(memory:alloc(1))
    assert(memory:alloc(memory:stats().largest)) -- what is left over
    for _, slice in ipairs(exact) do memory:free(slice) end
    memory:free(less)
    assert.equal(100000, memory:stats().largest)
    for _ = 1, 100 do assert(memory:alloc(100000)) end
    assert.equal(99000, memory:stats().largest)
    assert(memory:alloc(99000))
  end)

  it("has no memory for what no region has", function()
    for _, align in ipairs { 1, 64, 4096 } do
      local memory = region():allocator { align = align }
      for _, n in ipairs { LENGTH + 1, 2 ^ 43, 2 ^ 50, 2 ^ 53 } do
        local slice, err = memory:alloc(n)
        assert.is_nil(slice)
        assert.equal("no_memory", err.kind)
      end
      assert(memory:alloc(LENGTH))
    end
  end)

  it("says how much there is where it has too little", function()
    local memory = region(LENGTH, { name = "kv", access = "r" }):allocator()
    local slices = {}
    for i = 1, 16 do slices[i] = assert(memory:alloc(LENGTH / 16)) end
    for i = 1, 16, 2 do memory:free(slices[i]) end
    local slice, err = memory:alloc(LENGTH / 16 + 1)
    assert.is_nil(slice)
    assert.equal("no_memory", err.kind)
    assert.equal('allocating 64 KiB of region "kv": 512 KiB are free, and the '
      .. "largest piece found has 64 KiB", err.message)
  end)

  it("blames the caller for a slice that it has not given", function()
    local one, other = region(), region()
    local memory = one:allocator()
    local slice = assert(memory:alloc(100))
    local function raises(text, value)
      local fine, why = pcall(function() memory:free(value) end)
      assert.is_false(fine)
      assert.matches("^spec/lua/allocator_spec.lua:%d+: free", why)
      assert.matches(text, why, 1, true)
    end
    raises("not a number", 7)
    raises("none of the allocator of an unnamed region", other:slice(0, 100))
    raises("not the slice itself", slice:slice(0, 50))
    raises("not the slice itself", one:slice(0, 100))
    memory:free(slice)
    raises("was freed before", slice)
    local again = assert(memory:alloc(100))
    assert.equal(slice.offset, again.offset)
    raises("was freed before", slice)           -- though its bytes are given
    memory:free(again)
    for _, n in ipairs { -1, 0.5, 0 / 0, "7" } do
      assert.matches("^spec/lua/allocator_spec.lua:%d+: alloc takes",
        select(2, pcall(function() memory:alloc(n) end)))
    end
    assert.matches("^spec/lua/allocator_spec.lua:%d+: option align",
      select(2, pcall(function() other:allocator { align = 48 } end)))
  end)

  it("is the only one of its region until it is closed", function()
    local one = region()
    local memory = one:allocator()
    assert.matches("^spec/lua/allocator_spec.lua:%d+: an unnamed region has an "
      .. "allocator already", select(2, pcall(function()
        one:allocator()
      end)))
    local slice = assert(memory:alloc(10))
    memory:close()
    memory:close()
    local _, err = memory:alloc(1)
    assert.equal("closed", err.kind)
    memory:free(slice)
    assert(one:allocator():alloc(LENGTH))
    assert(one:close())
    _, err = one.allocated:alloc(1)
    assert.equal("closed", err.kind)
    assert.is_false((pcall(function() one:allocator() end)))
  end)

  it("is what a store of more keys than regions may be is made of", function()
    local server = assert(cases.agent "store")
    local memory = server.engine:alloc(2 ^ 22):allocator()
    local blocks = {}
    server:serve { name = "store", methods = {
      put = {
        landing = function(length) return memory:alloc(length) end,
        abandoned = function(slice) memory:free(slice) end,
        function(slice, key)
          if blocks[key] then memory:free(blocks[key]) end
          blocks[key] = slice
          return slice.length
        end,
      },
      get = function(key) return blocks[key] end,
    } }
    local agent = assert(cases.agent())
    local store = assert(agent:proxy("store", "store", { timeout = 20 }))
    local source = agent.engine:alloc(4096)
    for i = 1, 3000 do
      local text = ("%d,"):format(i):rep(50)
      source:slice():write(text)
      assert(store:put(source:slice(0, #text), i))
    end
    assert.equal(3000, memory:stats().slices)
    for _, i in ipairs { 1, 1024, 1025, 3000 } do
      local got = assert(store:get(i))
      assert.equal(("%d,"):format(i):rep(50), got:string())
      got:close()
    end
    local _, err = store:put(agent.engine:alloc(2 ^ 23):slice(), "large")
    assert.equal("denied", err.kind)
    assert.matches("allocating 8 MiB of an unnamed region", err.message, 1,
                   true)
  end)

  it("keeps its region, and both are collected", function()
    local engine = cases.engine()
    local memory = engine:alloc(LENGTH):allocator()
    collectgarbage()
    assert.equal(1, engine:stats().regions)
    memory:alloc(8):write "12345678"
    memory = nil -- luacheck: ignore 311
    collectgarbage()
    collectgarbage()
    assert.equal(0, engine:stats().regions)
  end)
end)
