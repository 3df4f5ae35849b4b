-- SPDX-License-Identifier: Apache-2.0
-- The checker of caches (spec/support/cache_checker.lua): some seconds of it,
-- or as many minutes as PERIGEE_CACHE_MINUTES says; and that it finds a reader
-- that breaks a rule.
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local checker = require "spec.support.cache_checker"

local minutes = tonumber(os.getenv "PERIGEE_CACHE_MINUTES")
local seconds = minutes and minutes * 60 or math.max(4, 400 * cases.scale)
local seed = tonumber(os.getenv "PERIGEE_SEED") or os.time() % 2 ^ 30 + 1

describe("the checker of caches", function()
  after_each(cases.cleanup)

  it("finds nothing wrong, seed " .. seed, function()
    local faults, told = checker.run(seconds, seed)
    assert.same({}, faults, told)
    print("readers' gets, hits, and errors: " .. told)
  end)

  it("finds nothing wrong of several caches and hot keys, seed " .. seed,
     function()
       local faults, told = checker.run(minutes and seconds or 4, seed, nil,
                                        false, true)
       assert.same({}, faults, told)
       print("readers' gets, hits, and errors: " .. told)
     end)

  for plant, rule in pairs(checker.PLANTS) do
    it("finds that a rule is broken: " .. plant, function()
      if plant == "same" and not caches.mapped then return end
      if not jit.status() then return end -- seldom found by slow readers
      local faults, told = checker.run(60 * cases.slow, seed, plant, false,
                                       rule.several)
      assert.is_true(#faults > 0, told)
      assert.matches(rule.several and "older than one before"
                     or "another value.s", table.concat(faults, "\n")
        :gsub("of key %d+", "another value's"))
    end)
  end
end)
