-- SPDX-License-Identifier: Apache-2.0
-- Verbs sessions between two addresses, set up over TCP. Each side is in a
-- network namespace with its own NIC.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local perigee = require "perigee"
local weather = require "spec.rdma.weather"
local worker = require "spec.net.worker"

local function serving(child, perigee_, _, rdma, encrypt)
  require("spec.net.worker").serve(child, perigee_, {
    listen = "tcp://10.77.7.2:0",
      secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
    dead_after = 6, encrypt = encrypt == "true",
    engine = { rdma = rdma, hello_timeout = 90 } })
end

describe("between two addresses", function()
  local sides, why = weather.across()
  local possible = sides
  if sides then possible, why = hosts.possible() end
  if not possible then
    it("verbs carry a session", function() return pending(why) end)
    return
  end

  before_each(function() assert(hosts.start()) end)
  after_each(hosts.finish)

  local function start(encrypt)
    local child = hosts.far(serving, sides.far, encrypt)
    return assert(child:read(60)), child
  end

  local function agent(transport, encrypt)
    return assert(cases.agent(nil, {
      transport = transport, secret = hosts.SECRET, encrypt = encrypt,
      dead_after = 6, engine = { rdma = sides.near, hello_timeout = 90 } }))
  end

  for _, transport in ipairs { "verbs", "auto" } do
    it(("verbs carry a session (%s)"):format(transport), function()
      local address, child = start()
      local near = agent(transport)
      local proxy = assert(near:proxy(address, "x", { timeout = 60 }))
      local session = assert(near:session(address))
      assert.equal("verbs", session:explain().transport)
      worker.all_kinds(cases, proxy, session, near.engine:alloc(2 ^ 23), 5)
      perigee.sleep(15) -- over twice dead_after, in silence
      assert.is_false(session.lost)
      assert.equal(4, (assert(proxy:same(4))))
      child:kill()
      assert.is_true(cases.eventually(function() return session.lost end, 10))
    end)
  end

  it("a peer that is stopped is lost after dead_after", function()
    local address, child = start()
    local near = agent "verbs"
    local proxy = assert(near:proxy(address, "x", { timeout = 60 }))
    local session = assert(near:session(address))
    local nap = proxy.async:nap(100)
    child:signal("STOP")
    local none, err = nap:wait(40)
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind)
    assert.is_true(cases.eventually(function() return session.lost end))
    assert.matches("heard", session:explain().reason)
    child:signal("CONT")
  end)

  it("the cable of the control socket is cut, and the peer is lost", function()
    local address = start()
    local near = agent "verbs"
    local proxy = assert(near:proxy(address, "x", { timeout = 60 }))
    local nap = proxy.async:nap(100)
    hosts.cable(false)
    local none, err = nap:wait(40)
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind)
  end)

  for _, who in ipairs { "who dials", "who listens" } do
    local dials = who == "who dials"

    it(("verbs are refused where %s wants all encrypted"):format(who),
       function()
      local none, err = agent("verbs", dials):proxy(start(not dials), "x",
                                                    { timeout = 60 })
      assert.is_nil(none)
      assert.equal("unsupported", err.kind)
      assert.is_true(#tostring(err) > 40)
    end)

    it(("auto is TCP, sealed, where %s wants all encrypted"):format(who),
       function()
      local address = start(not dials)
      local near = agent("auto", dials)
      local proxy = assert(near:proxy(address, "x", { timeout = 60 }))
      assert.equal(9, (assert(proxy:same(9))))
      local told = assert(near:session(address)):explain()
      assert.equal("tcp", told.transport)
      assert.matches("sealed", told.carrier, 1, true)
    end)
  end
end)
