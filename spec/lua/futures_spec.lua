-- SPDX-License-Identifier: Apache-2.0
local cases = require "spec.support.cases"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local perigee = require "perigee"
local sessions = require "perigee.engine.session"

-- The error of a future that fails, or whose wait times out, names the
-- operation and the peer.
describe("the error of a future", function()
  local worker, agent, proxy, session

  before_each(function()
    worker = assert(cases.agent("worker"))
    worker:serve { name = "x", version = 1, methods = {
      nap = function(seconds) perigee.sleep(seconds) end } }
    agent = assert(cases.agent())
    proxy = assert(agent:proxy("worker", "x", { timeout = 60 }))
    session = assert(agent:session("worker"))
  end)
  after_each(cases.cleanup)

  local function expect(kind, text, got, err)
    assert.is_nil(got)
    assert.equal(kind, err.kind, tostring(err))
    assert.equal(text, tostring(err))
  end

  local PATIENCE = ": the time to wait is over, the operation goes on"

  it("that was waited for in vain says for what", function()
    local call, recv = proxy.async:nap(60), session:recv_imm()
    local task = perigee.spawn(perigee.sleep, 60)
    expect("timeout", "waiting for a call of worker" .. PATIENCE,
           call:wait(0.01))
    expect("timeout", "waiting for an operation with worker" .. PATIENCE,
           recv:wait(0.01))
    expect("timeout", "running a task" .. PATIENCE, task:wait(0.01))
    task:cancel()
    expect("cancelled", "running a task: it was cancelled", task:wait(0.01))
  end)

  it("whose engine was closed says what it was", function()
    local call, recv = proxy.async:nap(60), session:recv_imm()
    assert(cases.engine():listen(cases.address()))
    local dialling = sessions.connect(agent.engine, cases.address(), {})
    agent:close()
    expect("closed", "calling x.nap of worker: the engine was closed",
           call:wait(1))
    expect("closed", "recv_imm with worker: the engine was closed",
           recv:wait(1))
    expect("closed", "connecting to " .. cases.address()
      .. ": the engine was closed", dialling:wait(1))
  end)

  it("of a reply that has not gone yet names the caller", function()
    local said
    worker:serve { name = "y", version = 1, methods = {
      slow = function()
        local context = perigee.context()
        local sent = perigee.spawn(function() return context:sent(0.001) end)
        said = tostring(select(2, sent:wait(5)))
      end } }
    assert(agent:proxy("worker", "y")):slow()
    assert.equal("replying to slow of " .. agent.name .. PATIENCE, said)
  end)
end)

-- A future is an array with names for its slots (future.lua): a field must not
-- come to stand beside the slot of the same name.
describe("a future's slot", function()
  local futures = require "perigee.runtime.future"

  it("is read and written by its name as by its number", function()
    local future = futures.new(false, "nothing")
    assert.is_false(future.ended)
    future.operation, future.value = 7, "kept"
    assert.equal(7, future[futures.OPERATION])
    assert.equal("kept", future[futures.VALUE])
    future.operation = false
    futures.settle(future, nil, "why")
    assert.equal(2, future.ended)
    assert.is_nil(rawget(future, "operation"))
    assert.same({ nil, "why" }, { future:wait() })
  end)

  it("is no field that other futures have", function()
    local future = futures.new()
    assert.is_nil(future.doing)
    future.doing, future.again = "calling", false
    assert.equal("calling", futures.doing(future))
    assert.is_nil(futures.new().doing)
    assert.is_nil(future.unknown)
  end)
end)

describe("a future that a handler's error ended", function()
  local errors = require "perigee.runtime.errors"
  local futures = require "perigee.runtime.future"

  it("has failed, but its own peer is not lost", function()
    local told = errors.new("peer_lost", "the session with another")
    assert.is_true(futures.lost(futures.done(nil, told)) == told)
    told = errors.unpacked(errors.packed(told))
    assert.is_nil(futures.lost(futures.done(nil, told)))
    assert.is_true(futures.failure(futures.done(nil, told)) == told)
  end)
end)

-- No input should make the handler of an event raise, so the spec has it raise.
describe("an event whose handler raises", function()
  local on = loop.on
  local REPLY = native.C.PERIGEE_EVENT_REPLY
  local handler, write = on[REPLY], log.write
  after_each(function()
    on[REPLY] = handler
    log.write = write
    cases.cleanup()
  end)

  it("ends its session, and the loop handles the other events", function()
    local agent = assert(cases.agent("worker"))
    agent:serve { name = "x", version = 1, methods = {
      echo = { raw = true, function(request) return request end },
      nap = function(seconds) perigee.sleep(seconds) end } }
    local proxy = assert(agent:proxy("worker", "x", { reconnect = 0 }))
    local said = {}
    function log.write(_, text) said[#said + 1] = text end
    on[REPLY] = function()
      on[REPLY] = handler
      error "on purpose"
    end
    local broken, nap = proxy.async:echo "bytes", proxy.async:nap(60)
    local got, err = nap:wait(10)
    assert.is_nil(got)
    assert.equal("closed", err.kind, tostring(err))
    assert.is_false(broken:done())
    assert.matches("could not be handled, and ends it: .*on purpose",
                   table.concat(said, "\n"))
    assert.equal("more", assert(agent:proxy("worker", "x")):echo "more")
  end)
end)
