-- SPDX-License-Identifier: Apache-2.0
-- A handler may call. The driver calls a front, which calls a store in a third
-- process. The front tells the driver of its progress by calling back on the
-- session on which the call came.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local perigee = require "perigee"

local PRICES = { apple = 3, pear = 4, plum = 5 }

local function store()
  local agent = assert(perigee.agent { name = "store", scope = common.scope })
  agent:serve {
    name = "prices", version = 1,
    methods = {
      price = function(name)
        -- a slow handler blocks no other call
        perigee.sleep(0.01)
        return PRICES[name]
      end,
    },
  }
  common.ready()
end

local function front()
  local agent = assert(perigee.agent { name = "front", scope = common.scope })
  local prices = assert(agent:proxy("store", "prices", { timeout = 5 }))
  agent:serve {
    name = "shop", version = 1,
    methods = {
      total = function(basket)
        local context = perigee.context()
        local progress = assert(context:proxy("progress"))
        local futures, names = {}, {}
        for name in pairs(basket) do
          names[#names + 1] = name
          futures[#futures + 1] = prices.async:price(name)
        end
        assert(perigee.wait_all(futures, context:remaining()))
        local sum = 0
        for i, future in ipairs(futures) do
          sum = sum + basket[names[i]] * assert(future:wait())
          assert(progress:step(i, #futures))
        end
        return sum
      end,
    },
  }
  common.ready()
end

local function driver()
  local agent = assert(perigee.agent { scope = common.scope })
  local steps = {}
  agent:serve {
    name = "progress", version = 1,
    methods = {
      step = function(n, all)
        steps[#steps + 1] = n .. " of " .. all
        return true
      end,
    },
  }
  local shop = assert(agent:proxy("front", "shop", { timeout = 5 }))
  local sum = assert(shop:total { apple = 2, pear = 1, plum = 10 })
  assert(sum == 60, "the sum is wrong: " .. sum)
  assert(#steps == 3, "the front did not call back three times")
  print("the front asked the store and called back: "
    .. table.concat(steps, ", ") .. "; the total is " .. sum)
  agent:close()
end

common.main(driver, { store = store, front = front }, { "store", "front" })
