-- SPDX-License-Identifier: Apache-2.0
-- A network that loses, delays, duplicates and reorders packets: everything
-- that a session does succeeds, and no session is lost.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local perigee = require "perigee"
local process = require "spec.support.process"
local worker = require "spec.net.worker"

local SIZE = 2 ^ 22
local BOUND = 30 * hosts.MORE

local function serving(child, perigee_)
  require("spec.net.worker").serve(child, perigee_, {
    listen = "tcp://10.77.7.2:0",
      secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="
      })
end

-- True, or nil and the reason why the network cannot be made bad here.
local function possible()
  local fine, why = hosts.start()
  if fine then fine, why = hosts.netem "loss 1%" end
  hosts.finish()
  if fine then return true end
  return nil, "no netem can be had here: " .. tostring(why)
end

-- The kinds of network faults, and of sessions.
local LOSSY = "loss 1% delay 20ms"
local WORSE = "loss 1% delay 20ms 5ms duplicate 2% reorder 10%"
local KINDS = {
  ["plain session, 1 % loss, 20 ms delay"] = { LOSSY, {} },
  ["session that is sealed and has four streams, 1 % loss, 20 ms delay"] =
    { LOSSY, { encrypt = true, streams = 4 } },
  ["sealed session, packets doubled and out of order, too"] =
    { WORSE, { encrypt = true } },
}

describe("in bad weather", function()
  local fine, why = possible()
  if not fine then
    it("all that a session does is done", function() return pending(why) end)
    return
  end

  before_each(function() assert(hosts.start()) end)
  after_each(hosts.finish)

  local function bulk(session, engine)
    local here = engine:alloc(2 * SIZE)
    local remote = assert(session:region("m"))
    local from, to = here:slice(0, SIZE), here:slice(SIZE, SIZE)
    from:fill(77)
    local there = remote:slice(0, SIZE)
    assert(session:write { from = from, to = there }:wait(BOUND))
    assert(session:read { from = there, to = to }:wait(BOUND))
    assert.is_true(to:string() == from:string())
  end

  for name, kind in pairs(KINDS) do
    it(("a %s: all is done"):format(name), function()
      local netem, options = unpack(kind)
      local address = assert(hosts.far(serving):read(30))
      assert(hosts.netem(netem))
      options.transport = "tcp"
      options.secret = hosts.SECRET
      options.engine = { hello_timeout = 90 }
      local started = process.now()
      local near = assert(cases.agent(nil, options))
      local proxy = assert(near:proxy(address, "x", { timeout = BOUND }))
      local session = assert(near:session(address))
      worker.all_kinds(cases, proxy, session, near.engine:alloc(2 ^ 23), 5)
      bulk(session, near.engine)
      local futures = {}
      for i = 1, 100 do futures[i] = proxy.async:same(i) end
      for i = 1, 100 do assert.equal(i, (futures[i]:wait(BOUND))) end
      perigee.sleep(hosts.DEAD)
      assert.is_false(session.lost)
      assert.is_true(process.now() - started < 2 * BOUND)
    end)
  end
end)
