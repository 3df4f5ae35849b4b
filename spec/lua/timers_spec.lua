-- SPDX-License-Identifier: Apache-2.0
local timers = require "perigee.runtime.timers"

describe("timers", function()
  after_each(function()
    while timers.due(math.huge) do end -- luacheck: ignore
  end)

  it("come due in the order of their times", function()
    local times = {}
    for i = 1, 500 do times[i] = (i * 7919) % 503 end
    for _, at in ipairs(times) do timers.add { at = at } end
    table.sort(times)
    assert.equal(times[1], timers.earliest())
    for _, at in ipairs(times) do
      assert.is_nil(timers.due(at - 1))
      assert.equal(at, timers.due(at).at)
    end
    assert.equal(math.huge, timers.earliest())
  end)

  it("can be removed from anywhere, once or again", function()
    local entries = {}
    for i = 1, 300 do
      entries[i] = { at = (i * 6151) % 311 }
      timers.add(entries[i])
    end
    for i = 1, 300, 3 do
      timers.remove(entries[i])
      timers.remove(entries[i])
    end
    local last, n = -1, 0
    for entry in function() return timers.due(math.huge) end do
      assert.is_true(entry.at >= last)
      last, n = entry.at, n + 1
    end
    assert.equal(200, n)
  end)
end)
