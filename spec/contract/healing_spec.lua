-- SPDX-License-Identifier: Apache-2.0
-- A worker is killed and started again, and its callers' proxies find it again.
-- Handles of the worker's earlier life are invalid.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local mortal = require "spec.support.mortal"
local process = require "spec.support.process"

local kill, marks, restart = mortal.kill, mortal.marks, mortal.restart
local start, wrong = mortal.start, mortal.wrong

local LONG = 30 * cases.slow

describe("a proxy", function()
  local proxy, agent, session

  before_each(function()
    mortal.begin()
    -- However long the child takes to start.
    proxy, agent = cases.proxy("x", { timeout = LONG,
                                      reconnect = 60 })
    session = assert(agent:session("worker"))
  end)
  after_each(mortal.finish)

  it("survives a restart of its worker", function()
    for n = 2, 5 do
      kill(session)
      restart()
      assert.equal(n, (proxy:life()))
      assert.equal("same", (proxy:same("same")))
      assert.equal(1, agent.engine:stats().sessions)
      session = assert(agent:session("worker"))
      assert.equal(1, agent.engine:stats().sessions)
    end
  end)

  it("is made although its peer is lost before it tells of the service",
     function()
    local one, closed = assert(cases.agent "one"), 0
    one:serve { name = "x", methods = { f = function() return 1 end } }
    one:on_session(function(came)
      closed = closed + 1
      if closed < 3 then came:close() end
    end)
    local made = assert(agent:proxy("one", "x", { reconnect = 60 }))
    assert.equal(1, (made:f()))
    assert.equal(3, closed)
    closed = -1e9
    perigee.session(made):close()
    local none, err = agent:proxy("one", "y", { reconnect = 0 })
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind)
  end)

  it("says so of a call that nobody comes back for", function()
    kill(session)
    local started = process.now()
    local short = proxy:with { reconnect = 0.2 }
    wrong("peer_lost", false, short:same(1))
    wrong("peer_lost", false, short.async:same(1):wait())
    wrong("peer_lost", false, short:echo("bytes"))
    local took = process.now() - started
    assert.is_true(took > 0.3 and took < 3 * cases.slow, took)
    wrong("timeout", false, proxy:with({ timeout = 0.1 }):same(1))
    wrong("timeout", false, proxy:with({ timeout = 0.1 }):often(0))
    started = process.now()
    for _ = 1, 100 do
      wrong("peer_lost", false, proxy:with({ reconnect = 0 }):same(1))
    end
    assert.is_true(process.now() - started < 2 * cases.slow)
  end)

  -- "At once" must hold one time of three, as the machine may do other work.
  it("waits for a worker that is away, and serves it at once", function()
    local soonest = math.huge
    for _ = 1, 3 do
      kill(session)
      local ended
      local future = perigee.spawn(function()
        local got = proxy:with({ reconnect = 60, timeout = 60 }):life()
        ended = process.now()
        return got
      end)
      local other = proxy:with({ reconnect = 60 }).async:same("later")
      perigee.sleep(0.3)
      assert.is_false(future:done())
      start()
      mortal.child:expect("ready", nil, cases.pump)
      local listened = process.now()
      assert.equal(mortal.life, (future:wait(LONG)))
      assert.equal("later", (other:wait(LONG)))
      soonest = math.min(soonest, ended - listened)
      session = assert(agent:session("worker"))
    end
    assert.is_true(soonest < 0.2 * cases.slow, soonest)
  end)

  it("dials once for all tasks that wait", function()
    kill(session)
    local lives = {}
    for i = 1, 50 do
      lives[i] = perigee.spawn(function() return proxy:life() end)
      lives[50 + i] = proxy.async:life()
    end
    perigee.sleep(0.05)
    restart()
    for i = 1, 100 do assert.equal(2, (lives[i]:wait(LONG))) end
    assert.equal(1, agent.engine:stats().sessions)
  end)

  it("keeps the order of what waited", function()
    kill(session)
    local futures = {}
    for i = 1, 20 do
      futures[i] = i % 2 == 0 and proxy.async:nth()
        or perigee.spawn(function() return proxy:nth() end)
    end
    perigee.sleep(0.03)
    restart()
    for i = 1, 20 do assert.equal(i, (futures[i]:wait(LONG))) end
  end)

  it("binds methods by name again, whatever is held of it", function()
    local held, short = proxy.same, proxy:with { timeout = LONG }
    local gone = proxy.gone
    assert.equal("here", (proxy:gone()))
    kill(session)
    restart()
    assert.equal(7, (held(proxy, 7)))
    assert.equal(8, (short:same(8)))
    assert.equal(9, (short.async:same(9):wait(LONG)))
    local got, err = proxy:gone()
    assert.is_nil(got)
    assert.equal("no_method", err.kind)
    assert.is_false(err.sent)
    assert.matches("often", tostring(err))
    got, err = gone(proxy)
    assert.is_nil(got)
    assert.equal("no_method", err.kind)
    assert.is_nil((proxy:new()))
    assert.equal("none that was asked for", (proxy:a1()))
  end)

  it("that asked for a version gets no other", function()
    local strict = assert(agent:proxy("worker", "x",
                                      { timeout = LONG, version = 1 }))
    local loose = assert(agent:proxy("worker", "x",
                                     { timeout = LONG, version = { 1, 2 } }))
    assert.equal(1, (strict:life()))
    kill(session)
    restart()
    for _ = 1, 3 do
      local err = wrong("version", false, strict:life())
      assert.matches("version 2", tostring(err))
      assert.equal(2, (loose:life()))
    end
    session = assert(agent:session("worker"))
    kill(session)
    restart()
    wrong("version", false, strict:life())
    wrong("version", false, loose:life())
    assert.equal(3, (proxy:life()))
  end)

  it("that asked for an epoch reaches no other life", function()
    local epoch = session.epoch
    local first = proxy:with { epoch = epoch }
    assert.equal(1, (first:life()))
    assert.equal(session, perigee.session(first))
    kill(session)
    restart()
    for _ = 1, 3 do
      wrong("stale", false, first:life())
      wrong("stale", false, first:echo("bytes"))
      wrong("stale", false, first.async:often(0):wait(LONG))
      assert.equal(2, (proxy:life()))
      wrong("stale", false, proxy:with({ epoch = epoch }):life())
    end
    local second = proxy:with { epoch = perigee.session(proxy).epoch }
    assert.equal(2, (second:with({ timeout = LONG }):life()))
    assert.has_error(function() perigee.session(agent) end)
  end)

  -- It has everything that a session has, and reaches no peer.
  it("has a session that tells of itself, also where it is to reach none",
     function()
    local other = proxy:with { epoch = "0123456789abcdef" }
    local again = proxy:with {}
    again:close()
    again:close()
    for kind, each in pairs { stale = other, closed = again } do
      local nowhere = perigee.session(each)
      assert.equal(session.id, nowhere:explain().id)
      assert.matches("worker.*" .. kind, tostring(nowhere))
      wrong(kind, false, nowhere:region "kv")
      local slice = cases.alloc(agent.engine, 64):slice()
      wrong(kind, false, nowhere:send(slice):wait(LONG))
      wrong(kind, false, nowhere:proxy "x")
      nowhere:close()
    end
    assert.equal(1, (proxy:life()))
    assert.equal(session, perigee.session(proxy))
  end)

  it("is not brought back by what closed it", function()
    local other = assert(agent:proxy("worker", "x", { timeout = LONG }))
    other:close()
    session:close()
    wrong("closed", false, proxy:same(1))
    wrong("closed", false, proxy.async:same(1):wait())
    local new = assert(agent:proxy("worker", "x", { timeout = LONG }))
    assert.equal(1, (new:same(1)))
    wrong("closed", false, proxy:same(1))
    session = assert(agent:session("worker"))
    local waiting
    kill(session)
    waiting = new.async:same(1)
    local task = perigee.spawn(function() return new:same(1) end)
    perigee.sleep(0.02)
    new:close()
    restart()
    wrong("closed", false, waiting:wait(LONG))
    wrong("closed", false, task:wait(LONG))
    new = assert(agent:proxy("worker", "x", { timeout = 60 }))
    kill(assert(agent:session("worker")))
    waiting = new.async:often(0)
    perigee.sleep(0.02)
    agent:close()
    local got, err = waiting:wait(LONG)
    assert.is_nil(got)
    assert.equal("closed", err.kind)
  end)

  it("of a session alone ends with it", function()
    local bare = assert(session:proxy("x", { timeout = LONG }))
    kill(session)
    restart()
    wrong("peer_lost", false, bare:same(1))
    wrong("peer_lost", false, bare.async:often(0):wait(LONG))
  end)

  it("is helped by who dials meanwhile", function()
    kill(session)
    local waiting = proxy.async:nth()
    perigee.sleep(0.03)
    restart()
    assert.equal("x", (assert(agent:proxy("worker", "x")):same("x")))
    assert.equal(1, (waiting:wait(LONG)))
    assert.equal(1, agent.engine:stats().sessions)
    perigee.sleep(0.1)
    assert.equal(1, agent.engine:stats().sessions)
  end)

  it("goes on after a stop of the loop, which drops who waits", function()
    kill(session)
    local got, err = perigee.run(function()
      perigee.spawn(function() proxy:with({ reconnect = 60 }):once(0) end)
      perigee.spawn(function() perigee.sleep(0.03) perigee.stop() end)
      return proxy:once(0)
    end)
    assert.is_nil(got)
    assert.equal("closed", err.kind)
    restart()
    assert.equal(2, (proxy:life()))
    assert.equal(0, marks("once"))
  end)

  it("burns no time while it waits", function()
    kill(session)
    local before = os.clock()
    wrong("peer_lost", false, proxy:with({ reconnect = 2 }):same(1))
    local burnt = os.clock() - before
    assert.is_true(burnt < 0.4 * cases.slow, burnt)
  end)

  it("brings raw results and large ones back, too", function()
    for n = 2, 3 do
      kill(session)
      restart()
      local text = cases.bytes(2 ^ 20, n)
      assert.is_true(proxy:echo(text) == text)
      session = assert(agent:session("worker"))
    end
  end)
