-- SPDX-License-Identifier: Apache-2.0
-- What the comparison's adapters in Python share, without a wheel: the checks
-- of bench/peers/peer.py, and what is said where wheels cannot be had.
local bench_process = require "bench.lib.process"
local wheels = require "bench.lib.compare.wheels"

-- Returns what a shell command prints, its errors too, and its exit status.
local function shell(command, ...)
  local pipe = io.popen(("{ %s; } 2>&1; echo $?"):format(command:format(...)))
  local text = pipe:read "*a"
  pipe:close()
  local said, status = text:match "^(.-)(%d+)\n$"
  return said, tonumber(status)
end

local function without_python()
  return not bench_process.installed "python3" and "there is no python3"
end

describe("an adapter in Python", function()
  local function answers(fault, bursts)
    if without_python() then pending(without_python()) end
    return shell("printf '%s' | python3 spec/support/planted_peer.py %s "
                 .. "client /tmp 8192 4 here", bursts, fault)
  end

  it("tells its version without starting anything", function()
    if without_python() then pending(without_python()) end
    assert.equal("Planted 1\n",
                 (shell "python3 spec/support/planted_peer.py true version"))
  end)

  it("answers bursts of each mode with its times", function()
    local said, status = answers("true", "verify 8192 1 3\\necho 8192 1 0.01\\n"
      .. "paced 64 1000 0.01\\n")
    assert.equal(0, status)
    assert.truthy(said:match "^ready\nok calls=3 seconds=[%d.]+ checked=24576 ")
    local _, count = said:gsub("ok calls=%d+ seconds=[%d.]+ checked=%d+ "
                               .. "ns=%d+:%d[%d:,]*\n", "")
    assert.equal(3, count)
  end)

  it("keeps as many calls under way as it was asked to", function()
    local said, status = answers("true threads", "pipelined 100 4 0.01\\n"
      .. "verify 100 4 5\\n")
    assert.equal(0, status)
    assert.truthy(said:match "^ready\nok calls=%d+ ")
    assert.truthy(said:match "\nok calls=8 seconds=[%d.]+ checked=800 ")
  end)

  it("finds a reply to another call", function()
    local said, status = answers("stale", "echo 8192 1 0.01\\n")
    assert.equal(1, status)
    assert.truthy(said:match "\nwrong the reply to call %d+ differs at byte ")
  end)

  it("finds a byte that was flipped", function()
    local said, status = answers("flip", "echo 8192 1 0.01\\n")
    assert.equal(1, status)
    assert.truthy(said:match "wrong the reply to call %d+ differs at byte 8191")
  end)

  it("finds a reply of another length", function()
    local said, status = answers("short", "")
    assert.equal(1, status)
    assert.truthy(said:match "^wrong the reply to call 1 has 63 bytes, not 64")
  end)

  it("ends with the end of its input", function()
    if without_python() then pending(without_python()) end
    local said, status = shell(
      "python3 spec/support/planted_peer.py true server /tmp 64 1 </dev/null")
    assert.equal("ready here\n", said)
    assert.equal(0, status)
  end)
end)

describe("wheels", function()
  it("are missing where there is no environment", function()
    assert.same({ "a==1" }, wheels.missing("/nonexistent", { "a==1" }))
  end)

  it("of which only headers are wanted go to a folder of their own", function()
    local command = wheels.command("venv", { "a==1" }, nil, "build/a")
    assert.matches("^'venv/bin/python' '%-m' 'pip' .*'%-%-target=build/a' "
                   .. "'a==1'$", command)
    assert.is_nil(wheels.command("venv", { "a==1" }):find "target")
  end)

  it("cannot be had without a network, which is said", function()
    assert.truthy(wheels.reason [[
WARNING: Retrying (Retry(total=0, ...)) after connection broken by
'NewConnectionError(...: [Errno 111] Connection refused'
ERROR: Could not find a version that satisfies the requirement a
ERROR: No matching distribution found for a
]]:match "is there a network")
  end)

  it("that do not exist are named", function()
    assert.equal("No matching distribution found for a==99", wheels.reason [[
ERROR: Could not find a version that satisfies the requirement a==99
ERROR: No matching distribution found for a==99
]])
  end)
end)
