-- SPDX-License-Identifier: Apache-2.0
-- A peer that does not drain stops only its own session: its requests wait,
-- memory stays bounded, other sessions are served at once.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

-- KiB that a worker may grow by, and seconds that a call may take: less than if
-- it waited for the peer that does not drain.
local MEMORY = cases.sanitized and math.huge or 64 * 1024
local SOON = 1.5 * cases.slow

local function server(child)
  child.serve {
    name = "echo", version = 1,
    methods = {
      echo = { raw = true, function(request) return request end },
      large = { raw = true, function() return ("x"):rep(60000) end },
      add = function(a, b) return a + b end,
    },
  }
end

-- Submits calls, then neither polls nor reads for two seconds, then receives
-- the replies and checks them.
local function flood(child, perigee, _, method, count)
  local agent = assert(child.cases.agent())
  local echo = assert(agent:proxy("worker", "echo", { timeout = 60 }))
  local futures = {}
  for i = 1, tonumber(count) do
    local text = tostring(i) .. (" "):rep(200)
    futures[i] = echo.async[method](echo.async, text)
  end
  child.say("submitted")
  child.hear()
  for i, future in ipairs(futures) do
    local got, err = future:wait(60)
    assert(got, tostring(err))
    assert(method == "large" and #got == 60000 or tonumber(got) == i)
  end
  child.say("all there")
  perigee.sleep(0)
end

describe("a peer that does not drain its replies", function()
  local worker, echo

  before_each(function()
    worker = process.start(server):expect("ready")
    echo = cases.proxy("echo", { timeout = 5 * cases.slow })
  end)
  after_each(cases.cleanup)

  -- Makes calls for so many seconds; returns the longest time and the number.
  local function call_for(seconds)
    local longest, count, before = 0, 0, process.now()
    local limit = before + seconds
    repeat
      assert.equal(count, (assert(echo:add(count, 0))))
      count = count + 1
      local now = process.now()
      longest, before = math.max(longest, now - before), now
    until now > limit
    return longest, count
  end

  for _, method in ipairs { "echo", "large" } do
    it("stops only its own session, with " .. method, function()
      call_for(0.5)
      local before = worker:number("status", "VmRSS")
      local flooder = process.start(flood, method, 10000)
      flooder:expect("submitted", 60)
      local longest, count = call_for(2)
      local after = worker:number("status", "VmRSS")
      assert.is_true(after - before < MEMORY, after - before)
      assert.is_true(longest < SOON, ("%d calls, the longest took %.2f s")
        :format(count, longest))
      flooder:tell("go on")
      flooder:expect("all there", 120)
      assert.equal(3, (echo:add(1, 2)))
    end)
  end

  it("bounds the memory of whoever submits too", function()
    worker:signal("STOP")
    local flooder = process.start(function(child, perigee)
      local agent = assert(child.cases.agent())
      child.say("dialling")
      local none, err = agent:proxy("worker", "echo", { timeout = 0.3 })
      child.say(none and "?" or err.kind)
      perigee.sleep(0)
    end)
    flooder:expect("dialling")
    flooder:expect("timeout", 5)
    worker:signal("CONT")
    assert.equal(3, (echo:add(1, 2)))
  end)
end)
