-- SPDX-License-Identifier: Apache-2.0
-- The checker of caches (spec/support/cache_checker.lua), of a cache in memory
-- of a GPU, with memory of the host or a file below: some seconds of it, or as
-- many minutes as PERIGEE_CACHE_MINUTES says.
local cases = require "spec.support.cases"
local checker = require "spec.support.cache_checker"

local minutes = tonumber(os.getenv "PERIGEE_CACHE_MINUTES")
local seed = tonumber(os.getenv "PERIGEE_SEED") or os.time() % 2 ^ 30 + 1

describe("the checker of caches in memory of a GPU", function()
  after_each(cases.cleanup)

  for _, below in ipairs { "spill", "gpu_file" } do
    it(("finds nothing wrong (%s), seed %d"):format(below, seed), function()
      local faults, told = checker.run(minutes and minutes * 60 or 4, seed, nil,
                                       below)
      assert.same({}, faults, told)
      print("readers' gets, hits, and errors: " .. told)
    end)
  end
end)
