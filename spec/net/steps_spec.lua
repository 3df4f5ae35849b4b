-- SPDX-License-Identifier: Apache-2.0
-- A peer is killed or stopped, or the path is cut, at each step of the
-- protocol: the connect and all that waits end in time, and nothing is left.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local perigee = require "perigee"
local process = require "spec.support.process"

local DEAD = hosts.DEAD / 2
local BOUND = 2 * DEAD + hosts.MORE -- a hello, and then silence
local SIZE = 2 ^ 22

-- Bytes that a side has sent at the end, or in the middle, of each step.
local HELLO, PROOF, READY = 120, 160, 576
local SETTING_UP = { 0, 1, 100, HELLO, HELLO + 20, PROOF, PROOF + 10,
                     PROOF + 340, READY - 1, READY, READY + 10 }
local ATTACHING = { 0, 1, 30, 56, 60, 100, 5000 }
local IN_BULK = { 2 ^ 16, 2 ^ 20 }

local function serving(child, perigee_, _, dead)
  local w = require "spec.net.worker"
  w.serve(child, perigee_, { listen = "tcp://10.77.7.2:0",
    secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
      dead_after = tonumber(dead),
    engine = { hello_timeout = tonumber(dead) } })
end

local function relaying(child, _, _, target, what, pid, number, way, limit)
  require "spec.net.relay" {
    say = child.say, host = "10.77.7.2", target = target, what = what,
    pid = tonumber(pid), number = tonumber(number), way = way,
    limit = tonumber(limit) }
end

-- Dials the given address, again and again, until it is ended.
local function dialing(child, perigee_, _, dead)
  local agent = assert(child.cases.agent(nil, {
    secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
      dead_after = tonumber(dead),
    streams = 2 }))
  child.say("ready")
  local proxy = agent:proxy(child.hear(), "x", { timeout = 5 })
  local text = ("x"):rep(2 ^ 20)
  while proxy and proxy:echo(text) do end
  perigee_.run(function() perigee_.sleep(60) end)
end

describe("at each step of the protocol", function()
  local possible, why = hosts.possible()
  if not possible then
    it("a peer may be lost", function() return pending(why) end)
    return
  end

  before_each(function() assert(hosts.start()) end)
  after_each(hosts.finish)

  -- Begins operations that wait or take long; none can complete before the
  -- early cut.
  local function submit(session, proxy, engine)
    local here, list = engine:alloc(2 * SIZE), {}
    local mine, into = here:slice(0, SIZE), here:slice(SIZE, SIZE)
    list.recv = session:recv(here:slice(0, 9))
    list.recv_imm = session:recv_imm()
    list.nap = proxy:with({ timeout = BOUND / 2 }).async:nap(60)
    local remote = session:region("m", { timeout = 5 })
    if remote then
      for i = 1, 8 do
        list[i] = session:write { from = mine, to = remote:slice(0, SIZE) }
        list[i + 8] = session:read { from = remote:slice(0, SIZE), to = into }
      end
    end
    return list
  end

  local function ends(list)
    local since = process.now()
    for name, future in pairs(list) do
      local got, err = future:wait(20)
      assert(future:done(), name .. " hangs")
      assert(got ~= nil or err.kind == "peer_lost" or err.kind == "timeout",
             tostring(err))
      assert(got == nil or type(name) == "number", "it was done")
    end
    local took = process.now() - since
    assert(took < BOUND, ("the last ended after %.2f s"):format(took))
  end

  local function lose(what, number, way, limit)
    local child = hosts.far(serving, DEAD)
    local relay = hosts.far(relaying, assert(child:read(20)), what, child.pid,
                            number, way, limit)
    local address = assert(relay:read(20))
    local agent = assert(cases.agent(nil, {
      secret = hosts.SECRET, dead_after = DEAD, streams = 2,
      engine = { hello_timeout = DEAD } }))
    local started = process.now()
    local session, err = agent:session(address, { timeout = 10 })
    local proxy = session and agent:proxy(address, "x", { timeout = 10,
                                                          reconnect = 0 })
    if proxy then
      ends(submit(session, proxy, agent.engine))
    else
      assert(session or perigee.is_error(err))
      local took = process.now() - started
      assert(took < BOUND, ("it ended after %.2f s"):format(took))
    end
    relay:expect("now", 20)
    agent:close()
    relay:close()
    child:close()
  end

  local doings = { KILL = "a peer is killed", STOP = "a peer is stopped",
                   cut = "the way is cut" }
  for what, text in pairs(doings) do
    it(text .. " while a session is set up", function()
      for _, limit in ipairs(SETTING_UP) do
        lose(what, 1, "to", limit)
        lose(what, 1, "back", limit)
      end
    end)

    it(text .. " while a stream is attached", function()
      for _, limit in ipairs(ATTACHING) do lose(what, 2, "to", limit) end
      lose(what, 2, "back", 10)
    end)

    it(text .. " in the midst of bulk", function()
      for _, limit in ipairs(IN_BULK) do
        lose(what, 2, "to", limit)
        lose(what, 2, "back", limit)
      end
    end)
  end

  it("a dialer is killed, and its peer keeps nothing of it", function()
    local child = hosts.far(serving, DEAD)
    local address = assert(child:read(20))
    local near = assert(cases.agent(nil, { secret = hosts.SECRET }))
    local friend = assert(near:proxy(address, "x", { timeout = 20 }))
    local function lose_dialer(number, limit)
      local dialer = process.start(dialing, DEAD):expect("ready", 20)
      local relay = hosts.far(relaying, address, "KILL", dialer.pid, number,
                              "to", limit)
      dialer:tell(assert(relay:read(20)))
      relay:expect("now", 10)
      dialer:close()
      relay:close()
      assert.is_true(cases.eventually(function()
        return assert(friend:sessions()) == 1
      end))
    end
    for _, limit in ipairs(SETTING_UP) do lose_dialer(1, limit) end
    for _, limit in ipairs(ATTACHING) do lose_dialer(2, limit) end
  end)
end)
