-- SPDX-License-Identifier: Apache-2.0
-- A worker is killed and started again, and its callers' proxies find it again.
-- Operations in flight end once; calls that may be repeated are repeated;
-- handles of the worker's earlier life are invalid.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

-- Serves x as "worker", in one of its lives. Methods have other ids in each
-- life. Marks are lines in a file that outlives it.
local function server(child, perigee_, _, life, file)
  local agent = assert(child.cases.agent("worker"))
  local function mark(text)
    local f = assert(io.open(file, "a"))
    f:write(text, "\n")
    f:close()
  end
  local first, calls = life == "1", 0
  local methods = {
    life = function() return tonumber(life) end,
    same = function(x) return x end,
    nth = function()
      calls = calls + 1
      return calls
    end,
    echo = { raw = true, function(request) return request end },
    once = function(seconds)
      mark("once")
      perigee_.sleep(first and seconds or 0)
      return life
    end,
    often = { idempotent = true, function(seconds, ...)
      mark("often")
      perigee_.sleep(first and seconds or 0)
      return life, ...
    end },
    bytes = { idempotent = true, raw = true, inplace = true,
              function(request, reply)
      if first then
        mark("bytes")
        local limit = os.clock() + 10
        repeat until os.clock() > limit
      end
      reply.pointer[0] = request.pointer[0] + 1
      return 1
    end },
    fails = { idempotent = true, function() error("on purpose") end },
  }
  if first then
    methods.gone = function() return "here" end
  else
    for i = 1, tonumber(life) do
      methods["a" .. i] = function() return "none that was asked for" end
    end
    methods.same, methods.new = function(x) return x end, function() end
  end
  agent.engine:alloc(4096, { name = "kv", access = "rw" }):slice(0, 4096)
    :fill(tonumber(life))
  agent:serve { name = "x", version = tonumber(life), methods = methods }
  child.say("ready")
  perigee_.run()
  agent:close()
end

local child, life, file

local function start()
  life = life + 1
  child = process.start(server, life, file)
end

local function restart()
  start()
  child:expect("ready")
end

local function marks(word)
  local n, f = 0, io.open(file)
  if not f then return 0 end
  for line in f:lines() do
    if line == word then n = n + 1 end
  end
  f:close()
  return n
end

local function marked(word, n)
  assert.is_true(cases.eventually(function() return marks(word) >= n end))
end

-- Kills it, and waits until this process has noticed.
local function kill(session)
  child:kill()
  assert.is_true(cases.eventually(function() return not session.handle end))
end

local function wrong(kind, sent, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err))
  assert.equal(kind, err.kind, tostring(err))
  assert.equal(sent, err.sent, tostring(err))
  assert.matches("worker", tostring(err))
  return err
end

