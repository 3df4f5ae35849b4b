-- SPDX-License-Identifier: Apache-2.0
-- The two timeouts, cancelling, and waiting for several futures.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local cancelled, ran = {}, 0
  child.serve {
    name = "slow", version = 1,
    methods = {
      sleep = function(seconds, value)
        ran = ran + 1
        perigee_.sleep(seconds)
        return value
      end,
      watch = function(name)
        local context = perigee_.context()
        for _ = 1, 2000 do
          if context:cancelled() then
            cancelled[#cancelled + 1] = name
            return
          end
          perigee_.sleep(0.002)
        end
      end,
      cancelled = function()
        local now = cancelled
        cancelled = {}
        return now
      end,
      ran = function() return ran end,
      same = function(x) return x end,
      echo = { raw = true, function(request) return request end },
    },
  }
end

describe("the operation's own timeout", function()
  local slow, child

  setup(function()
    child = process.start(server):expect("ready")
    slow = cases.proxy("slow", { timeout = 5 })
  end)
  teardown(cases.cleanup)

  it("ends the operation", function()
    local started = process.now()
    local got, err = slow:with({ timeout = 0.1 }):sleep(3, 1)
    local took = process.now() - started
    assert.is_nil(got)
    assert.equal("timeout", err.kind)
    assert.is_true(took >= 0.09 and took < 2.5, took)
  end)

  it("drops the reply that comes too late", function()
    for i = 1, 50 do
      local got, err = slow:with({ timeout = 0.001 }):sleep(0.002, "late")
      if not got then assert.equal("timeout", err.kind) end
      assert.equal(i, (slow:same(i)))
    end
  end)

  it("may be none", function()
    assert.equal(1, (slow:with({ timeout = math.huge }):sleep(0.01, 1)))
  end)

  it("can be smaller than anything takes", function()
    for _ = 1, 20 do
      local got, err = slow:with({ timeout = 1e-6 }):sleep(0.5, 1)
      assert.is_nil(got)
      assert.equal("timeout", err.kind)
    end
  end)

  it("is seen by the handler as a cancelled call", function()
    slow:with({ timeout = 0.02 }):watch("by timeout")
    assert.is_true(cases.eventually(function()
      return (slow:cancelled())[1] == "by timeout"
    end))
  end)

  it("holds while the peer is stopped", function()
    child:signal("STOP")
    local futures = {}
    for i = 1, 20 do
      futures[i] = slow:with({ timeout = 0.1 }).async:same(i)
    end
    for i = 1, 20 do
      local got, err = futures[i]:wait(5)
      assert.is_nil(got)
      assert.equal("timeout", err.kind)
    end
    child:signal("CONT")
    assert.equal("again", (slow:same("again")))
  end)
end)

describe("future:wait(t)", function()
  local slow

  setup(function()
    process.start(server):expect("ready")
    slow = cases.proxy("slow", { timeout = 20 * cases.slow })
  end)
  teardown(cases.cleanup)

  it("bounds only the waiting", function()
    local future = slow.async:sleep(cases.slow, "result")
    local got, err = future:wait(0.02)
    assert.is_nil(got)
    assert.equal("timeout", err.kind)
    assert.is_false(future:done())
    got, err = future:wait(0)
    assert.is_nil(got)
    assert.equal("timeout", err.kind)
    assert.equal("result", (future:wait(20 * cases.slow)))
    assert.is_true(future:done())
    assert.equal("result", (future:wait(0)))
    assert.equal("result", (future:wait()))
  end)
end)

describe("cancel", function()
  local slow, child

  setup(function()
    child = process.start(server):expect("ready")
    slow = cases.proxy("slow", { timeout = 10 })
  end)
  teardown(cases.cleanup)

  it("ends the operation once, and the handler sees it", function()
    local future = slow.async:watch("by cancel")
    perigee.sleep(0.02)
    assert.is_false(future:done())
    future:cancel()
    future:cancel()
    local got, err = future:wait(1)
    assert.is_nil(got)
    assert.equal("cancelled", err.kind)
    assert.is_true(future:done())
    assert.is_true(cases.eventually(function()
      return (slow:cancelled())[1] == "by cancel"
    end))
  end)

  it("does nothing to what has ended", function()
    local future = slow.async:same(5)
    assert.equal(5, (future:wait(5)))
    future:cancel()
    assert.equal(5, (future:wait(0)))
  end)

  it("wakes whoever waits", function()
    local future = slow.async:watch("x")
    local waiter = perigee.spawn(function() return future:wait(5) end)
    perigee.spawn(function()
      perigee.sleep(0.01)
      future:cancel()
    end)
    local got, err = waiter:wait(2)
    assert.is_nil(got)
    assert.equal("cancelled", err.kind)
  end)

  it("works in every state of a call", function()
    for round = 1, 60 do
      local future = slow.async:sleep(0.005, round)
      perigee.sleep(round * 2e-4)
      future:cancel()
      local got, err = future:wait(1)
      if got then
        assert.equal(round, got)
      else
        assert.equal("cancelled", err.kind)
      end
      assert.equal(round, (slow:same(round)))
    end
  end)

  it("needs no room in the ring", function()
    child:signal("STOP")
    local futures, text = {}, cases.bytes(4000)
    for i = 1, 200 do futures[i] = slow.async:echo(text) end
    for i = 1, 200 do futures[i]:cancel() end
    for i = 1, 200 do
      local got, err = futures[i]:wait(1)
      assert.is_nil(got)
      assert.equal("cancelled", err.kind)
    end
    child:signal("CONT")
    assert.equal("again", (slow:same("again")))
  end)

  it("before it was sent promises that the handler did not run", function()
    local before = slow:ran()
    child:signal("STOP")
    local futures, unsent, text = {}, 0, cases.bytes(4000)
    for i = 1, 100 do futures[i] = slow.async:sleep(0, text) end
    for i = 1, 100 do futures[i]:cancel() end
    for i = 1, 100 do
      local _, err = futures[i]:wait(1)
      if err.sent == false then unsent = unsent + 1 end
    end
    child:signal("CONT")
    local after = slow:ran()
    assert.is_true(after - before <= 100 - unsent)
  end)
end)

describe("waiting for several", function()
  local slow

  setup(function()
    process.start(server):expect("ready")
    slow = cases.proxy("slow", { timeout = 5 })
  end)
  teardown(cases.cleanup)

  it("has one total timeout, not one each", function()
    local futures = {}
    for i = 1, 10 do futures[i] = slow.async:sleep(0.15 * i, i) end
    local started = process.now()
    local done, err = perigee.wait_all(futures, 0.3)
    local took = process.now() - started
    assert.is_nil(done)
    assert.equal("timeout", err.kind)
    assert.is_true(took >= 0.29 and took < 1.4)
    assert.is_false(futures[10]:done())
    assert.is_true(perigee.wait_all(futures, 5))
    assert.equal(10, (futures[10]:wait(0)))
  end)

  it("tells the first that ended", function()
    local futures = { slow.async:sleep(2, 1), slow.async:sleep(0.01, 2),
                      slow.async:sleep(2, 3) }
    local index, future = perigee.wait_any(futures, 5)
    assert.equal(2, index)
    assert.equal(futures[2], future)
    assert.equal(2, (future:wait(0)))
    local none, err = perigee.wait_any({ futures[1], futures[3] }, 0.02)
    assert.is_nil(none)
    assert.equal("timeout", err.kind)
    futures[1]:cancel()
    assert.equal(1, (perigee.wait_any({ futures[1], futures[3] }, 5)))
    futures[3]:cancel()
  end)

  it("needs none at all", function()
    assert.is_true(perigee.wait_all({}, 1))
  end)

  it("takes futures of every kind", function()
    local task = perigee.spawn(function()
      perigee.sleep(0.01)
      return 1
    end)
    assert.is_true(perigee.wait_all({ task, slow.async:same(2) }, 5))
  end)
end)
