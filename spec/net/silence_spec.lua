-- SPDX-License-Identifier: Apache-2.0
-- A peer on another host goes silent: its cable is cut, or it is stopped or
-- dead. All waiting operations end in time; sessions survive a short silence.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local perigee = require "perigee"
local process = require "spec.support.process"
local worker = require "spec.net.worker"

local DEAD, MORE = hosts.DEAD, hosts.MORE
local KEPT = 1.5 * DEAD -- dead_after where the session is to survive
local LARGE = 2 ^ 24

local function serving(child, perigee_, _, listen, dead, encrypt)
  require("spec.net.worker").serve(child, perigee_, {
    listen = listen, secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
    encrypt = encrypt == "true", dead_after = tonumber(dead) })
end

-- One operation of every kind that cannot end by itself, and long transfers.
local function waiting(proxy, session, near)
  local here = near.engine:alloc(LARGE * 2)
  local remote = assert(session:region("m"))
  local a, b = here:slice(0, LARGE), here:slice(LARGE, LARGE)
  local slow = proxy:with { timeout = 60 }
  local list = {
    nap = slow.async:nap(60), recv = session:recv(here:slice(0, 64)),
    recv_imm = session:recv_imm(), send = session:send(here:slice(0, 100)),
    send_long = session:send(a), put = slow.async:put(a, 0),
    get = slow:with({ into = b }).async:get(LARGE, 1),
    echo = slow.async:echo(("x"):rep(2 ^ 20)),
  }
  for i = 1, 40 do
    list["write " .. i] = session:write { from = a,
                                          to = remote:slice(0, LARGE) }
    list["read " .. i] = session:read { from = remote:slice(0, LARGE), to = b }
  end
  return list
end

-- All of them must end within dead_after of the event: in peer_lost or timeout,
-- or with success. Operations that nothing could complete must not succeed.
local function all_end(list, since)
  local latest, lost = 0, 0
  for name, future in pairs(list) do
    local got, err = future:wait(DEAD + 10)
    assert(future:done(), name .. " hangs")
    latest = math.max(latest, process.now() - since)
    if got == nil then
      assert(err.kind == "peer_lost" or err.kind == "timeout", tostring(err))
      lost = lost + 1
    else
      assert(name ~= "nap" and not name:find "recv", name .. " was done")
    end
  end
  assert(lost > 3)
  assert(latest < DEAD + MORE, ("the last ended after %.2f s"):format(latest))
  return latest
end

local function all_well(proxy, session, near)
  local here = near.engine:alloc(2 ^ 23)
  worker.all_kinds(cases, proxy, session, here, 9)
end

