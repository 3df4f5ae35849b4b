-- SPDX-License-Identifier: Apache-2.0
-- The counters of an engine's waits. C decides how long they poll
-- (spec/native/spin_test.c); this checks that Lua's waits follow it.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local CALLS, LATE = 30, 0.03

local function server(child, _, _, late)
  local agent = assert(child.cases.agent("worker"))
  agent:serve { name = "late", version = 1, methods = {
    same = function(x)
      require("perigee").sleep(tonumber(late))
      return x
    end,
  } }
  child.say("ready")
  require("perigee").run()
  agent:close()
end

describe("waits for what comes late", function()
  setup(function() process.start(server, LATE):expect("ready") end)
  teardown(cases.cleanup)

  local function spins(options)
    local engine = { spin = 0.001, spin_always = options }
    local agent = assert(perigee.agent { scope = cases.scope, engine = engine })
    local proxy = assert(agent:proxy("worker", "late"))
    local before = agent.engine:stats().spins
    for i = 1, CALLS do assert.equal(i, proxy:same(i)) end
    local after = agent.engine:stats().spins
    agent:close()
    return after - before
  end

  it("poll for a moment only, once that has never paid", function()
    assert.is_true(spins(nil) < CALLS / 2)
  end)

  it("poll each time where they are told to", function()
    assert.is_true(spins(true) >= CALLS)
  end)
end)
