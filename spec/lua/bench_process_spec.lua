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

describe("a bench that is pinned", function()
  -- Pins a process of its own.
  local function pinned(...)
    local child = assert(process.spawn { "sleep", 60 })
    local fine, why = process.pin(child.pid, ...)
    child:stop()
    return fine, why
  end

  it("is told of a core that cannot be", function()
    assert.is_true(pinned(process.allowed()[1]))
    for _, core in ipairs { 1024, 2 ^ 32, -1, 0.5, 0 / 0, 1 / 0 } do
      local fine, why = pinned(process.allowed()[1], core)
      assert.is_nil(fine, tostring(core))
      assert.matches(("or %s is not there for us"):format(core), why, 1, true)
    end
  end)

  for _, words in ipairs {
    "rpc.lua --pin 0,1024", "transfer.lua --pin 0,4294967296",
    "cache.lua --mode get --pin 0,1024", "c_calls.lua --pin 0,4294967296",
    "control.lua --only look --pin 1024,0",
    "worker.lua --listen tcp://127.0.0.1:0 --core 4294967296",
  } do
    it("ends with that in words: " .. words, function()
      local child = assert(process.spawn { "sh", "-c",
        "exec luajit bench/" .. words .. " 2>&1" })
      local text = child:rest()
      assert.equal(1, child:wait(), text)
      assert.matches("core %d+ is not there for us", text)
    end)
  end
end)
