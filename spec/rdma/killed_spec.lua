-- SPDX-License-Identifier: Apache-2.0
-- kill -9 of a peer on another device, in the middle of everything that a
-- device does: waiting operations end in peer_lost at once, and a new peer is
-- reachable.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

local SIZE = 2 ^ 24

local function services(_, perigee_, _, agent)
  local size = 2 ^ 24
  local engine = agent.engine
  engine:alloc(size, { name = "m", access = "rw" })
  local region = engine:alloc(size)
  return {
    name = "x", version = 1,
    methods = {
      same = function(x) return x end,
      sleep = function(seconds) perigee_.sleep(seconds) end,
      echo = { raw = true, function(request) return request end },
      get = function(length) return region:slice(0, length) end,
      put = { landing = function(length) return region:slice(0, length) end,
              function(slice) return slice.length end },
    },
  }
end

describe("a peer over RDMA that is killed", function()
  local sides, why = weather.anywhere "qps=3 stripe=64K"
  if not sides then return pending(why) end
  local agent, child, proxy, session, here

  local function begin()
    child = weather.worker(sides, services)
    proxy = assert(agent:proxy("worker", "x", { timeout = 20 }))
    session = assert(agent:session("worker"))
    assert.equal("verbs", session:explain().transport)
  end

  before_each(function()
    agent = weather.agent(sides.near)
    here = agent.engine:alloc(2 * SIZE)
    begin()
  end)
  after_each(cases.cleanup)

  local function lost(futures, died)
    for _, future in ipairs(futures) do
      local got, err = weather.ended(future)
      if not got then
        assert.equal("peer_lost", err.kind, tostring(err))
        assert.matches("worker", tostring(err))
      end
    end
    assert.is_true(process.now() - died < weather.SOON)
  end

  -- Memory of an operation that has ended does not change any more.
  local function still(slice)
    slice:fill(0x33)
    perigee.sleep(0.05)
    assert.is_true(slice:string() == ("\x33"):rep(slice.length))
  end

  local function again()
    local none, err = proxy:same(1)
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind)
    assert.is_false(err.sent)
    begin()
    assert.equal("on", assert(proxy:same("on")))
    local into = here:slice(0, SIZE)
    assert.equal(SIZE, assert(proxy:with({ into = into }):get(SIZE)).length)
  end

  local steps = {
    ["in calls"] = function()
      local futures = {}
      for i = 1, 20 do futures[i] = proxy.async:sleep(10) end
      for i = 21, 40 do futures[i] = proxy.async:echo(cases.bytes(i * 300)) end
      return futures
    end,
    ["in a bulk reply"] = function()
      return { proxy:with({ into = here:slice(0, SIZE) }).async:get(SIZE) }
    end,
    ["in a bulk request"] = function()
      return { proxy.async:put(here:slice(0, SIZE)) }
    end,
    ["as the target of writes"] = function()
      local remote, futures = assert(session:region("m")), {}
      for i = 1, 4 do
        futures[i] = session:write { from = here:slice(0, SIZE),
                                     to = remote:slice(0, SIZE) }
      end
      futures[5] = session:write_imm({ from = here:slice(0, 64),
                                       to = remote:slice(0, 64) }, 7)
      return futures
    end,
    ["as the target of reads"] = function()
      local remote, futures = assert(session:region("m")), {}
      for i = 1, 4 do
        futures[i] = session:read { from = remote:slice(0, SIZE),
                                    to = here:slice(0, SIZE) }
      end
      return futures
    end,
    ["with messages and immediates awaited"] = function()
      return { session:recv(here:slice(0, 100)), session:recv_imm(),
               session:send(here:slice(0, SIZE)) }
    end,
  }

  for step, submit in pairs(steps) do
    it(step .. " ends all of it in peer_lost", function()
      for delay = 0, 1 do
        local futures = submit()
        perigee.sleep(delay * 0.05)
        child:kill()
        lost(futures, process.now())
        still(here:slice(0, SIZE))
        again()
      end
    end)
  end

  it("while idle is noticed without a call", function()
    child:kill()
    assert.is_true(cases.eventually(function()
      return session:explain().state == "ended"
    end, weather.SOON))
    assert.matches("worker", tostring(session.lost))
    again()
  end)

  -- Replies lie in pooled blocks until no one refers to them.
  local function none_pooled()
    collectgarbage()
    return agent.engine:stats().pooled == 0
  end

  local function all_of_it()
    local futures = {}
    for _, submit in pairs(steps) do
      for _, future in ipairs(submit()) do futures[#futures + 1] = future end
    end
    return futures
  end

  it("at any moment of a mix leaves nothing behind", function()
    local function killed_after(delay)
      local futures = all_of_it()
      perigee.sleep(delay)
      child:kill()
      lost(futures, process.now())
    end
    for round = 1, 8 do
      killed_after(round * 0.004)
      assert.equal(0, agent.engine:stats().operations)
      assert.is_true(cases.eventually(none_pooled, 2), "blocks stay pooled")
      again()
    end
  end)
end)