describe("a proxy", function()
  local proxy, agent, session

  before_each(function()
    life, file = 0, os.tmpname()
    restart()
    -- However long the child takes to start.
    proxy, agent = cases.proxy("x", { timeout = 30 * cases.slow,
                                      reconnect = 60 })
    session = assert(agent:session("worker"))
  end)
  after_each(function()
    cases.cleanup()
    os.remove(file)
  end)

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

  it("fails what is in flight once, and goes on", function()
    local futures = {}
    for i = 1, 5 do futures[i] = proxy.async:once(60) end
    futures[6] = perigee.spawn(function() return proxy:once(60) end)
    marked("once", 6)
    child:kill()
    for i = 1, 6 do
      local got, err = futures[i]:wait(5)
      assert.is_nil(got)
      assert.equal("peer_lost", err.kind)
      assert.is_true(err.sent ~= false)
    end
    restart()
    assert.equal(2, (proxy:life()))
    assert.equal(6, marks("once"))
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
      child:expect("ready", 10, function() perigee.sleep(0.001) end)
      local listened = process.now()
      assert.equal(life, (future:wait(10)))
      assert.equal("later", (other:wait(10)))
      soonest = math.min(soonest, ended - listened)
      session = assert(agent:session("worker"))
    end
    assert.is_true(soonest < 0.2 * cases.slow, soonest)
  end)

  it("makes idempotent calls again that were in flight", function()
    local futures = {
      proxy.async:often(60, "a", nil, 3),
      perigee.spawn(function() return proxy:often(60, "b") end),
      proxy:with({ timeout = 60 }).async:often(60, "c"),
    }
    marked("often", 3)
    child:kill()
    perigee.sleep(0.02)
    for i = 1, 3 do assert.is_false(futures[i]:done()) end
    restart()
    assert.same({ "2", "a", nil, 3 }, { futures[1]:wait(10) })
    assert.same({ "2", "b" }, { futures[2]:wait(10) })
    assert.same({ "2", "c" }, { futures[3]:wait(10) })
    assert.equal(6, marks("often"))
  end)

  -- The wait itself then finds the session's end, before the loop has run.
  it("makes an idempotent call again whose peer's end nobody has seen",
     function()
    local future = proxy:with({ timeout = 60 }).async:often(60, "a")
    marked("often", 1)
    child:kill()
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
    child:kill()
    restart()
    assert.equal("b", assert(future:wait(10)):string())
    assert.equal("d", (other:wait(10)))
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
    child:kill()
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
      local got, err = future:wait(1)
      assert.is_nil(got)
      assert.equal("cancelled", err.kind)
    end
    restart()
    assert.equal(2, (proxy:life()))
    perigee.sleep(0.05)
    assert.equal(0, marks("once"))
    assert.equal(1, marks("often"))
    local again = proxy.async:often(0)
    assert.equal("2", (again:wait(5)))
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
    for i = 1, 100 do assert.equal(2, (lives[i]:wait(10))) end
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
    for i = 1, 20 do assert.equal(i, (futures[i]:wait(10))) end
  end)

  it("binds methods by name again, whatever is held of it", function()
    local held, short = proxy.same, proxy:with { timeout = 5 }
    local gone = proxy.gone
    assert.equal("here", (proxy:gone()))
    kill(session)
    restart()
    assert.equal(7, (held(proxy, 7)))
    assert.equal(8, (short:same(8)))
    assert.equal(9, (short.async:same(9):wait(5)))
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
                                      { timeout = 5, version = 1 }))
    local loose = assert(agent:proxy("worker", "x",
                                     { timeout = 5, version = { 1, 2 } }))
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
      wrong("stale", false, first.async:often(0):wait(5))
      assert.equal(2, (proxy:life()))
      wrong("stale", false, proxy:with({ epoch = epoch }):life())
    end
    local second = proxy:with { epoch = perigee.session(proxy).epoch }
    assert.equal(2, (second:with({ timeout = 5 }):life()))
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
      wrong(kind, false, nowhere:send(slice):wait(1))
      wrong(kind, false, nowhere:proxy "x")
      nowhere:close()
    end
    assert.equal(1, (proxy:life()))
    assert.equal(session, perigee.session(proxy))
  end)

  it("is not brought back by what closed it", function()
    local other = assert(agent:proxy("worker", "x", { timeout = 5 }))
    other:close()
    session:close()
    wrong("closed", false, proxy:same(1))
    wrong("closed", false, proxy.async:same(1):wait())
    local new = assert(agent:proxy("worker", "x", { timeout = 5 }))
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
    wrong("closed", false, waiting:wait(5))
    wrong("closed", false, task:wait(5))
    new = assert(agent:proxy("worker", "x", { timeout = 60 }))
    kill(assert(agent:session("worker")))
    waiting = new.async:often(0)
    perigee.sleep(0.02)
    agent:close()
    local got, err = waiting:wait(5)
    assert.is_nil(got)
    assert.equal("closed", err.kind)
  end)

  it("of a session alone ends with it", function()
    local bare = assert(session:proxy("x", { timeout = 5 }))
    kill(session)
    restart()
    wrong("peer_lost", false, bare:same(1))
    wrong("peer_lost", false, bare.async:often(0):wait(5))
  end)

  it("is helped by who dials meanwhile", function()
    kill(session)
    local waiting = proxy.async:nth()
    perigee.sleep(0.03)
    restart()
    assert.equal("x", (assert(agent:proxy("worker", "x")):same("x")))
    assert.equal(1, (waiting:wait(5)))
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
  before_each(function() life, file = 0, os.tmpname() restart() end)
  after_each(function()
    cases.cleanup()
    os.remove(file)
  end)

  it("all go on when their worker is restarted under load", function()
    local ended, tasks, stop = {}, {}, false
    for i = 1, 10 do
      local proxy = cases.proxy("x", { timeout = 20 * cases.slow,
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
          ended[i] = got and life
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
      child:kill()
      start()
      child:expect("ready", 10, function() perigee.sleep(0.001) end)
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
    life, file = 0, os.tmpname()
    restart()
    agent = assert(cases.agent())
    session = assert(agent:session("worker"))
  end)
  after_each(function()
    cases.cleanup()
    os.remove(file)
  end)

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
    assert(session:read(one):wait(5))
    assert.equal(1, cases.byte(here))
    here:fill(77)
    kill(session)
    restart()
    local new = assert(agent:session("worker"))
    over("peer_lost", session:read(one):wait(5))
    over("peer_lost", prepared:post():wait(5))
    over("peer_lost", session:region("kv"))
    over("stale", new:read(one):wait(5))
    over("stale", new:read({ one, one }):wait(5))
    over("stale", new:write({ from = here, to = part }):wait(5))
    over("stale", new:write_imm({ from = here, to = part }, 1):wait(5))
    over("stale", new:prepare_read(one))
    assert.equal(77, cases.byte(here))
    local fresh = assert(new:region("kv"))
    assert(new:read({ from = fresh:slice(0, 64), to = here }):wait(5))
    assert.equal(2, cases.byte(here))
  end)
end)
