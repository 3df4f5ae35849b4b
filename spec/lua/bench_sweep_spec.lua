-- SPDX-License-Identifier: Apache-2.0
-- Sweeps of a program's own services (perigee.bench).
local bench = require "perigee.bench"
local cases = require "spec.support.cases"
local histograms = require "perigee.bench.histogram"
local native = require "perigee.native"

describe("a sweep", function()
  after_each(cases.cleanup)

  local function run()
    local order = {}
    local rows = bench.sweep { seconds = 0.01, turns = 2 }
      :add("a", 100, function() order[#order + 1] = "a" end)
      :add("b", 0, function() order[#order + 1] = "b" end,
           function() order[#order + 1] = "floor" end)
      :run()
    return rows, order
  end

  it("has a row for each case, in the order of their adding", function()
    local rows = run()
    assert.same({ "a", "b" }, { rows[1].name, rows[2].name })
    for _, row in ipairs(rows) do
      assert.is_true(row.calls > 0)
      assert.is_true(row.p50_us <= row.p99_us and row.p99_us <= row.p999_us)
      assert.is_true(math.abs(row.calls_per_s * row.mean_us / 1e6 - 1) < 1e-6)
    end
    assert.is_true(rows[1].gb_per_s > 0)
    assert.equal(0, rows[2].gb_per_s)
  end)

  it("compares with a floor where a case has one", function()
    local rows = run()
    assert.is_nil(rows[1].ratio)
    assert.equal(rows[2].p50_us / rows[2].floor_p50_us, rows[2].ratio)
  end)

  it("has cases take turns, in the other order each second time", function()
    local _, order = run()
    local turns = {}
    for _, name in ipairs(order) do
      if turns[#turns] ~= name then turns[#turns + 1] = name end
    end
    assert.same({ "a", "b", "floor", "b", "floor", "a" }, turns)
  end)

  it("has no time of its own in a sample", function()
    local clock, new, ns = native.clock, histograms.new, 0
    finally(function() native.clock, histograms.new = clock, new end)
    -- Time goes on by what is done: 1 ns for a look at the clock.
    function native.clock()
      ns = ns + 1
      return ns
    end
    function histograms.new()
      local one = new()
      local add = one.add
      function one.add(...)
        ns = ns + 1000
        return add(...)
      end
      return one
    end
    local row = bench.sweep { seconds = 1e-4, turns = 1 }
      :add("a", 1, function() ns = ns + 10 end):run()[1]
    assert.is_true(row.calls > 1)
    assert.near(11e-3, row.mean_us, 1e-9)
  end)

  it("ends with what a case raises", function()
    assert.has_error(function()
      bench.sweep { seconds = 0.01, turns = 1 }
        :add("a", 1, function() error("a wrong reply", 0) end):run()
    end, "a wrong reply")
  end)

  it("is told as CSV and JSON", function()
    local rows = run()
    local listed = require "cjson.safe".decode(bench.json(rows))
    assert.same({ "a", "b" }, { listed[1].name, listed[2].name })
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local path = cases.folder .. "/rows.csv"
    assert(bench.csv(path, rows))
    local lines = {}
    for line in io.lines(path) do lines[#lines + 1] = line:match "^[^,]*" end
    assert.same({ "name", "a", "b" }, lines)
    assert.is_nil((bench.csv(cases.folder .. "/none/rows.csv", rows)))
  end)

  it("takes sizes as people write them", function()
    assert.same({ 64, 4096, 2 ^ 20 }, bench.sizes "64, 4K,1M")
    local none, why = bench.sizes "64,many"
    assert.is_nil(none)
    assert.matches("many", why)
    assert.has_error(function() bench.sweep { turns = 0 } end)
  end)
end)
