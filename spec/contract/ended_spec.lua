-- SPDX-License-Identifier: Apache-2.0
-- The future of a session's end: it ends once, for all who wait, with the error
-- that explains the end, in tasks and outside of them.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function wrong(kind, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err), tostring(err))
  assert.equal(kind, err.kind, tostring(err))
  return err
end

local function worker(child)
  child.serve { name = "x", methods = {
    same = function(x) return x end } }
end

describe("session:ended()", function()
  local listener, near, far

  before_each(function()
    listener = assert(cases.engine():listen(cases.address()))
    near = assert(cases.engine():connect(listener.address))
    far = assert(listener:accept(10))
  end)
  after_each(cases.cleanup)

  it("is pending while the session is open", function()
    local future = near:ended()
    assert.is_false(future:done())
    wrong("timeout", future:wait(0.01))
    assert.is_false(future:done())
    assert.equal(future, near:ended())
  end)

  it("tells both sides who closed it", function()
    local mine, theirs = near:ended(), far:ended()
    near:close()
    assert.is_true(mine:done())
    assert.matches("was closed", tostring(wrong("closed", mine:wait(10))))
    local err = wrong("peer_lost", theirs:wait(10))
    assert.matches("is lost", tostring(err))
    near:close()
    far:close()
    assert.equal(err, select(2, theirs:wait(10)))
    assert.equal(err, select(2, far:ended():wait(10)))
  end)

  it("has settled for who asks after the end", function()
    near:close()
    local future = near:ended()
    assert.is_true(future:done())
    wrong("closed", future:wait(0))
    assert.is_true(cases.eventually(function() return not far.handle end))
    wrong("peer_lost", far:ended():wait(0))
  end)

  it("tells of the engine's end", function()
    local mine = near:ended()
    near.engine:close()
    assert.is_true(mine:done())
    assert.matches("engine", tostring(wrong("closed", mine:wait(10))))
    wrong("closed", near:ended():wait(10))
  end)

  it("tells all who wait", function()
    local waits, order = {}, {}
    for i = 1, 50 do
      waits[i] = perigee.spawn(function()
        local _, err = far:ended():wait()
        order[#order + 1] = i
        return err
      end)
    end
    perigee.sleep(0.001)
    near:close()
    local why = wrong("peer_lost", far:ended():wait(10)) -- outside of a task
    assert.is_true(perigee.wait_all(waits, 10))
    for i = 1, 50 do
      assert.equal(i, order[i])
      assert.equal(why, (waits[i]:wait(10)))
    end
  end)

  it("is waited for beside other futures", function()
    local receive = far:recv(cases.alloc(far.engine, 64):slice())
    local future = far:ended()
    near:close()
    assert.is_truthy(perigee.wait_any({ future, receive }, 10))
    assert.is_nil(perigee.wait_all({ future, receive }, 10))
    assert.is_true(future:done())
    wrong("peer_lost", receive:wait(0))
  end)

  it("cannot be cancelled by one of those who wait", function()
    near:ended():cancel()
    assert.is_false(near:ended():done())
    near:close()
    wrong("closed", near:ended():wait(10))
    near:ended():cancel()
    wrong("closed", near:ended():wait(10))
  end)

  it("keeps neither session nor engine from going", function()
    local weak = setmetatable({ near }, { __mode = "k" })
    weak[near], weak[1] = true, nil
    assert.is_false(near:ended():done())
    near:close()
    near.engine:close()
    near = nil
    cases.opened[#cases.opened] = nil
    assert.is_true(cases.eventually(function()
      collectgarbage()
      return next(weak) == nil
    end))
  end)
end)

describe("the end of a session with a process", function()
  after_each(cases.cleanup)

  it("that was killed is told", function()
    local child = process.start(worker):expect("ready", 30 * cases.slow)
    local agent = assert(cases.agent())
    local session = assert(agent:session("worker"))
    local future = perigee.spawn(function() return session:ended():wait() end)
    perigee.sleep(0.001)
    child:kill()
    local err = wrong("peer_lost", future:wait(20 * cases.slow))
    assert.matches("worker", tostring(err))
    assert.equal("ended", session:explain().state)
  end)

  it("is told by the kept session's own future only if this side closes it",
     function()
    local child = process.start(worker):expect("ready", 30 * cases.slow)
    local agent = assert(cases.agent())
    local kept = assert(agent:session("worker", { keep = true,
                                                  reconnect = 20 }))
    local session, future = assert(kept:session(5)), kept:ended()
    assert.equal(future, kept:ended())
    child:kill()
    wrong("peer_lost", session:ended():wait(20 * cases.slow))
    assert.is_false(future:done())
    process.start(worker):expect("ready", 30 * cases.slow)
    assert.is_false(kept:session(20 * cases.slow) == session)
    future:cancel()
    assert.is_false(future:done())
    kept:close()
    wrong("closed", future:wait(0))
    assert.is_nil(next(agent.awaited))
  end)

  for what, close in pairs {
    session = function(_, session) session:close() end,
    agent = function(agent) agent:close() end,
  } do
    it("is told by the kept session's future when the " .. what .. " is closed",
       function()
      local owner, agent = assert(cases.agent "owner"), assert(cases.agent())
      local kept = assert(agent:session("owner", { keep = true }))
      local waiting = perigee.spawn(function() return kept:ended():wait() end)
      perigee.sleep(0.001)
      close(agent, kept:session(5))
      wrong("closed", waiting:wait(5))
      wrong("closed", kept:ended():wait(0))
      local late = assert(cases.agent()):session("owner", { keep = true })
      late:close()
      wrong("closed", late:ended():wait(0))
      owner:close()
    end)
  end

  it("is told to who waits when the agent is closed after the loss", function()
    local owner, agent = assert(cases.agent "owner"), assert(cases.agent())
    local kept = assert(agent:session("owner", { keep = true }))
    local lost, future = kept:session(5):ended(), kept:ended()
    owner:close()
    wrong("peer_lost", lost:wait(10))
    assert.is_false(future:done())
    agent:close()
    wrong("closed", future:wait(0))
  end)
end)