describe("a peer on another host", function()
  local possible, why = hosts.possible()
  if not possible then
    it("is known by what is heard of it", function() return pending(why) end)
    return
  end

  before_each(function() assert(hosts.start()) end)
  after_each(hosts.finish)

  -- The child, and near's proxy of it and session with it.
  local function connected(options, dead)
    options = options or {}
    local child = hosts.far(serving, "tcp://10.77.7.2:0", dead or DEAD,
                            options.encrypt)
    local address = assert(child:read(20))
    options.secret, options.dead_after = hosts.SECRET, dead or DEAD
    local near = assert(cases.agent(nil, options))
    local proxy = assert(near:proxy(address, "x", { timeout = 30 }))
    return child, proxy, assert(near:session(address)), near
  end

  local ways = { plain = {}, sealed = { encrypt = true },
                 ["by three streams"] = { streams = 3 } }
  for way, options in pairs(ways) do
    for _, where in ipairs { "near", "far" } do
      local cut_there = ("cut at the %s end (%s)"):format(where, way)
      it("is lost when its cable is " .. cut_there, function()
        local _, proxy, session, near = connected(options)
        local list = waiting(proxy, session, near)
        perigee.sleep(0.05)
        local cut = process.now()
        hosts.cable(false, where)
        local took = all_end(list, cut)
        assert.is_true(took > DEAD / 3)
        assert.is_true(cases.eventually(function() return session.lost end))
        assert.matches("heard", session:explain().reason)
      end)
    end
  end

  it("is lost when the cable is cut while all is idle", function()
    local _, proxy, session = connected()
    local nap = proxy.async:nap(60)
    perigee.sleep(2 * DEAD)
    local cut = process.now()
    hosts.cable(false)
    local none, err = nap:wait(DEAD + 10)
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind)
    assert.is_true(process.now() - cut < DEAD + MORE)
    assert.is_true(cases.eventually(function() return session.lost end))
  end)

  it("is kept when all is idle for long", function()
    local _, proxy, session = connected(nil, KEPT)
    perigee.sleep(3 * KEPT)
    assert.is_false(session.lost)
    assert.equal(3, (assert(proxy:same(3))))
  end)

  it("is kept when it is idle and one side waits for shorter than the other",
     function()
    for ours, theirs in pairs { [KEPT] = 30, [30] = KEPT } do
      local child = hosts.far(serving, "tcp://10.77.7.2:0", theirs)
      local near = assert(cases.agent(nil, { secret = hosts.SECRET,
                                             dead_after = ours }))
      local session = assert(near:session(assert(child:read(20))))
      perigee.sleep(2 * KEPT)
      assert.is_false(session.lost)
      near:close()
      child:close()
    end
  end)

  it("is kept when it computes for long, and is not polled meanwhile",
     function()
    local child, _, session = connected(nil, 3 * DEAD)
    child:signal("STOP")
    perigee.sleep(DEAD)
    child:signal("CONT")
    perigee.sleep(2 * DEAD)
    assert.is_false(session.lost)
  end)

  for _, load in ipairs { "idle", "busy" } do
    it(("is kept when the cable is out for a while (%s)"):format(load),
       function()
      local dead = 3 * DEAD
      local _, proxy, session, near = connected(nil, dead)
      local list = load == "busy" and waiting(proxy, session, near) or {}
      if load == "idle" then list.nap = proxy.async:nap(60) end
      perigee.sleep(0.05)
      hosts.cable(false)
      perigee.sleep(dead * 0.4) -- lost packets are sent again in time
      hosts.cable(true)
      perigee.sleep(dead)
      assert.is_false(session.lost)
      for name, future in pairs(list) do
        if name:find "^read" or name:find "^write" or name == "echo" then
          assert(future:wait(60))
        end
      end
      assert.is_false(list.nap:done())
      assert.equal(4, (assert(proxy:same(4))))
      for name, future in pairs(list) do
        if not future:done() then future:cancel() end
        assert(name)
      end
    end)
  end

  it("is lost when it is stopped", function()
    local child, proxy, session, near = connected()
    local list = waiting(proxy, session, near)
    perigee.sleep(0.05)
    local stopped = process.now()
    child:signal("STOP")
    all_end(list, stopped)
    child:signal("CONT")
  end)

  it("and loses us when it goes on, and then knows us again", function()
    local child, proxy, session, near = connected()
    child:signal("STOP")
    assert.is_true(cases.eventually(function() return session.lost end,
                                    DEAD + MORE))
    child:signal("CONT")
    local again
    assert.is_true(cases.eventually(function()
      again = near:session(session:explain().address, { timeout = 5 })
      return again
    end, 10))
    assert.equal(8, (assert(proxy:same(8))))
    all_well(proxy, again, near)
  end)

  it("is lost at once when it is killed", function()
    local child, proxy, session, near = connected(nil, 10 * DEAD)
    local list = waiting(proxy, session, near)
    perigee.sleep(0.05)
    child:kill()
    local died = process.now()
    all_end(list, died)
    assert.is_true(process.now() - died < MORE)
  end)
end)

describe("a peer on this host, over TCP", function()
  after_each(cases.cleanup)

  it("is kept when it is stopped, and goes on", function()
    local child = process.start(serving, "tcp://127.0.0.1:0", DEAD / 2, false)
    local address = assert(child:read(20))
    local near = assert(cases.agent(nil, { secret = hosts.SECRET,
      dead_after = DEAD / 2, transport = "tcp" }))
    local proxy = assert(near:proxy(address, "x", { timeout = 30 }))
    local session = assert(near:session(address))
    assert.equal("tcp", session:explain().transport)
    child:signal("STOP")
    local future = proxy.async:same(6)
    perigee.sleep(2 * DEAD)
    assert.is_false(session.lost)
    child:signal("CONT")
    assert.equal(6, (future:wait(20)))
    all_well(proxy, session, near)
    child:kill()
    assert.is_true(cases.eventually(function() return session.lost end, 5))
  end)
end)
