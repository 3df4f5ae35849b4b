-- SPDX-License-Identifier: Apache-2.0
-- A device is removed under load: its sessions end in peer_lost and the kernel
-- gets it back. Sessions over other devices and shared memory continue. The
-- same engine uses the device when it comes back.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

local MIB = 2 ^ 20

local function gone()
  return os.execute("rdma link show rxe1/1 >/dev/null 2>&1") ~= 0
    and #(perigee.devices { name = "rxe1" } or {}) == 0
end

describe("a device that is removed under load", function()
  local sides, why = weather.across "qps=2"
  if not sides then return pending(why) end

  after_each(function()
    cases.cleanup()
    if gone() then weather.run "rdma link add rxe1 type rxe netdev veth1" end
    weather.calm()
  end)

  it("ends its sessions, and no others", function()
    weather.worker(sides, weather.services)
    local agent, other = weather.agent(sides.near), weather.agent(sides.far)
    local here = agent.engine:alloc(12 * MIB)
    local proxy = assert(agent:proxy("worker", "x", { timeout = 60 }))
    local session = assert(agent:session("worker"))
    local beside = assert(other:proxy("worker", "x", { timeout = 60 }))
    local shm = assert(cases.agent(nil, { transport = "shm" }))
    local third = assert(shm:proxy("worker", "x", { timeout = 60 }))
    weather.fair(proxy, session, here, 1)
    for round = 1, 2 do
      local futures = weather.mix(proxy, session, here, round)
      for i = 1, 10 do futures[#futures + 1] = proxy.async:sleep(30 + i) end
      os.execute("rdma link del rxe1 >/dev/null 2>&1 &")
      assert.is_true(weather.lost(futures, 20) >= 10)
      assert.matches("rxe1: it is being removed", weather.loss(session))
      assert.equal(0, agent.engine:stats().operations)
      assert.is_true(cases.eventually(gone, 20))
      assert.equal("on", assert(beside:same("on")))
      assert.equal("on", assert(third:same("on")))
      local none, err = agent:proxy("worker", "x", { timeout = 20 })
      assert.is_nil(none)
      assert.equal("unsupported", err.kind)
      assert.matches("there is no RDMA port rxe1; there are", tostring(err))
      weather.run "rdma link add rxe1 type rxe netdev veth1"
      weather.calm()
      local limit = process.now() + 20
      repeat proxy = agent:proxy("worker", "x", { timeout = 60 })
      until proxy or process.now() > limit
      session = assert(agent:session("worker"))
      weather.fair(proxy, session, here, round)
    end
  end)
end)
