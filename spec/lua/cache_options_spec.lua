-- SPDX-License-Identifier: Apache-2.0
-- What perigee.cache takes as options, and how it tells what it does not take.
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local perigee = require "perigee"
local stores = require "perigee.cache.store"

-- Raises here what perigee.cache says of options: the misuse of this line.
local function refused(options, ...)
  options = caches.options(options)
  local fine, raised = pcall(function()
    perigee.cache(options)
  end)
  assert.is_false(fine)
  assert.matches("^spec/lua/cache_options_spec.lua:12: ", raised)
  for _, text in ipairs { ... } do assert.matches(text, raised, 1, true) end
end

describe("an option of a cache", function()
  after_each(cases.cleanup)

  it("that is out of its range is misuse, and told with the range", function()
    for _, name in ipairs { "lease", "margin", "decay" } do
      for _, value in ipairs { math.huge, 2 ^ 29, 0, -1, 0 / 0 } do
        refused({ [name] = value }, "option " .. name,
                "seconds, a microsecond to 268435456")
      end
    end
    refused({ keep = math.huge }, "option keep", "true, false or seconds")
    refused({ keep = 0 }, "option keep")
    for _, value in ipairs { 0, 65528, 1e6, 2 ^ 33 } do
      refused({ clients = value }, "option clients", "an integer of 1 to 65527")
    end
    for _, value in ipairs { 0, 7, 2 ^ 27 } do
      refused({ leases = value }, "option leases",
              "an integer of 8 to 67108864")
    end
    refused({ reservations = 2 ^ 32 }, "an integer of 1 to 4294967295")
    refused({ high = 0 }, "option high", "an integer of 1 to 100")
    refused({ low = 101 }, "option low", "an integer of 1 to 100")
    refused({ low = 80, high = 70 }, "80 percent", "70 percent")
  end)

  it("of memory for which there are too few regions is misuse", function()
    for _, options in ipairs {
      { memory = 2 ^ 33, slab = 2 ^ 20 }, { memory = 2 ^ 43 },
      { memory = 2 ^ 31, slab = 2 ^ 20, keep = true },
      { memory = 2 ^ 31, slab = 2 ^ 20, engine = { regions = 2048 } },
      { scopes = { one = 2 ^ 33, two = 2 ^ 24 }, slab = 2 ^ 20 },
    } do
      refused(options, "option memory of perigee.cache", "option slab")
    end
    refused({ memory = 2 ^ 31, slab = 2 ^ 20, keep = true },
            "2047 is the most that option keep keeps")
  end)

  it("that leaves a scope no memory is misuse", function()
    for _, options in ipairs {
      { memory = 2 ^ 21, scopes = { one = 2 ^ 21, "two" } },
      { memory = 2 ^ 20, scopes = { "one", "two" } },
      { scopes = { one = 2 ^ 30, "two" } },
    } do
      refused(options, "option scopes of perigee.cache", "option memory")
    end
  end)

  it("gives listed scopes equal parts of what the others leave", function()
    local function parts(options)
      local all = {}
      local cache = caches.open(options)
      for agent, store in pairs(cache.stores) do
        all[agent.scope] = store.memory
      end
      cache:close()
      return all
    end
    local M = 2 ^ 20
    assert.same({ one = 3 * M, two = 2 * M },
                parts { memory = M, scopes = { one = 3 * M, two = 2 * M } })
    assert.same({ one = M, two = 3 * M, three = 3 * M },
                parts { memory = 7 * M,
                        scopes = { one = M, "two", "three" } })
  end)

  it("may be of more memory than a thousand slabs of 256 MiB have", function()
    for _, memory in ipairs { 2 ^ 20, 2 ^ 30, 2 ^ 36, 500 * 2 ^ 30,
                              2 ^ 40 - 1, 3 * 2 ^ 40 } do
      local slabs = memory / stores.slab_of(memory)
      assert.is_true(slabs <= math.max(memory / 2 ^ 30, 512), slabs)
    end
  end)

  it("may have the first and the last value of its range", function()
    for _, options in ipairs {
      { lease = 2 ^ 28, margin = 2 ^ 28, decay = 2 ^ 28 },
      { lease = 1e-6, margin = 1e-6, decay = 1e-6, leases = 8 },
      { clients = 65527, reservations = 2 ^ 32 - 1, high = 100, low = 100 },
      { clients = 1, reservations = 1, high = 1, low = 1 } } do
      caches.open(options):close()
    end
  end)

  it("of its agent is told as the cache's, at the caller's line", function()
    refused({ foo = 1 }, 'perigee.cache has no option "foo"', " listen, ",
            " lease, ")
    refused({ listen = 7 }, "option listen of perigee.cache")
    refused({ services = { 7 } })
    refused({ secret = {} }, "option secret")
    refused({ secret = "short" })
    refused({ listen = "tcp://127.0.0.1" })
    refused({ engine = { faults = "drop=often" } })
    refused({ engine = { operatoins = 1 } })
  end)

  it("of where eviction begins or ends takes the other one along", function()
    for _, options in ipairs { { high = 80 }, { low = 96 }, { low = 50 },
                               { high = 99 } } do
      caches.open(options):close()
    end
  end)
end)
