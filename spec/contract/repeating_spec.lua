-- SPDX-License-Identifier: Apache-2.0
-- A worker is killed and started again: calls in flight end once, and those
-- that may be repeated are repeated.
local cases = require "spec.support.cases"
local mortal = require "spec.support.mortal"
local perigee = require "perigee"
local process = require "spec.support.process"

local kill, marked, marks = mortal.kill, mortal.marked, mortal.marks
local restart, start, wrong = mortal.restart, mortal.start, mortal.wrong

local LONG = 30 * cases.slow

describe("a proxy whose worker is killed", function()
  local proxy, agent, session

  before_each(function()
    mortal.begin()
    -- However long the child takes to start.
    proxy, agent = cases.proxy("x", { timeout = LONG,
                                      reconnect = 60 })
    session = assert(agent:session("worker"))
  end)
  after_each(mortal.finish)

  it("fails what is in flight once, and goes on", function()
    local futures = {}
    for i = 1, 5 do futures[i] = proxy.async:once(60) end
    futures[6] = perigee.spawn(function() return proxy:once(60) end)
    marked("once", 6)
    mortal.child:kill()
    for i = 1, 6 do
      local got, err = futures[i]:wait(LONG)
      assert.is_nil(got)
      assert.equal("peer_lost", err.kind)
      assert.is_true(err.sent ~= false)
    end
    restart()
    assert.equal(2, (proxy:life()))
    assert.equal(6, marks("once"))
  end)

  it("makes idempotent calls again that were in flight", function()
    local futures = {
      proxy.async:often(60, "a", nil, 3),
      perigee.spawn(function() return proxy:often(60, "b") end),
      proxy:with({ timeout = 60 }).async:often(60, "c"),
    }
    marked("often", 3)
    mortal.child:kill()
    perigee.sleep(0.02)
    for i = 1, 3 do assert.is_false(futures[i]:done()) end
    restart()
    assert.same({ "2", "a", nil, 3 }, { futures[1]:wait(LONG) })
    assert.same({ "2", "b" }, { futures[2]:wait(LONG) })
    assert.same({ "2", "c" }, { futures[3]:wait(LONG) })
    assert.equal(6, marks("often"))
  end)

  -- The wait itself then finds the session's end, before the loop has run.
  it("makes an idempotent call again whose peer's end nobody has seen",
     function()
    local future = proxy:with({ timeout = 60 }).async:often(60, "a")
    marked("often", 1)
    mortal.child:kill()
    process.usleep(0.2)                 -- no loop runs meanwhile
    start()
    assert.same({ "2", "a" }, { future:wait() })
  end)

  it("makes raw idempotent calls again, with their landings", function()
    local into = cases.alloc(agent.engine, 64):slice(0, 64)
    local future = proxy:with({ into = into }).async:bytes("a")
    local other = proxy.async:bytes(function(loan)
      loan.pointer[0] = 99
      return 1
    end)
    marked("bytes", 1)
    mortal.child:kill()
    restart()
    assert.equal("b", assert(future:wait(LONG)):string())
    assert.equal("d", (other:wait(LONG)))
    assert.equal(1, marks("bytes"))
  end)

  it("repeats an idempotent call after its worker's end only", function()
    local got, err = proxy:fails()
    assert.is_nil(got)
    assert.equal("remote", err.kind)
    local future = proxy:with({ timeout = cases.slow }).async:often(60)
    marked("often", 1)
    wrong("timeout", true, future:wait(10 * cases.slow))
    perigee.sleep(0.05)
    assert.equal(1, marks("often"))
  end)

  it("gives up an idempotent call at its deadline", function()
    local started, limit = process.now(), cases.slow
    local future = proxy:with({ timeout = limit }).async:often(60)
    marked("often", 1)
    mortal.child:kill()
    wrong("timeout", true, future:wait(10 * limit))
    local took = process.now() - started
    assert.is_true(took > 0.9 * limit and took < 4 * limit, took)
  end)

  it("ends a cancelled call once, wherever it is", function()
    local flying = proxy.async:often(60)
    marked("often", 1)
    kill(session)
    local waiting = proxy.async:once(0)
    for _, future in ipairs { flying, waiting } do
      perigee.sleep(0.02)
      future:cancel()
      local got, err = future:wait(LONG)
      assert.is_nil(got)
      assert.equal("cancelled", err.kind)
    end
    restart()
    assert.equal(2, (proxy:life()))
    perigee.sleep(0.05)
    assert.equal(0, marks("once"))
    assert.equal(1, marks("often"))
    local again = proxy.async:often(0)
    assert.equal("2", (again:wait(LONG)))
  end)
end)
