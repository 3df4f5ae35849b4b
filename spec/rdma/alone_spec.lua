-- SPDX-License-Identifier: Apache-2.0
-- Sessions without a socket do all that others do, and end when the peer ends.
local cases = require "spec.support.cases"
local endpoints = require "spec.rdma.endpoints"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

-- A peer's death shows as its silence: after half a second, and all retries.
local BOUND = 4
local SIZES = { 8, 64, 4096, 65536, 2 ^ 20 + 3, 2 ^ 24 }

local function idle(child, perigee_)
  child.say("ready")
  perigee_.run(function() perigee_.sleep(math.huge) end)
end

describe("a session without a socket", function()
  local sides, why = weather.anywhere()
  if not sides then return pending(why) end
  local near, far

  before_each(function() near, far = endpoints.agents() end)
  after_each(function()
    weather.calm()
    cases.cleanup()
  end)

  local function moves(session, engine, theirs, sizes)
    local region = assert(session:region("kv"))
    local here = engine:alloc(2 ^ 24)
    for i, size in ipairs(sizes) do
      local bytes = cases.bytes(size, i)
      local mine = here:slice(0, size)
      ffi.copy(mine.pointer, bytes, size)
      assert(session:write { from = mine, to = region:slice(0, size) }:wait(30))
      assert.is_true(theirs:slice(0, size):string() == bytes)
      mine:fill(0)
      assert(session:read { from = region:slice(0, size), to = mine }:wait(30))
      assert.is_true(mine:string() == bytes)
    end
    here:close()
  end

  local function exported(agent)
    return agent.engine:alloc(2 ^ 24, { name = "kv", access = "rw" })
  end

  it("moves 8 bytes to 16 MiB, both ways", function()
    local a, b = endpoints.sessions(near, far)
    local of_near, of_far = exported(near), exported(far)
    moves(a, near.engine, of_far, SIZES)
    moves(b, far.engine, of_near, SIZES)
  end)

  it("moves them although packets are lost", function()
    if not sides.crossing then return pending "it wants a link" end
    local a, b = endpoints.sessions(near, far)
    local of_near, of_far = exported(near), exported(far)
    weather.netem "loss 2%"
    moves(a, near.engine, of_far, { 8, 4096, 65536 })
    moves(b, far.engine, of_near, { 8, 4096, 65536 })
  end)

  it("looks up regions by name, many at once", function()
    local a = endpoints.sessions(near, far)
    local none, err = a:region("nothing")
    assert.is_nil(none)
    assert.equal("not_found", err.kind)
    far.engine:alloc(64, { name = "mine" })
    none, err = a:region("mine")
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    local futures, long = {}, ("n"):rep(250)
    for i = 1, 200 do
      far.engine:alloc(64 * i, { name = long .. i, access = "r" })
    end
    for i = 1, 200 do
      futures[i] = perigee.spawn(function()
        return assert(a:region(long .. i)).length
      end)
    end
    for i = 1, 200 do assert.equal(64 * i, assert(futures[i]:wait(20))) end
  end)

  it("calls, with bulk both ways", function()
    local a = endpoints.sessions(near, far)
    local there = far.engine:alloc(2 ^ 24)
    far:serve { name = "x", version = 1, methods = {
      echo = { raw = true, function(request) return request end },
      put = { landing = function(length) return there:slice(0, length) end,
              function(slice) return slice.length end },
      get = function(length) return there:slice(0, length) end,
    } }
    local x = assert(a:proxy("x", { timeout = 20 }))
    for _, size in ipairs(cases.sizes) do
      local bytes = cases.bytes(size, 3)
      assert.is_true(assert(x:echo(bytes)) == bytes)
    end
    local here = near.engine:alloc(2 ^ 24)
    local bytes = cases.bytes(2 ^ 24, 5)
    ffi.copy(here:slice(0, 2 ^ 24).pointer, bytes, #bytes)
    assert.equal(2 ^ 24, assert(x:put(here:slice(0, 2 ^ 24))))
    here:slice(0, 2 ^ 24):fill(0)
    assert(x:with({ into = here:slice(0, 2 ^ 24) }):get(2 ^ 24))
    assert.is_true(here:slice(0, 2 ^ 24):string() == bytes)
  end)

  it("brings messages and immediates", function()
    local a, b = endpoints.sessions(near, far)
    local from, to = near.engine:alloc(4096), exported(far)
    local receive = b:recv(to:slice(0, 4096))
    from:slice(0, 100):fill(9)
    assert(a:send(from:slice(0, 100)):wait(10))
    assert.equal(100, assert(receive:wait(10)))
    local region = assert(a:region("kv"))
    assert(a:write_imm({ from = from:slice(0, 64), to = region:slice(0, 64) },
                       77):wait(10))
    assert.equal(77, assert(b:recv_imm():wait(10)))
  end)

  it("goes on after a refusal that resets a pair", function()
    local a = endpoints.sessions(near, far)
    local kv = exported(far)
    local here = near.engine:alloc(2 ^ 16)
    for round = 1, 3 do
      local region = assert(a:region("kv"))
      local whole = { from = here:slice(0, 2 ^ 16),
                      to = region:slice(0, 2 ^ 16) }
      assert(a:write(whole):wait(10))
      kv:close(5)
      local none, err = a:write(whole):wait(10)
      assert.is_nil(none)
      assert.equal("stale", err.kind)
      kv = exported(far)
      local again = assert(a:region("kv"))
      here:slice(0, 2 ^ 16):fill(round)
      assert(a:write { from = here:slice(0, 2 ^ 16),
                       to = again:slice(0, 2 ^ 16) }:wait(10))
      assert.equal(round, kv:slice(0, 1).pointer[0])
    end
    assert.is_nil(a:explain().carrier:match(" 0 resets"))
  end)

  it("lives through idle times", function()
    local a, b = endpoints.sessions(near, far)
    perigee.sleep(2.5)
    assert.is_false(a.lost or b.lost)
    moves(a, near.engine, exported(far), { 8 })
  end)

  describe("ends", function()
    it("when it is closed, at once for the peer", function()
      for _ = 1, 3 do
        local a, b = endpoints.sessions(near, far)
        local waits = b:recv_imm()
        a:close()
        local none, err = waits:wait(BOUND)
        assert.is_nil(none)
        assert.equal("peer_lost", err.kind)
        assert.is_true(endpoints.lost(b, BOUND))
        assert.equal("peer_lost", b.lost.kind)
        assert.matches("closed the session", b:explain().reason)
      end
    end)

    it("when the peer's engine is closed", function()
      local a = endpoints.sessions(near, far)
      far:close()
      assert.is_true(endpoints.lost(a, BOUND))
      assert.matches("closed the session", a:explain().reason)
    end)

    it("when the peer is killed while all is idle", function()
      local session, child = endpoints.child(near, idle)
      child:expect("ready", 20)
      perigee.sleep(1)
      local died = process.now()
      child:kill()
      assert.is_true(endpoints.lost(session, BOUND))
      assert.is_true(process.now() - died < BOUND)
      assert.equal("peer_lost", session.lost.kind)
    end)

    -- A device keeps queue pairs for as long as a process has them.
    it("when the peer is killed that a forked child of it outlives", function()
      local session, child = endpoints.child(near, function(child, perigee_,
                                                           ffi_, agent)
        ffi_.cdef "int fork(void);"
        if ffi_.C.fork() == 0 then
          agent.engine:close()
          child.say "closed"
          child.hear() -- until the spec ends
          os.exit(0)
        end
        perigee_.run(function() perigee_.sleep(math.huge) end)
      end)
      child:expect("closed", 20)
      perigee.sleep(1)
      assert.is_false(session.lost)
      child:kill()
      assert.is_true(endpoints.lost(session, BOUND))
      assert.equal("peer_lost", session.lost.kind)
    end)

    it("when the peer is killed under load", function()
      local session, child = endpoints.child(near, function(child, perigee_, _,
                                                           agent)
        agent.engine:alloc(2 ^ 24, { name = "kv", access = "rw" })
        child.say("ready")
        perigee_.run(function() perigee_.sleep(math.huge) end)
      end)
      child:expect("ready", 20)
      local kv, here = assert(session:region("kv")), near.engine:alloc(2 ^ 24)
      local futures = { session:recv_imm(), session:recv(here:slice(0, 9)) }
      for i = 3, 8 do
        futures[i] = session:write { from = here:slice(0, 2 ^ 24),
                                     to = kv:slice(0, 2 ^ 24) }
      end
      perigee.sleep(0.05)
      child:kill()
      for _, future in ipairs(futures) do
        local none, err = future:wait(BOUND)
        assert.is_nil(none)
        assert.equal("peer_lost", err.kind)
      end
      assert.equal(0, near.engine:stats().operations)
    end)

    it("not when the peer is stopped for a while", function()
      local session, child = endpoints.child(near, function(child, perigee_, _,
                                                           agent)
        agent.engine:alloc(2 ^ 16, { name = "kv", access = "rw" })
        child.say("ready")
        perigee_.run(function() perigee_.sleep(math.huge) end)
      end)
      child:expect("ready", 20)
      child:signal("STOP")
      perigee.sleep(2.5)
      child:signal("CONT")
      assert.is_false(session.lost)
      assert(session:region("kv"))
    end)

    it("when the way to the peer is cut", function()
      if not sides.crossing then return pending "it wants a link" end
      local a, b = endpoints.sessions(near, far)
      weather.netem "loss 100%"
      assert.is_true(endpoints.lost(a, BOUND))
      assert.is_true(endpoints.lost(b, BOUND))
    end)
  end)
end)