end)

describe("ten callers", function()
  before_each(mortal.begin)
  after_each(mortal.finish)

  it("all go on when their worker is restarted under load", function()
    local ended, tasks, stop = {}, {}, false
    for i = 1, 10 do
      local proxy = cases.proxy("x", { timeout = LONG,
                                       reconnect = 60 })
      tasks[i] = perigee.spawn(function()
        local n, lost = 0, 0
        repeat
          n = n + 1
          local got, err = proxy:same(n)
          if not got then
            assert(err.kind == "peer_lost", tostring(err))
            lost = lost + 1
          else
            assert(got == n)
          end
          ended[i] = got and mortal.life
          perigee.sleep(0.001)
        until stop
        return lost
      end)
    end
    local function all_at(n)
      assert.is_true(cases.eventually(function()
        for i = 1, 10 do
          if tasks[i]:done() then error(select(2, tasks[i]:wait())) end
          if ended[i] ~= n then return false end
        end
        return true
      end, 10 * cases.slow))
    end
    all_at(1)
    for n = 2, 4 do
      mortal.child:kill()
      start()
      mortal.child:expect("ready", nil, cases.pump)
      all_at(n)
    end
    stop = true
    assert(perigee.wait_all(tasks, 20 * cases.slow))
    for i = 1, 10 do assert.is_true(tasks[i]:wait(0) <= 3) end
  end)
end)

