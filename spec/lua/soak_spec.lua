-- SPDX-License-Identifier: Apache-2.0
-- bench/soak.lua finds what it is there for: each soak here has one planted
-- fault, and all run at once, for seconds.
local bit = require "bit"
local ffi = require "ffi"
local ledger = require "bench.lib.soak.ledger"
local letter = require "bench.lib.soak.letter"
local watch = require "bench.lib.soak.watch"

local SHORT = "--peers 2 --minutes 0.01 --round 0.5 --giant 0 --bulk 64K "
  .. "--timeout 0.2 --grace 1 --transport shm --calm --plant "
-- The report of each. If none but ends of receives are lost, nobody misses
-- them, but their sessions stay.
local PLANTS = {
  lost = { "missing end: peer 0, life 1: ", "growth: peer 0 keeps " },
  forgotten = { "missing end: peer 0, life 1: ", "miscount: peer 0, life 1: " },
  flip = { "mismatch: " },
  leak = { "growth: peer 0, life 1, descriptors at its rests: " },
}

local function says(text, any)
  for _, said in ipairs(any) do
    if text:find(said, 1, true) then return true end
  end
  return false, text:gsub("{[^\n]*\n", "") -- without the JSON
end

describe("the soak", function()
  local soaks = {}

  lazy_setup(function()
    for plant in pairs(PLANTS) do
      soaks[plant] = io.popen(("luajit bench/soak.lua %s%s 2>&1; "
        .. "echo ' status' $?"):format(SHORT, plant))
    end
  end)

  lazy_teardown(function()
    for _, pipe in pairs(soaks) do pipe:close() end
  end)

  for plant, said in pairs(PLANTS) do
    it("fails where a fault was planted: " .. plant, function()
      local text = soaks[plant]:read "*a"
      assert.is_true(says(text, said))
      assert.matches("FAILED: ", text, 1, true)
      assert.matches(" status 1", text, 1, true)
    end)
  end

  it("sees any byte of a payload that has changed", function()
    local length = 61
    local bytes = ffi.new("uint8_t[?]", length)
    for at = 0, length - 1 do
      letter.fill(bytes, length, 3, 7, 12345)
      assert.is_nil(letter.differs(bytes, length, 3, 7, 12345))
      bytes[at] = bit.bxor(bytes[at], 16)
      assert.is_truthy(letter.differs(bytes, length, 3, 7, 12345))
    end
  end)

  it("sees whose payload it is, which, and of which life", function()
    local bytes = ffi.new("uint8_t[?]", 64)
    letter.fill(bytes, 64, 3, 7, 12345)
    assert.same({ 3, 7, 12345 }, { letter.read(bytes, 64) })
    assert.matches("^payload 12345 of peer 3 .life 7. came for 12346",
                   letter.differs(bytes, 64, 3, 7, 12346))
    assert.matches("of a payload of 64", letter.differs(bytes, 60, 3, 7, 12345))
  end)

  it("demands at a rest that nothing is left, nor was dropped", function()
    local heard, fault = {}, ledger.fault
    local engine = { inflight = {}, flying = 0, replying = {}, landed = {},
                     contexts = {}, dropped = 0 }
    function engine:stats()
      return { dropped = self.dropped, operations = 3, held_operations = 2 }
    end
    local function look()
      heard = {}
      ledger.fault = function(kind, text, ...)
        heard[#heard + 1] = kind .. ": " .. text:format(...)
      end
      ledger.check_rest(engine)
      ledger.fault = fault
      return heard
    end
    assert.same({}, look())
    for _, name in ipairs { "replying", "landed", "contexts" } do
      engine[name][7] = true
      assert.same({ ("left behind: 1 entries of %s, one at 7"):format(name) },
                  look())
      engine[name][7] = nil
    end
    engine.dropped = 2
    assert.same({ "dropped: 2 events were dropped" }, look())
    engine.dropped, engine.flying = 0, 1
    assert.matches("^miscount: 1 operations .* 0 are known", look()[1])
  end)

  it("judges growth from the first rest to the last", function()
    local first = { descriptors = 11, threads = 1, mappings = 80, memory = 0 }
    local last = { descriptors = 16, threads = 1, mappings = 90,
                   memory = 2 ^ 20 }
    assert.same({ "descriptors at its rests: 11, 16" },
                watch.grown { first, last })
    assert.same({}, watch.grown { last, first })
    local large = { descriptors = 11, threads = 1, mappings = 80,
                    memory = 2 ^ 27 }
    assert.same({}, watch.grown { first, large, large, large })
    assert.same({ "memory (MiB) at its rests: 0, 0, 128" },
                watch.grown { first, first, large })
  end)

  it("does not take what a first use maps, between two rests, for growth",
     function()
    local before = { descriptors = 9, threads = 1, mappings = 70, memory = 0 }
    local after = { descriptors = 13, threads = 1, mappings = 177, memory = 0 }
    assert.same({}, watch.grown { before, after })
    assert.same({}, watch.grown { before, after, after })
    assert.same({ "mappings at its rests: 70, 70, 177" },
                watch.grown { before, before, after })
  end)
end)
