-- SPDX-License-Identifier: Apache-2.0
-- The memory that one peer can make others hold is limited to its share, and no
-- other peer notices. The C tests in shares_test.c have more kinds.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

-- An emulated device takes long for each session and each reply.
local SESSIONS, MESSAGES = cases.slow > 1 and 4 or 16, 1024

local function server(child)
  local agent = assert(child.cases.agent("worker"))
  local function held()
    local stats = agent.engine:stats()
    return stats.held_operations, stats.held_exposed, stats.held_pooled
  end
  agent:serve { name = "echo", version = 1, methods = {
    add = function(a, b) return a + b end,
    large = { raw = true, function() return ("x"):rep(2 ^ 20) end },
    held = held,
  } }
  child.say("ready")
  require("perigee").run()
end

-- Makes agents, each with a session to the worker, that send messages which no
-- one receives.
local function sender(child, perigee, _, sessions, messages)
  for _ = 1, tonumber(sessions) do
    local agent = assert(child.cases.agent())
    assert(agent:proxy("worker", "echo"))
    local session = select(2, next(agent.engine.sessions))
    local slice = agent.engine:alloc(4096):slice(0, 8)
    for _ = 1, tonumber(messages) do session:send(slice) end
  end
  perigee.sleep(0.5)
  child.say("sent")
  perigee.sleep(60)
end

-- Asks for large replies, and then does nothing at all.
local function asker(child, _, _, sessions)
  for _ = 1, tonumber(sessions) do
    local agent = assert(child.cases.agent())
    local echo = assert(agent:proxy("worker", "echo", { timeout = 60 }))
    for _ = 1, 256 do echo.async:large("x") end
  end
  child.say("asked")
  child.hear()
end

describe("beside a peer that makes a server hold what it can", function()
  local echo

  before_each(function()
    process.start(server):expect("ready")
    echo = cases.proxy("echo", { timeout = 5 * cases.slow })
  end)
  after_each(cases.cleanup)

  local function others_are_served()
    for i = 1, 200 do assert.equal(i + 1, (assert(echo:add(i, 1)))) end
    local late, agent = cases.proxy("echo", { timeout = 5 * cases.slow })
    for i = 1, 200 do assert.equal(i + 2, (assert(late:add(i, 2)))) end
    assert.equal(2 ^ 20, #assert(late:large("x")))
    agent:close()
  end

  -- Nothing is held except for the call that asks.
  local function nothing_is_left()
    assert.is_true(cases.eventually(function()
      local operations, exposed = assert(echo:held())
      return operations == 1 and exposed == 0
    end))
  end

  it("messages that nobody receives stop only their sender", function()
    local hog = process.start(sender, SESSIONS, MESSAGES)
    hog:expect("sent", 60 * cases.slow)
    assert.is_true(assert(echo:held()) > MESSAGES)
    others_are_served()
    hog:kill()
    nothing_is_left()
  end)

  it("replies that nobody takes stop only who asked for them", function()
    local hog = process.start(asker, SESSIONS)
    hog:expect("asked", 60 * cases.slow)
    others_are_served()
    local operations, exposed = assert(echo:held())
    assert.is_true(operations <= SESSIONS * 128, operations)
    assert.is_true(exposed < 2 ^ 29, exposed)
    hog:kill()
    nothing_is_left()
  end)

  it("a session tells what its peer may make this side hold", function()
    local _, agent = cases.proxy("echo")
    local session = select(2, next(agent.engine.sessions))
    local told = session:explain()
    assert.equal(1, told.shares.sessions.used)
    assert.is_true(told.shares.operations.most > 1000)
    assert.is_true(told.shares.pooled.most > 2 ^ 29)
    assert.equal(0, told.shares.refused)
    assert.matches("holds here: .*descriptors %d+ of %d+", tostring(told))
  end)
end)