describe("a handle of a worker's earlier life", function()
  local agent, session

  before_each(function()
    mortal.begin()
    agent = assert(cases.agent())
    session = assert(agent:session("worker"))
  end)
  after_each(mortal.finish)

  local function over(kind, got, err)
    assert.is_nil(got)
    assert.equal(kind, err.kind, tostring(err))
    assert.is_false(err.sent)
  end

  it("is stale or lost, and touches nothing", function()
    local old = assert(session:region("kv"))
    local part, here = old:slice(0, 64), agent.engine:alloc(64):slice(0, 64)
    local one = { from = part, to = here }
    local prepared = assert(session:prepare_read(one))
    assert(session:read(one):wait(LONG))
    assert.equal(1, cases.byte(here))
    here:fill(77)
    kill(session)
    restart()
    local new = assert(agent:session("worker"))
    over("peer_lost", session:read(one):wait(LONG))
    over("peer_lost", prepared:post():wait(LONG))
    over("peer_lost", session:region("kv"))
    over("stale", new:read(one):wait(LONG))
    over("stale", new:read({ one, one }):wait(LONG))
    over("stale", new:write({ from = here, to = part }):wait(LONG))
    over("stale", new:write_imm({ from = here, to = part }, 1):wait(LONG))
    over("stale", new:prepare_read(one))
    assert.equal(77, cases.byte(here))
    local fresh = assert(new:region("kv"))
    assert(new:read({ from = fresh:slice(0, 64), to = here }):wait(LONG))
    assert.equal(2, cases.byte(here))
  end)
end)
