-- SPDX-License-Identifier: Apache-2.0
-- Kept sessions: one-sided access goes on when the session was lost, and never
-- reads or writes the memory of another life of the peer.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LENGTH = 4096

local function wrong(kind, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err), tostring(err))
  assert.equal(kind, err.kind, tostring(err))
  assert.is_false(err.sent)
end

local function ended(session)
  assert.is_true(cases.eventually(function() return not session.handle end))
end

describe("a kept session", function()
  local owner, agent, kept, lent, own

  local function lend(byte)
    lent = assert(owner.engine:alloc(LENGTH, { name = "kv", access = "rw" }))
    lent:slice():fill(byte)
  end

  -- As a wire that breaks: neither side lives another life.
  local function cut()
    local before = kept.current
    assert.is_true(cases.eventually(function()
      return next(owner.engine.sessions)
    end) and true)
    for _, session in pairs(owner.engine.sessions) do session:close() end
    ended(before)
  end

  before_each(function()
    owner = assert(cases.agent("owner"))
    lend(5)
    agent = assert(cases.agent())
    kept = assert(agent:session("owner", { keep = true, reconnect = 20 }))
    own = cases.alloc(agent.engine, LENGTH):slice()
  end)
  after_each(cases.cleanup)

  it("goes on with its regions and slices when the wire breaks", function()
    local remote, epoch = assert(kept:region "kv"), kept.epoch
    local slice = remote:slice(8, 8)
    for n = 1, 3 do
      assert(kept:read({ from = slice, to = own:slice(0, 8) }):wait(10))
      assert.equal(cases.byte(own), n == 1 and 5 or n)
      cut()
      own:fill(n + 1)
      assert(kept:write({ from = own:slice(0, 8), to = slice }):wait(10))
    end
    assert.equal(("\4"):rep(8), lent:slice(8, 8):string())
    assert.equal(("\5"):rep(8), lent:slice(0, 8):string())
    assert.equal(epoch, kept.epoch)
    assert.equal(remote, kept:region "kv")
    assert.equal("open", kept:explain().state)
  end)

  it("joins the next session once, however many transfers wait", function()
    local from = assert(kept:region "kv"):slice()
    cut()
    local reads = {}
    for i = 1, 50 do reads[i] = kept:read { from = from, to = own } end
    assert(perigee.wait_all(reads, 20))
    assert.equal(1, agent.engine:stats().sessions)
  end)

  it("shares its session with proxies, and sends by it", function()
    owner:serve { name = "x", methods = { same = function(x) return x end } }
    local proxy = assert(agent:proxy("owner", "x"))
    assert.equal(perigee.session(proxy), assert(kept:session()))
    cut()
    assert.equal(7, (proxy:same(7)))
    assert.equal(perigee.session(proxy), assert(kept:session()))
    assert(kept:write_imm({ from = own:slice(0, 1),
      to = assert(kept:region "kv"):slice(0, 1) }, 42):wait(10))
    local _, session = next(owner.engine.sessions)
    assert.equal(42, session:recv_imm():wait(10))
  end)

  it("tells memory that was closed meanwhile from what has its name now",
     function()
    local from = assert(kept:region "kv"):slice()
    assert(lent:close())
    lend(6)
    cut()
    wrong("stale", kept:read({ from = from, to = own }):wait(10))
    from = assert(kept:region "kv"):slice()
    assert(kept:read({ from = from, to = own }):wait(10))
    assert.equal(6, cases.byte(own))
  end)

  it("raises misuse at the line that calls it, away or not", function()
    local function blamed(use)
      local fine, message = pcall(use)
      assert.is_false(fine)
      assert.matches("kept_spec.lua:", message)
    end
    blamed(function() kept:read(7) end)
    blamed(function() kept:region(7) end)
    cut()
    blamed(function() kept:read { timeout = "long" } end)
    assert.has_error(function() kept:read({ from = own }):wait(10) end)
  end)

  it("is over when it is closed", function()
    kept:close()
    kept:close()
    wrong("closed", kept:read({ from = own, to = own }):wait(1))
    wrong("closed", kept:region "kv")
  end)
end)

-- Lends what only its life has.
local function lender(child, perigee_, _, life)
  local agent = assert(child.cases.agent("worker"))
  agent.engine:alloc(4096, { name = "kv", access = "rw" }):slice()
    :fill(tonumber(life))
  child.say("ready")
  perigee_.run()
end

describe("a kept session with a peer that dies", function()
  local child, agent, kept, own

  local function start(life)
    child = process.start(lender, life)
    child:expect("ready")
  end

  local function kill()
    child:kill()
    ended(kept.current)
  end

  before_each(function()
    start(1)
    agent = assert(cases.agent())
    assert(cases.eventually(function()
      kept = agent:session("worker", { keep = true, reconnect = 60 })
      return kept
    end))
    own = cases.alloc(agent.engine, LENGTH):slice()
  end)
  after_each(cases.cleanup)

  it("ends in stale what is of an earlier life, and waits for the next",
     function()
    local from, epoch = assert(kept:region "kv"):slice(), kept.epoch
    kill()
    own:fill(9)
    local read = kept:read { from = from, to = own, timeout = 60 }
    start(2)
    wrong("stale", read:wait(60))
    wrong("stale", kept:write({ from = own, to = from }):wait(10))
    assert.equal(9, cases.byte(own))
    assert.not_equal(epoch, kept.epoch)
    from = assert(kept:region "kv"):slice()
    assert(kept:read({ from = from, to = own }):wait(10))
    assert.equal(2, cases.byte(own))
  end)

  it("says in time that nobody comes back", function()
    local from = assert(kept:region "kv"):slice()
    kill()
    wrong("timeout", kept:read({ from = from, to = own, timeout = 0.05 })
      :wait(10))
    kept = assert(kept)
    kept.reconnect = 0.1
    wrong("peer_lost", kept:read({ from = from, to = own }):wait(10))
    wrong("peer_lost", kept:region "kv")
    wrong("peer_lost", kept:session())
    local waiting = kept:read { from = from, to = own }
    waiting:cancel()
    assert.equal("cancelled", select(2, waiting:wait(1)).kind)
  end)
end)
