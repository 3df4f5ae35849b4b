-- SPDX-License-Identifier: Apache-2.0
-- No two have a name at a time, whoever is killed, stopped and cut off
-- (spec/hostile/holders.lua), and all that meet are told the same
-- (spec/hostile/meetings.lua), for some seconds over each store; and the judges
-- of that find what they must. "make hostile-names" goes on for minutes.
local cases = require "spec.support.cases"
local holders = require "spec.hostile.holders"
local meetings = require "spec.hostile.meetings"
local overlaps = require "spec.hostile.overlaps"
local stores = require "spec.hostile.stores"

describe("who judges holders of names", function()
  local function judged(...)
    local list = {}
    for i, text in ipairs { ... } do
      overlaps.read(list, i, text:gmatch "[^\n]+")
    end
    local found = overlaps.find(list)
    return #list, #found, found[1] and found[1].seconds
  end

  it("finds those of two at a time", function()
    assert.same({ 2, 1, 2 }, { judged("acts a 1 2\nacts a 5 6",
                                      "acts a 3 3\nacts a 6 6\nends a") })
    assert.same({ 3, 2, 1 }, { judged("acts a 1 2\nacts a 9 9",
      "acts a 3 3\nacts a 4 4\nends a\nacts a 5 5\nacts a 6 6") })
  end)

  it("lets follow who waited, and those between an end and an act", function()
    assert.same({ 2, 0 }, { judged("acts a 1 2\nacts a 3 3\nends a",
                                   "acts a 3 3\nacts a 6 6") })
    assert.same({ 2, 0 }, { judged("acts a 1 2\nacts a 9 9",
                                   "acts b 3 3\nacts b 6 6") })
    assert.same({ 3, 0 }, { judged("acts a 1 2\nacts a 3 3\nends a\n"
      .. "acts a 8 8\nacts a 9 9", "acts a 4 4\nacts a 7 7") })
  end)
end)

describe("a name", function()
  after_each(cases.cleanup)

  for _, store in ipairs(stores.quick) do
    it("is never two holders' in " .. store, function()
      local had, found
      for i = 1, 10 do                  -- on a slow machine nobody may get far
        had, found = holders.run { store = store, seconds = 2,
                                   seed = os.time() % 2 ^ 31 + i }
        assert.same({}, found)
        if had > 0 then return end
      end
      error "nobody ever had a name"
    end)
  end
end)

describe("who judges meetings", function()
  local function judged(...)
    local lives = {}
    for i, text in ipairs { ... } do
      local name, killed, lines = text:match "^(%w+)(%-?): ?(.*)$"
      lives[i] = { name = name, killed = killed == "-", lines = {} }
      for line in lines:gmatch "[^,]+" do
        table.insert(lives[i].lines, line)
      end
    end
    local results, complaints = meetings.judge(lives)
    return results, #complaints
  end

  it("finds who has not returned with the others", function()
    assert.same({ 2, 0 }, { judged("a: 0 a b", "b: 1 a b") })
    assert.same({ 1, 1 }, { judged("a: 0 a b", "b:") })
    assert.same({ 3, 1 }, { judged("a: 0 a b,0 a b", "b: 1 a b") })
    assert.same({ 3, 1 }, { judged("a: 0 a b", "b: 0 b c", "c: 1 b c") })
  end)

  it("does not look for the dead, nor for those whose call has failed",
     function()
    assert.same({ 1, 0 }, { judged("a: 0 a b", "b-:") })
    assert.same({ 1, 0 }, { judged("a: 0 a b", "b: timeout") })
    assert.same({ 2, 1 }, { judged("a: 0 a b,0 a b", "b-:") })
  end)

  it("finds who has another's rank", function()
    assert.same({ 2, 1 }, { judged("a: 0 a b", "b: 0 a b") })
  end)
end)

describe("people over a", function()
  after_each(cases.cleanup)

  for _, store in ipairs(stores.quick) do
    it(store .. " meet, whoever is killed, and all are told the same",
       function()
      local results, complaints = meetings.run { store = store, seconds = 1,
        seed = os.time() % 2 ^ 31 }
      assert.same({}, complaints)
      assert.is_true(results > 0)
    end)
  end
end)
