-- SPDX-License-Identifier: Apache-2.0
-- Calls wait for room, within their timeout, when the pool is full. Submitting
-- more calls than there is room for is no error, and leaves nothing behind.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local MIB, POOL = 2 ^ 20, 12 * 2 ^ 20

local function server(child, _, _, pool)
  local options = { engine = { pool = tonumber(pool) } }
  local agent = assert(child.cases.agent("worker", options))
  local noted = {}
  agent:serve {
    name = "bytes", version = 1,
    methods = {
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
      fill = { raw = true, inplace = true, function(_, reply)
        require("ffi").fill(reply.pointer, reply.length, 7)
        return reply.length
      end },
      left = { raw = true, inplace = true, function(_, reply)
        local left = require("perigee").context():remaining()
        return reply:write(("%.6f"):format(left))
      end },
      note = { raw = true, inplace = true, function(request)
        noted[#noted + 1] = tonumber(request:string())
        return 0
      end },
      noted = function() return noted end,
      often = { raw = true, inplace = true, idempotent = true,
                function(request, reply) return reply:write(request) end },
      nap = function(seconds) require("perigee").sleep(seconds) end,
    },
  }
  child.say("ready")
  require("perigee").run()
  agent:close()
end

describe("more calls under way than there is room for", function()
  local proxy, agent

  setup(function()
    process.start(server, POOL):expect("ready")
    proxy, agent = cases.proxy("bytes", { timeout = 20 * cases.slow })
  end)
  teardown(cases.cleanup)

  -- Makes count calls of start, 24 at once; each has to succeed.
  local function all_end_well(count, start, check)
    local futures = {}
    for i = 1, count do
      futures[i] = start(i)
      if i > 24 then check(i - 24, futures[i - 24]:wait()) end
    end
    for i = count - 23, count do check(i, futures[i]:wait()) end
    assert.equal(0, agent.engine:stats().held_exposed)
  end

  local function payload(i) return cases.bytes(MIB, i % 7) end

  local function is_payload(i, got, err)
    assert.is_nil(err)
    assert.is_true(got == payload(i))
  end

  it("is no error of raw ones", function()
    all_end_well(100, function(i)
      return proxy.async:echo(payload(i))
    end, is_payload)
  end)

  it("is no error of inplace ones", function()
    local sized = proxy:with { capacity = MIB }
    all_end_well(100, function(i)
      return sized.async:copy(payload(i))
    end, is_payload)
  end)

  it("is no error of short ones with a long reply", function()
    local function length(reply) return reply.length end
    local sized = proxy:with { capacity = MIB, reader = length }
    all_end_well(100, function() return sized.async:fill("short") end,
                 function(_, got, err)
                   assert.is_nil(err)
                   assert.equal(MIB, got)
                 end)
  end)
end)

describe("more writers at once than their engine has room for", function()
  local proxy, agent, child

  setup(function()
    child = process.start(server, 2 ^ 30):expect("ready")
    agent = assert(cases.agent(nil, { engine = { pool = 8 * MIB } }))
    proxy = assert(agent:proxy("worker", "bytes",
                               { timeout = 20 * cases.slow }))
  end)
  teardown(cases.cleanup)

  local function writer(loan)
    loan.pointer[0] = 7
    return MIB
  end

  local function length(reply) return reply.length end

  it("wait, of calls that nobody waits for yet", function()
    local sized = proxy:with { capacity = MIB, reader = length }
    local futures = {}
    for i = 1, 24 do futures[i] = sized.async:copy(writer) end
    for i = 1, 24 do assert.equal(MIB, (assert(futures[i]:wait()))) end
  end)

  it("wait, in tasks", function()
    local sized = proxy:with { capacity = MIB, reader = length }
    local futures = {}
    for i = 1, 24 do
      futures[i] = perigee.spawn(function() return sized:copy(writer) end)
    end
    for i = 1, 24 do assert.equal(MIB, (assert(futures[i]:wait()))) end
  end)

  it("wait in the order in which they call", function()
    local sized, futures, order = proxy:with { capacity = MIB }, {}, {}
    local function number(i)
      order[i] = i
      return function(loan) return loan:write(tostring(i)) end
    end
    for i = 1, 40 do futures[i] = sized.async:note(number(i)) end
    futures[41] = perigee.spawn(function() return sized:note(number(41)) end)
    perigee.sleep(0)
    assert.equal("", sized:note(number(42)))
    for i = 1, 41 do assert.equal("", (futures[i]:wait())) end
    assert.same(order, (proxy:noted()))
  end)

  -- How long a payload is that travels in the ring depends on the session.
  it("wait in the order in which they call, the short beside the long",
     function()
    for _, options in ipairs { {}, { ring = 2 ^ 14, eager = 3000 } } do
      options.pool = 8 * MIB
      local other = assert(cases.agent(nil, { engine = options }))
      local own = assert(other:proxy("worker", "bytes",
                                     { timeout = 20 * cases.slow }))
      local limits = assert(other:session "worker"):explain().limits
      local short = own:with { capacity = limits.eager + 1 }
      local long, futures, order = own:with { capacity = MIB }, {}, {}
      for i = 1, 40 do
        order[i] = i
        futures[i] = (i % 2 == 0 and short or long).async:note(function(loan)
          return loan:write(tostring(i))
        end)
      end
      for i = 1, 40 do assert.equal("", (futures[i]:wait())) end
      local noted = own:noted()
      assert.same(order, { unpack(noted, #noted - 39) })
    end
  end)

  -- A coroutine that is not a task cannot be left before its wait is over.
  it("go before those that cannot go on before them", function()
    local sized, inner = proxy:with { capacity = MIB, reader = length }, nil
    perigee.spawn(function()
      inner = { coroutine.wrap(function() return sized:copy(writer) end)() }
    end)
    local futures = {}
    for i = 1, 24 do futures[i] = sized.async:copy(writer) end
    assert.equal(MIB, (sized:copy(writer)))
    assert.equal(MIB, assert(unpack(inner)))
    for i = 1, 24 do assert.equal(MIB, (assert(futures[i]:wait()))) end
  end)

  -- Of a wait that is nested too deep.
  it("wait no more if the wait raises", function()
    local sized = proxy:with { capacity = MIB, reader = length }
    local futures, state = {}, require "perigee.runtime.loop".state
    for i = 1, 24 do futures[i] = sized.async:copy(writer) end
    local depth = state.depth
    state.depth = 2 ^ 20
    local fine, why = pcall(sized.copy, sized, writer)
    state.depth = depth
    assert.is_false(fine)
    assert.matches("waits are nested", why)
    for i = 1, 24 do assert.equal(MIB, (assert(futures[i]:wait()))) end
    assert.equal(MIB, (assert(sized:copy(writer))))
    local _, session = next(agent.engine.sessions)
    assert.is_true(cases.eventually(function()
      assert(sized:copy(writer))
      return not session.writers
    end), "its place is still in the queue")
  end)

  it("write nothing once they are cancelled", function()
    local sized, written = proxy:with { capacity = MIB, reader = length }, 0
    local futures = {}
    for i = 1, 24 do
      futures[i] = sized.async:copy(function(loan)
        written = written + 1
        return writer(loan)
      end)
    end
    local at_once = written
    assert.is_true(at_once < 24)
    for i = at_once + 1, 24 do futures[i]:cancel() end
    for i = 1, at_once do assert.equal(MIB, (futures[i]:wait())) end
    assert.equal(MIB, (sized:copy(writer)))
    assert.equal(at_once, written)
  end)

  -- The last calls are those that have waited.
  it("may raise once they have waited, and whoever waits hears it", function()
    local sized = proxy:with { capacity = MIB, reader = length }
    local futures, late, raised = {}, false, 0
    local function moody()
      if late then error "on purpose" end
      return MIB
    end
    for i = 1, 24 do futures[i] = sized.async:copy(moody) end
    late = true
    for i = 1, 24 do
      local fine, got = pcall(futures[i].wait, futures[i], 20 * cases.slow)
      assert.is_true(futures[i]:done())
      if not fine then
        raised = raised + 1
        assert.matches("on purpose", got)
      end
    end
    assert.is_true(raised > 0)
  end)

  -- All room is taken while the peer is stopped, also that of sockets. The
  -- peer's handler sees how much of the time is left.
  it("have one time for the wait and the answer", function()
    local sized = proxy:with { capacity = MIB, reader = length }
    local futures, time, wait = {}, 20 * cases.slow, 0.5
    local timed = proxy:with { capacity = MIB, timeout = time }
    child:signal "STOP"
    for i = 1, 40 do futures[i] = sized.async:copy(writer) end
    perigee.spawn(function()
      perigee.sleep(wait)
      child:signal "CONT"
    end)
    local later = timed.async:left(writer)
    assert.is_true(tonumber(timed:left(writer)) <= time - 0.8 * wait)
    assert.is_true(tonumber((later:wait())) <= time - 0.8 * wait)
    for i = 1, 40 do assert.equal(MIB, (assert(futures[i]:wait()))) end
  end)

  it("go on in the next life of the peer, of idempotent calls", function()
    local sized = proxy:with { capacity = MIB, reader = length,
                               timeout = 60, reconnect = 60 }
    local futures = {}
    child:signal "STOP"
    for i = 1, 16 do futures[i] = sized.async:often(writer) end
    perigee.spawn(function()
      perigee.sleep(0.05)
      child:kill()
      child = process.start(server, 2 ^ 30):expect("ready")
    end)
    assert.equal(MIB, (assert(sized:often(writer))))
    for i = 1, 16 do assert.equal(MIB, (assert(futures[i]:wait()))) end
  end)
end)

describe("a writer whose call cannot be made after it has written", function()
  teardown(cases.cleanup)

  it("is not asked to write again", function()
    process.start(server, 2 ^ 30):expect("ready")
    local agent = assert(cases.agent(nil, { engine = { operations = 16 } }))
    local proxy = assert(agent:proxy("worker", "bytes",
                                     { timeout = 20 * cases.slow }))
    local naps, written = {}, 0
    local none, err = proxy:copy(function(loan)
      written = written + 1
      for _ = 1, 32 do
        local nap = proxy.async:nap(0.01)
        if not nap:done() then naps[#naps + 1] = nap end
      end
      return loan:write "once"
    end)
    assert.is_nil(none)
    assert.equal("no_memory", err.kind)
    assert.equal(1, written)
    for _, nap in ipairs(naps) do nap:wait(20) end
    assert.equal("twice", (proxy:copy(function(loan)
      return loan:write "twice"
    end)))
  end)
end)
