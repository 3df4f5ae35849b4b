-- SPDX-License-Identifier: Apache-2.0
-- Which of several caches has a key.
local process = require "spec.support.process"

after_each(process.cleanup)

describe("the caches of a key", function()
  -- In a child, which compiles all of its code, for each key again: so the
  -- first scores are the interpreter's, and those after them compiled code's.
  it("are different ones, while their scores are being compiled", function()
    local function choose(child)
      local ring = require "perigee.cache.ring"
      local members, same = {}, 0
      for i = 1, 3 do
        members[i] = { hash = ring.hash("cache:" .. i), weight = 1 }
      end
      jit.opt.start("hotloop=1", "hotexit=1")
      for i = 1, 1000 do
        jit.flush()
        local seen = {}
        for n = 1, 3 do
          local one = ring.owner(members, "k" .. i, n)
          if not one or seen[one] then same = same + 1 else seen[one] = true end
        end
      end
      child.say(tostring(same))
    end
    process.start(choose):expect("0")
  end)
end)
