-- SPDX-License-Identifier: Apache-2.0
-- The notices that an agent gets of incoming sessions.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function caller(child, perigee_)
  local agent = assert(child.cases.agent("caller"))
  for line in child.attend do
    local session = assert(agent:session("worker"))
    if line == "call" then
      local proxy = assert(agent:proxy("worker", "x", { timeout = 30 }))
      child.say(proxy:order())
    elseif line == "leave" then
      session:close()
      child.say(perigee_.is_error(session.lost))
    end
  end
end

describe("agent:on_session()", function()
  local agent, log

  before_each(function()
    log = perigee.log
    agent = assert(cases.agent("worker"))
  end)
  after_each(function()
    perigee.log = log
    cases.cleanup()
  end)

  local function come(name)
    local other = assert(cases.agent(name))
    return assert(other:session("worker")), other
  end

  it("tells of each session that comes", function()
    local came = {}
    agent:on_session(function(session) came[#came + 1] = session end)
    for i = 1, 5 do
      come()
      assert.is_true(cases.eventually(function() return #came == i end))
      assert.equal(agent.engine, came[i].engine)
      for earlier = 1, i - 1 do
        assert.is_not.equal(came[earlier].epoch, came[i].epoch)
      end
      assert.equal("open", came[i]:explain().state)
    end
    perigee.sleep(0.01)
    assert.equal(5, #came)
  end)

  it("tells before the first call of a session, and of its end", function()
    local told = {}
    agent:on_session(function(session)
      told[#told + 1] = "came"
      perigee.spawn(function()
        local _, err = session:ended():wait()
        told[#told + 1] = err.kind
        told[#told + 1] = session:explain().state
      end)
    end)
    agent:serve { name = "x", methods = { order = function()
      told[#told + 1] = "called"
      return #told
    end } }
    local child = process.start(caller)
    child:tell("call")
    child:expect("2", 30 * cases.slow, function() perigee.sleep(0.001) end)
    child:tell("leave")
    child:expect("true", 30 * cases.slow, function() perigee.sleep(0.001) end)
    assert.is_true(cases.eventually(function() return #told == 4 end))
    assert.same({ "came", "called", "peer_lost", "ended" }, told)
  end)

  it("tells all functions, in order, until they are closed", function()
    local told = {}
    local function note(name)
      return function() told[#told + 1] = name end
    end
    local one = agent:on_session(note "one")
    local two = agent:on_session(note "two")
    come()
    assert.is_true(cases.eventually(function() return #told == 2 end))
    one:close()
    one:close()
    agent:on_session(note "three")
    come()
    assert.is_true(cases.eventually(function() return #told == 4 end))
    two:close()
    come()
    assert.is_true(cases.eventually(function() return #told == 5 end))
    assert.same({ "one", "two", "two", "three", "three" }, told)
  end)

  it("may be given more, and fewer, by a function that is told", function()
    local told, last = {}, nil
    local first
    first = agent:on_session(function()
      told[#told + 1] = "first"
      first:close()
      last:close()
      agent:on_session(function() told[#told + 1] = "new" end)
    end)
    last = agent:on_session(function() told[#told + 1] = "last" end)
    come()
    assert.is_true(cases.eventually(function() return #told == 1 end))
    come()
    assert.is_true(cases.eventually(function() return #told == 2 end))
    assert.same({ "first", "new" }, told)
  end)

  it("logs what a function raises, and goes on", function()
    local said, told = {}, 0
    perigee.log = function(level, message)
      said[#said + 1] = level .. ": " .. message
    end
    agent:on_session(function() error("on purpose") end)
    agent:on_session(function() perigee.sleep(1) end)
    agent:on_session(function() told = told + 1 end)
    agent:serve { name = "x", methods = { same = function(x) return x end } }
    local _, other = come()
    assert.equal(7, assert(other:proxy("worker", "x")):same(7))
    assert.equal(1, told)
    assert.equal(2, #said)
    assert.matches("^error: .*agent worker.*on purpose", said[1])
    assert.matches("on_session .* must not wait", said[2])
    assert.equal(7, assert(other:proxy("worker", "x")):same(7))
  end)

  for what, close in pairs {
    session = function(session) session:close() end,
    agent = function(session) session.engine.agent:close() end,
  } do
    it("may have the " .. what .. " closed by a function", function()
      local told = 0
      agent:on_session(close)
      agent:on_session(function() told = told + 1 end)
      local other = assert(cases.agent())
      local session, err = other:session("worker")
      if session then err = select(2, session:ended():wait(10)) end
      assert.is_true(perigee.is_error(err))
      assert.equal(0, told)
    end)
  end

  it("is not about sessions of this agent's own, or of other listeners",
     function()
    local told = 0
    local worker2 = assert(cases.agent("worker2"))
    agent:on_session(function() told = told + 1 end)
    assert(agent:session("worker2"))
    local listener = assert(agent.engine:listen(cases.address("other")))
    assert(worker2.engine:connect(listener.address))
    assert(listener:accept(10))
    assert.equal(0, told)
  end)

  it("wants a function, and an agent that is open", function()
    assert.has_error(function() agent:on_session() end)
    assert.has_error(function() agent:on_session("f") end)
    agent:close()
    assert.has_error(function() agent:on_session(print) end)
  end)
end)
