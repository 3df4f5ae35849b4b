-- SPDX-License-Identifier: Apache-2.0
-- Kept sessions: transfers and messages continue after the session was lost,
-- and never read or write the memory of another life of the peer.
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

  -- The owner's session object.
  local function theirs()
    assert(cases.eventually(function()
      return next(owner.engine.sessions)
    end))
    return select(2, next(owner.engine.sessions))
  end

  -- Cuts the connection as a broken wire would: both processes live on.
  local function cut()
    local before = kept.current
    theirs()
    for _, session in pairs(owner.engine.sessions) do session:close() end
    ended(before)
  end

  before_each(function()
    owner = assert(cases.agent("owner"))
    lend(5)
    agent = assert(cases.agent())
    kept = assert(agent:session("owner", { keep = true, reconnect = 20 }))
    own = cases.alloc(agent.engine, LENGTH,
                      { name = "lent", access = "rw" }):slice()
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

  it("looks a region up again that it was at when the wire broke", function()
    for _ = 1, 3 do
      theirs()
      local found = perigee.spawn(function() return kept:region "kv" end)
      for _, session in pairs(owner.engine.sessions) do session:close() end
      local remote = assert(found:wait(10))
      assert(kept:read({ from = remote:slice(), to = own }):wait(10))
      assert.equal(5, cases.byte(own))
    end
  end)

  it("goes on with lists as they were, and with blocks by number", function()
    local remote = assert(kept:region "kv")
    local dims = { { 2, 24 }, { 3, 8 } }
    local move = assert(kept:prepare_write {
      from = perigee.layout { base = own, dims = dims, block = 8 },
      to = perigee.layout { base = remote:slice(), dims = dims, block = 8 } })
    local from = { remote:slice(0, 8), remote:slice(24, 8) }
    for n = 1, 3 do
      own:slice(0, 48):fill(n)
      assert(move:post({ from = { 2 }, to = { 0 } }):wait(10))
      if n > 1 then cut() end
      local to = { own:slice(104, 8), own:slice(96, 8) }
      local read = kept:read { from = from, to = to }
      to[1], to[2] = nil, nil
      assert(read:wait(10))
      assert.equal(string.char(n):rep(16), own:slice(96, 16):string())
    end
    move:close()
  end)

  -- A write of three blocks of 8 bytes, 1 to 3, each 16 bytes from the last.
  local function three()
    for i = 0, 2 do own:slice(16 * i, 8):fill(i + 1) end
    local dims = { { 3, 16 } }
    return assert(kept:prepare_write {
      from = perigee.layout { base = own, dims = dims, block = 8 },
      to = perigee.layout { base = assert(kept:region "kv"):slice(),
                            dims = dims, block = 8 } })
  end

  it("posts the blocks that it was given, also while the wire is broken",
     function()
    local move = three()
    cut()
    local blocks = { from = { 1 }, to = { 2 } }
    local post = move:post(blocks)
    blocks.from[1], blocks.to[1] = 0, 0
    blocks.from, blocks.to = { 2 }, { 1 }
    assert(post:wait(10))
    assert.equal(("\5"):rep(32) .. ("\2"):rep(8), lent:slice(0, 40):string())
  end)

  it("keeps its timeout after a late post of wrong blocks", function()
    local move = three()
    cut()
    local post = move:post { from = { 1 }, to = { 0, 2 } }
    local fine, why = pcall(post.wait, post, 10)
    assert.is_false(fine)
    assert.matches("kept_spec.lua:%d+: .*from has 1 numbers", why)
    assert.equal(30e9, tonumber(move.inner.timeout))
  end)

  it("goes on with prepared transfers when the wire breaks", function()
    local remote = assert(kept:region "kv")
    local specs = { { from = own:slice(0, 8), to = remote:slice(16, 8) } }
    local write = assert(kept:prepare_write(specs))
    local read = assert(kept:prepare_read { from = remote:slice(16, 8),
                                            to = own:slice(100, 8) })
    specs[1].from, specs[1] = own:slice(50, 8), nil
    for n = 1, 3 do
      own:slice(0, 8):fill(n)
      assert(write:post():wait(10))
      assert.is_true(write:wait(10))
      assert.is_true(write:done())
      assert(perigee.wait_all({ read:post() }, 10))
      assert.equal(string.char(n):rep(8),
                   own:slice(100, 8):string())
      cut()
      assert(n > 2 or read:post():wait(10))
    end
    write:close()
    write:close()
    wrong("closed", write:post():wait(1))
    assert(read:post():wait(10))
    kept:close()
    wrong("closed", read:post():wait(1))
    wrong("closed", kept:prepare_read {})
  end)

  -- How often the compiler gave up in a module while use() ran, because of a
  -- bytecode that it cannot compile.
  local function uncompiled(module, use)
    local errors, count = require("jit.vmdef").traceerr, 0
    local function trace(what, _, f, _, code)
      if what == "abort" and errors[code]:find "^NYI: bytecode"
        and debug.getinfo(f, "S").short_src:find(module, 1, true) then
        count = count + 1
      end
    end
    jit.attach(trace, "trace")
    use()
    jit.attach(trace)
    return count
  end

  it("posts a prepared transfer by compiled code", function()
    local remote = assert(kept:region "kv")
    local read = assert(kept:prepare_read { from = remote:slice(16, 8),
                                            to = own:slice(100, 8) })
    assert.equal(0, uncompiled("transfer/anew.lua", function()
      for _ = 1, 300 do assert(read:post():wait(10)) end
    end))
  end)

  it("prepares transfers, and posts them, while the wire is broken", function()
    local remote = assert(kept:region "kv")
    cut()
    local write = assert(kept:prepare_write_imm({ from = own:slice(0, 8),
      to = remote:slice(0, 8) }, 33))
    cut()
    own:fill(8)
    local post = write:post()
    assert.has_error(function() write:post() end)
    assert.is_true(post:wait(10))
    assert.equal(("\8"):rep(8), lent:slice(0, 8):string())
    local _, session = next(owner.engine.sessions)
    assert.equal(33, session:recv_imm():wait(10))
  end)

  it("sends and receives by the session of the moment", function()
    local there = cases.alloc(owner.engine, LENGTH):slice()
    agent.engine:alloc(LENGTH, { name = "own", access = "w" })
    for n = 1, 3 do
      local sent, imm = kept:send(own:slice(0, n)), kept:recv_imm()
      assert.equal(n, theirs():recv(there):wait(10))
      assert.is_true(sent:wait(10))
      local got = kept:recv(own, { timeout = 20 })
      assert(theirs():send(there:slice(0, n)):wait(10))
      assert.equal(n, got:wait(10))
      local remote = assert(theirs():region "own")
      assert(theirs():write_imm({ from = there:slice(0, 8),
        to = remote:slice(0, 8) }, n):wait(10))
      assert.equal(n, imm:wait(10))
      cut()
    end
  end)

  it("receives what immediates had come when the wire broke", function()
    local far = theirs()
    local remote = assert(far:region "lent")
    local here = cases.alloc(owner.engine, LENGTH):slice()
    for n = 1, 2 do
      assert(far:write_imm({ from = here:slice(0, 8), to = remote:slice(0, 8) },
                           n):wait(10))
    end
    assert.equal(1, kept:recv_imm():wait(10))
    cut()
    assert.equal(2, kept:recv_imm():wait(10))
    local later = kept:recv_imm()
    assert.is_false(later:done())
    kept:session(10)
    remote = assert(theirs():region "lent")
    assert(theirs():write_imm({ from = here:slice(0, 8),
                                to = remote:slice(0, 8) }, 3):wait(10))
    assert.equal(3, later:wait(10))
  end)

  it("takes a spec as it is at the call, also while the wire is broken",
     function()
    local remote = assert(kept:region "kv")
    cut()
    local one = { from = remote:slice(0, 8), to = own:slice(0, 8) }
    local list = { { from = remote:slice(0, 8), to = own:slice(64, 8) } }
    local futures = { kept:read(one), kept:read(list) }
    one.to, list[1].to = own:slice(8, 8), own:slice(72, 8)
    list[2] = { from = remote:slice(0, 8), to = own:slice(128, 8) }
    assert(perigee.wait_all(futures, 10))
    assert.equal(("\5"):rep(8) .. ("\0"):rep(56) .. ("\5"):rep(8)
      .. ("\0"):rep(64), own:slice(0, 136):string())
  end)

  it("goes on, if the loop is stopped, with what it has begun", function()
    local received
    cut()
    perigee.run(function()
      received = kept:recv(own)
      repeat perigee.sleep(0.001) until received.inner
      perigee.stop()
      perigee.sleep(60)
    end)
    assert.is_false(received:done())
    local there = cases.alloc(owner.engine, LENGTH):slice()
    assert(theirs():send(there:slice(0, 3)):wait(10))
    assert.equal(3, received:wait(10))
  end)

  it("leaves a region closed that was closed here", function()
    local remote = assert(kept:region "kv")
    remote:close()
    cut()
    assert(kept:session())
    wrong("stale", kept:read { from = remote:slice(0, 8),
                               to = own:slice(0, 8) }:wait(10))
    assert(kept:read({ from = assert(kept:region "kv"):slice(0, 8),
                       to = own:slice(0, 8) }):wait(10))
  end)

  it("ends once what is under way when the wire breaks", function()
    local lost = { kept:recv(own), kept:recv_imm(), kept:send(own) }
    theirs()
    cut()
    for _, future in ipairs(lost) do
      local got, err = future:wait(10)
      assert.is_nil(got)
      assert.equal("peer_lost", err.kind)
    end
    assert(kept:session())              -- which takes longer on some machines
    local _, late = kept:recv(own, { timeout = 0.05 }):wait(10)
    assert.equal("timeout", late.kind)
    assert.equal("open", kept:explain().state)
  end)

  it("goes on at once when something under way was lost", function()
    local from = assert(kept:region "kv"):slice()
    local prepared = assert(kept:prepare_read { from = from, to = own })
    for i = 1, 4 do
      local lost = kept:recv_imm()
      theirs()
      for _, session in pairs(owner.engine.sessions) do session:close() end
      assert.equal("peer_lost", select(2, lost:wait()).kind)
      assert((i % 2 == 0 and prepared:post()
              or kept:read { from = from, to = own }):wait(10))
    end
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
    local prepared = assert(kept:prepare_read { from = from, to = own })
    assert(lent:close())
    lend(6)
    cut()
    wrong("stale", kept:read({ from = from, to = own }):wait(10))
    wrong("stale", prepared:post():wait(10))
    wrong("stale", kept:prepare_read { from = from, to = own })
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
    blamed(function() local sent = kept:send(7) return sent end)
    local function misprepared()
      blamed(function() kept:prepare_read(7) end)
      blamed(function() kept:prepare_write { from = own } end)
      blamed(function() kept:prepare_write_imm({}, 0.5) end)
    end
    misprepared()
    local write = assert(kept:prepare_write { from = own,
                                              to = kept:region "kv":slice() })
    cut()
    write:post()
    blamed(function() write:post() end)
    assert.is_true(write:wait(10))
    misprepared()
    cut()
    blamed(function() kept:read { timeout = "long" } end)
    blamed(function() kept:read(7) end)
    blamed(function() kept:write_imm({}, 0.5) end)
    blamed(function() kept:recv_imm(7) end)
    blamed(function() local sent = kept:send(own, { time = 1 }) return sent end)
    blamed(function()                   -- as far as it can be told then
      local late = kept:read { from = own }
      late:wait(10)
    end)
    local other = cases.alloc(agent.engine, 8)
    local read = assert(kept:prepare_read {
      from = assert(kept:region "kv"):slice(0, 8), to = other:slice() })
    cut()
    other:close()
    blamed(function()
      local late = read:post()
      late:wait(10)
    end)
  end)

  it("is over when it is closed", function()
    kept:close()
    kept:close()
    wrong("closed", kept:read({ from = own, to = own }):wait(1))
    wrong("closed", kept:region "kv")
  end)
end)

