-- SPDX-License-Identifier: Apache-2.0
-- bench/cache.lua: each mode in short, with its bytes checked, and what its
-- JSON has. Times mean nothing here.
local cases = require "spec.support.cases"
local cjson = require "cjson"
local crowd = require "bench.lib.cache.crowd"
local ffi = require "ffi"
local gets = require "bench.lib.cache.gets"
local loops = require "bench.lib.cache.loops"
local payload = require "bench.lib.payload"

local BRIEF = " --json --turns 1 --seconds 0.02 --stir 1"

-- Returns what a command prints, and its status.
local function shell(line)
  local pipe = io.popen(("(%s) 2>&1; echo \" status $?\""):format(line))
  local text = pipe:read "*a"
  pipe:close()
  local said, status = text:match "^(.*) status (%d+)\n$"
  return said, tonumber(status)
end

local function document(words)
  local text, status = shell("luajit bench/cache.lua " .. words .. BRIEF)
  assert.equal(0, status, text)
  return cjson.decode(text)
end

describe("bench/cache.lua", function()
  -- Benches make their folders below it.
  before_each(function() os.execute("mkdir -p -m 700 " .. cases.folder) end)
  after_each(cases.cleanup)

  -- A mode, its floor, and its sizes.
  local MODES = {
    { "get", "one-sided read", { 4096, 2 ^ 18, 2 ^ 24 } },
    { "get_new", "raw echo", { 4096 }, " --sizes 4K" },
    { "get_new", "one-sided read", { 2 ^ 18 }, " --sizes 256K" },
    { "get_held", "one-sided read", { 4096, 2 ^ 18 }, " --sizes 4K,256K" },
    { "view", "view of 64 B", { 2 ^ 24 } },
    { "view_new", "view of 64 B", { 2 ^ 24 } },
    { "put", "landed call", { 4096, 65536, 2 ^ 22 } },
    { "get_many", "strided read", { 61 * 65536 } },
    { "get_many_new", "strided read", { 61 * 65536 } },
    { "get_many_held", "strided read", { 61 * 65536 } },
    { "match", "raw echo", { 32000 } },
    { "has", "cache line", { 64 } },
    { "prefix", "memcpy", { 2 ^ 26 } },
    { "prefix_new", "memcpy", { 2 ^ 26 } },
    { "clients", "typed calls", { 64, 4096 } },
    { "clients_lua", "typed calls", { 64, 4096 } },
    { "clients_map", "typed calls", { 64, 4096 } },
  }
  for _, case in ipairs(MODES) do
    local mode, floor, sizes, words = unpack(case)
    it(("has rows of %s%s"):format(mode, words or ""), function()
      local rows = document("--mode " .. mode .. (words or "")).rows
      assert.equal(#sizes, #rows)
      for i, row in ipairs(rows) do
        assert.equal(mode, row.mode)
        assert.equal(sizes[i], row.size)
        assert.equal(floor, row.floor)
        assert.is_true(row.calls > 0)
        assert.is_true(0 < row.p50_us and row.p50_us <= row.p99_us)
        assert.is_true(0 < row.floor_p50_us
                       and row.floor_p50_us <= row.floor_p99_us)
        assert.is_true(row.ratio > 0)
        assert.is_true(not row.reach or row.reach > row.beyond)
      end
    end)
  end

  it("tells of hits and misses of many clients", function()
    local row = document("--mode clients --sizes 64 --clients 3").rows[1]
    assert.equal(3, row.window)
    assert.is_true(row.hit_share > 0.1 and row.hit_share < 1)
    assert.is_true(row.hits_per_s <= row.calls_per_s)
  end)

  it("tells of the memory of a cache that is long full", function()
    local figures = document("--mode memory").figures
    assert.is_true(figures.memory_evicted > 0 and figures.memory_puts > 0)
    assert.is_true(figures.memory_start_mib > 0)
    assert.equal(figures.memory_end_mib - figures.memory_start_mib,
                 figures.memory_grown_mib)
  end)

  it("has rows of other caches, or says which are not there", function()
    local rows = document("--mode peers --sizes 4K").rows
    local known = {}
    for _, row in ipairs(rows) do
      known[row.mode] = true
      local peer = row.mode:match "/(.*)$"
      if row.no_floor then
        assert.matches("is not there", row.no_floor, 1, true)
      else
        assert.equal(peer, row.floor)
        assert.is_true(row.ratio > 0)
      end
    end
    for _, peer in ipairs { "redis", "memcached", "mooncake" } do
      for _, call in ipairs { "get", "get_new", "put" } do
        assert.is_true(known[call .. "/" .. peer])
      end
    end
  end)

  it("runs all of its modes unless told", function()
    local text, status = shell "luajit bench/cache.lua --help"
    assert.equal(0, status)
    for _, case in ipairs(MODES) do assert.matches(case[1], text, 1, true) end
  end)

  it("ends with 1 where it is told of no such mode", function()
    local text, status = shell "luajit bench/cache.lua --mode nothing"
    assert.is_true(status ~= 0)
    assert.matches("unknown mode 'nothing'", text, 1, true)
  end)

  it("asks for keys as Zipf's law says", function()
    local times = {}
    for _, n in ipairs(crowd.zipf(1000, 100000)) do
      assert.is_true(n >= 1 and n <= 1000 and n % 1 == 0)
      times[n] = (times[n] or 0) + 1
    end
    -- 1 / n ^ 0.99: the first is asked for 9.8 times as often as the tenth.
    local ratio = times[1] / times[10]
    assert.is_true(ratio > 8 and ratio < 12, ratio)
  end)

  it("finds the bytes of another value", function()
    local memory = payload.private(8192)
    loops.fill(memory, 8192, 1)
    local whole = loops.whole("get", 8192)
    loops.check("get", memory, 8192, 1)
    whole(memory, 1)
    assert.has_error(function() loops.check("get", memory, 8192, 2) end,
                     "get: wrong bytes")
    memory[5000] = 7                    -- no stamp
    loops.check("get", memory, 8192, 1)
    assert.has_error(function() whole(memory, 1) end, "get: wrong bytes")
  end)

  describe("finds in places that have the right bytes from before", function()
    local LENGTH, PART = 4 * payload.PAGE, 2 * payload.PAGE
    local room = payload.private(2 * LENGTH)
    -- Two items of two parts each, which do not lie in order.
    local places = { length = LENGTH, { room + PART, room },
                     { room + LENGTH, room + LENGTH + PART } }

    -- Fills them, but for as many bytes at the end of each part.
    local function filled(but)
      local value = payload.private(LENGTH)
      return function()
        for i, pointers in ipairs(places) do
          loops.fill(value, LENGTH, i)
          for j, pointer in ipairs(pointers) do
            ffi.copy(pointer, value + (j - 1) * PART, PART - but)
          end
        end
      end
    end

    -- Makes a sample, and then the end of a turn.
    local function turn(one)
      local before, after, whole = gets.looks("get_many", places, one)
      before()
      one()
      return after, whole
    end

    before_each(filled(0))

    it("nothing where all came", function()
      local after, whole = turn(filled(0))
      after()
      whole()
    end)

    it("a page that did not come", function()
      assert.has_error(turn(filled(payload.PAGE)), "get_many: wrong bytes")
    end)

    it("a byte that did not come", function()
      local after, whole = turn(filled(1))
      after()
      assert.has_error(whole, "get_many: wrong bytes")
    end)
  end)
end)
