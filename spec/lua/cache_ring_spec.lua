-- SPDX-License-Identifier: Apache-2.0
-- Which of several caches have a key.
local process = require "spec.support.process"
local ring = require "perigee.cache.ring"
local sets = require "perigee.cache.set"

after_each(process.cleanup)

describe("the caches of a key", function()
  -- In a child, which compiles all of its code, for each key again: so the
  -- first scores are the interpreter's, and those after them compiled code's.
  it("are different ones, while their scores are being compiled", function()
    local function choose(child)
      local rings = require "perigee.cache.ring"
      local members, same = {}, 0
      for i = 1, 3 do
        members[i] = { hash = rings.hash("cache:" .. i), weight = 1 }
      end
      jit.opt.start("hotloop=1", "hotexit=1")
      for i = 1, 1000 do
        jit.flush()
        local seen = {}
        for n = 1, 3 do
          local one = rings.owner(members, "k" .. i, n)
          if not one or seen[one] then same = same + 1 else seen[one] = true end
        end
      end
      child.say(tostring(same))
    end
    process.start(choose):expect("0")
  end)

  it("are different ones when one that was away is back meanwhile", function()
    local set = sets.new({}, { "cache:1", "cache:2", "cache:3" },
                         { replicas = 2 })
    local puts = {}
    for name, one in pairs(set.members) do
      puts[name] = 0
      one.ready = function() return true end
      one.put = function()
        puts[name] = puts[name] + 1
        return puts[name]
      end
    end
    local owner, away = ring.owner, set:owner("key", 1)
    set:leave(away, { kind = "peer_lost" })
    ring.owner = function(...)
      away.away, set.till = 0, 0
      return owner(...)
    end
    local _, count = set:all("key", "put")
    ring.owner = owner
    assert.equal(2, count)
    for name, n in pairs(puts) do assert.is_true(n < 2, name) end
  end)
end)
