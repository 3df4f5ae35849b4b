-- SPDX-License-Identifier: Apache-2.0
-- Children of benches, of which a comparison starts thousands.
local folders = require "bench.lib.folders"
local process = require "bench.lib.process"

local function files() return #folders.entries "/proc/self/fd" end

describe("children of a bench", function()
  it("leave no files open, however they end", function()
    local before = files()
    for i = 1, 20 do
      local child = assert(process.spawn { "sh", "-c",
                                           "echo $0; exit $0", i % 3 })
      if i % 2 == 0 then assert.equal(i % 3 .. "\n", child:rest()) end
      assert.equal(i % 3, child:wait())
      child:tell "too late\n"
    end
    local stopped = assert(process.spawn { "sleep", 60 })
    assert.equal(128 + 15, stopped:stop())
    assert.equal(before, files())
  end)

  it("are told of where they cannot be started", function()
    local child, why = process.spawn { "/nowhere/at-all" }
    assert.is_nil(child)
    assert.matches("/nowhere/at-all cannot be started", why, 1, true)
  end)
end)
