-- SPDX-License-Identifier: Apache-2.0
-- No two have a name at a time, whoever is killed, stopped and cut off
-- (spec/hostile/holders.lua), for some seconds over each store; and the judge
-- of that finds what it must. "make hostile-names" goes on for minutes.
local cases = require "spec.support.cases"
local holders = require "spec.hostile.holders"
local overlaps = require "spec.hostile.overlaps"

describe("who judges holders of names", function()
  local function judged(ttl, ...)
    local list = {}
    for i, text in ipairs { ... } do
      overlaps.read(list, i, text:gmatch "[^\n]+", 100, ttl)
    end
    local found = overlaps.find(list)
    return #list, #found, found[1] and found[1].seconds
  end

  it("finds those of two at a time", function()
    assert.same({ 2, 1, 2 }, { judged(math.huge, "has a 1 2\nends a 5",
                                      "has a 3 3\nends a 6") })
    assert.same({ 2, 1, 90 }, { judged(math.huge, "has a 1 2",
                                       "has a 3 10\n") })
    assert.same({ 3, 2, 1 }, { judged(math.huge, "has a 1 2\nends a 9",
      "has a 3 3\nends a 4", "has a 5 6\nlost a 7") })
  end)

  it("lets follow who waited", function()
    assert.same({ 2, 0 }, { judged(math.huge, "has a 1 2\nends a 3",
                                   "has a 1 3\nends a 6") })
    assert.same({ 2, 0 }, { judged(math.huge, "has a 1 2\nends a 9",
                                   "has b 3 3\nends b 6") })
    assert.same({ 2, 0 }, { judged(5, "has a 1 2", "has a 6 6\n") })
  end)

  it("counts a TTL from the last renewal that was answered", function()
    assert.same({ 2, 1, 1 }, { judged(5, "has a 1 2\nrenewed a 4 5",
                                      "has a 8 8\nends a 20") })
    assert.same({ 3, 0 }, { judged(5, "has a 1 2\nrenewed a 8 9\nends a 10",
                                   "has a 7 7\nends a 8") })
  end)
end)

describe("a name", function()
  after_each(cases.cleanup)

  for store in pairs(holders.stores) do
    it("is never two holders' in " .. store, function()
      local had, found
      for i = 1, 5 do                   -- on a slow machine nobody may get far
        had, found = holders.run { store = store, seconds = 10,
                                   seed = os.time() % 2 ^ 31 + i }
        assert.same({}, found)
        if had > 0 then return end
      end
      error "nobody ever had a name"
    end)
  end
end)