-- Lends memory that differs in each life.
local function lender(child, perigee_, _, life)
  local agent = assert(child.cases.agent("worker"))
  agent.engine:alloc(4096, { name = "kv", access = "rw" }):slice()
    :fill(tonumber(life))
  child.say("ready")
  perigee_.run(tonumber(life) == 3 and function()
    local own = agent.engine:alloc(4096):slice()
    repeat perigee_.sleep(0.01) until next(agent.engine.sessions)
    local _, session = next(agent.engine.sessions)
    local n = assert(session:recv(own):wait(60))
    assert(session:send(own:slice(0, n)):wait(60))
    perigee_.sleep(60)
  end or nil)
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

  it("prepares transfers anew for the next life, but of none before it",
     function()
    local from = assert(kept:region "kv"):slice()
    local before = assert(kept:prepare_read { from = from, to = own })
    assert(before:post():wait(10))
    assert.equal(1, cases.byte(own))
    own:fill(9)
    kill()
    local post = before:post()
    start(2)
    wrong("stale", post:wait(60))
    wrong("stale", before:post():wait(10))
    assert.equal(9, cases.byte(own))
    local after = assert(kept:prepare_read {
      from = assert(kept:region "kv"):slice(), to = own })
    assert(after:post():wait(10))
    assert.equal(2, cases.byte(own))
  end)

  it("sends to the next life what is begun while it is away", function()
    kill()
    local sent = kept:send(own:slice(0, 5), { timeout = 60 })
    start(3)
    local got = kept:recv(own:slice(100, 5), { timeout = 60 })
    assert.is_true(sent:wait(60))
    assert.equal(5, got:wait(60))
  end)

  it("says in time that nobody comes back", function()
    local from = assert(kept:region "kv"):slice()
    local prepared = assert(kept:prepare_read { from = from, to = own,
                                                timeout = 0.05 })
    kill()
    wrong("timeout", prepared:post():wait(10))
    wrong("timeout", kept:recv(own, { timeout = 0.05 }):wait(10))
    wrong("timeout", kept:read({ from = from, to = own, timeout = 0.05 })
      :wait(10))
    kept = assert(kept)
    kept.reconnect = 0.1
    wrong("peer_lost", kept:read({ from = from, to = own }):wait(10))
    wrong("peer_lost", kept:region "kv")
    wrong("peer_lost", kept:session())
    wrong("peer_lost", kept:send(own):wait(10))
    wrong("peer_lost", kept:prepare_read { from = from, to = own })
    local waiting = kept:read { from = from, to = own }
    waiting:cancel()
    assert.equal("cancelled", select(2, waiting:wait(1)).kind)
  end)
end)
