-- SPDX-License-Identifier: Apache-2.0
-- Kept sessions in trouble: the peer ends the session while this process does
-- not look, or is stopped, or the session ends while it is being joined. Kept
-- sessions are closed, or the loop is stopped, while something waits.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"
local Session = require("perigee.engine.session").Session

local LENGTH = 4096
local look_up = Session.region_apart

-- Lends memory that its peers cannot map, and ends its sessions a moment after
-- it is asked to.
local function lender(child, perigee_, ffi_)
  local agent = assert(child.cases.agent("worker"))
  local bytes = ffi_.new("uint8_t[4096]", 5)
  local lent = assert(agent.engine:register(bytes, 4096, {
    name = "kv", access = "rw" })):slice()
  agent:serve { name = "x", version = 1, methods = {
    byte = function() return lent:string():byte() end,
    cut = function()
      perigee_.spawn(function()
        perigee_.sleep(0.01)
        for _, session in pairs(agent.engine.sessions) do session:close() end
      end)
    end,
  } }
  child.say("ready")
  perigee_.run()
end

local function wrong(kind, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err), tostring(err))
  assert.equal(kind, err.kind, tostring(err))
  assert.is_false(err.sent)
end

describe("a kept session in trouble", function()
  local child, agent, kept, own, proxy, from

  local function start() child = process.start(lender):expect("ready") end

  before_each(function()
    start()
    agent = assert(cases.agent())
    kept = assert(agent:session("worker", { keep = true, reconnect = 60 }))
    own = cases.alloc(agent.engine, LENGTH):slice()
    from = assert(kept:region "kv"):slice()
    proxy = assert(agent:proxy("worker", "x"))
  end)
  after_each(function()
    Session.region_apart = look_up
    cases.cleanup()
  end)

  local function read() return kept:read { from = from, to = own } end

  -- Ends the session, and waits until this process has noticed.
  local function cut()
    local session = assert(kept:session())
    proxy:cut()
    assert.is_true(cases.eventually(function() return not session.handle end))
  end

  -- Calls use again and again, and does nothing else, until there is a new
  -- session. After a failure the next use has to succeed.
  local function heals(use)
    local id, limit = kept:explain().id, process.now() + 20 * cases.slow
    local failed = 0
    proxy:cut()
    repeat
      local got, err = use()
      failed = got and 0 or failed + 1
      assert.is_true(failed < 2 and process.now() < limit, tostring(err))
    until got and kept:explain().id ~= id
  end

  it("goes on though all that its program does is to try again", function()
    heals(function() return read():wait() end)
    heals(function() return kept:region "kv" end)
    local post = assert(kept:prepare_read { from = from, to = own })
    heals(function() return post:post():wait() end)
    heals(function()
      local prepared, why = kept:prepare_read { from = from, to = own }
      if not prepared then return nil, why end
      local got, err = prepared:post():wait()
      prepared:close()
      return got, err
    end)
    assert.is_true(read():wait())
  end)

  -- The peer is stopped as soon as it is asked for a region.
  local function stands_still()
    function Session.region_apart(...)
      child:signal "STOP"
      return look_up(...)
    end
  end

  local function moves()
    Session.region_apart = look_up
    child:signal "CONT"
  end

  it("keeps its regions where a short time was not enough to ask for them",
     function()
    cut()
    stands_still()
    wrong("timeout", kept:read({ from = from, to = own, timeout = 0.2 })
      :wait(10))
    moves()
    assert.is_true(read():wait(10))
    assert.equal(5, cases.byte(own))
  end)

  it("keeps them where the session ends in which they are asked for",
     function()
    local ends = 3
    cut()
    function Session.region_apart(session, ...)
      local region, err = look_up(session, ...)
      if ends > 0 then session:close() end
      ends = ends - 1
      return region, err
    end
    assert.is_true(read():wait(20))
    assert.equal(5, cases.byte(own))
    assert.is_true(ends <= 0)
  end)

  it("ends what waits for an answer of its peer when it is closed", function()
    cut()
    stands_still()
    local waiting = { kept:write { from = own, to = from }, kept:recv(own),
      perigee.spawn(function() return kept:region "kv" end),
      perigee.spawn(function() return kept:session() end) }
    perigee.sleep(0.05)
    kept:close()
    for _, future in ipairs(waiting) do wrong("closed", future:wait(10)) end
    moves()
    assert.equal(5, (proxy:byte()))
  end)

  it("ends what waits for a peer that is away when it is closed", function()
    local session = kept:session()
    child:kill()
    assert.is_true(cases.eventually(function() return not session.handle end))
    local prepared = perigee.spawn(function()
      return kept:prepare_read { from = from, to = own }
    end)
    local sent = kept:send(own)
    perigee.sleep(0.05)
    assert.is_false(sent:done() or prepared:done())
    kept:close()
    assert.is_true(sent:done())
    wrong("closed", sent:wait(1))
    wrong("closed", prepared:wait(10))
    start()
    wrong("closed", kept:send(own):wait(1))
  end)

  it("is over with its session, if that is closed on this side", function()
    kept:session():close()
    assert.is_true(read():done())
    wrong("closed", read():wait(10))
    wrong("closed", kept:region "kv")
    wrong("closed", kept:session())
    wrong("closed", kept:prepare_read { from = from, to = own })
    assert.matches("closed", tostring(kept))
    for _, session in pairs(agent.engine.sessions) do
      assert.is_false(session.handle)   -- no new session was made
    end
  end)

  it("does not wait for a peer that is away, if its session is closed",
     function()
    local session = kept:session()
    local prepared = assert(kept:prepare_read { from = from, to = own })
    child:kill()
    assert.is_true(cases.eventually(function() return not session.handle end))
    session:close()
    assert.is_true(read():done())
    wrong("closed", read():wait())
    assert.is_true(prepared:post():done())
    wrong("closed", prepared:wait())
    wrong("closed", kept:session())
  end)

  it("ends what waits for a peer that is away when the loop is stopped",
     function()
    local session, waiting = kept:session(), nil
    local prepared = assert(kept:prepare_read { from = from, to = own })
    child:kill()
    assert.is_true(cases.eventually(function() return not session.handle end))
    perigee.run(function()
      waiting = { read(), kept:recv(own), prepared:post(), proxy.async:byte() }
      perigee.sleep(0.01)
      perigee.stop()
      perigee.sleep(60)
    end)
    for _, future in ipairs(waiting) do
      assert.is_true(future:done())
      assert.equal("closed", select(2, future:wait()).kind)
    end
    start()
    assert.equal(5, (proxy:byte()))
    assert(kept:session(20))
    wrong("stale", prepared:post():wait(20))
  end)

  it("goes on after a stop of the loop while it joined a session", function()
    cut()
    function Session.region_apart(...)
      perigee.stop()
      return look_up(...)
    end
    perigee.run(function() return read():wait() end)
    Session.region_apart = look_up
    assert.is_true(read():wait(20))
    assert.equal(5, cases.byte(own))
  end)
end)
