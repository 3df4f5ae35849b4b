-- SPDX-License-Identifier: Apache-2.0
-- An agent that drains: it takes no new calls, ends those that it has, is
-- listed as draining, and its callers go on with the next holder of its name.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 20 * cases.slow

-- Serves x as "worker" once the name is free, and does what its parent says.
local function server(child, perigee_, _, life)
  local agent
  repeat
    agent = child.cases.agent("worker")
    if not agent then perigee_.sleep(0.05) end
  until agent
  local memory = child.cases.alloc(agent.engine, 65536,
                                   { name = "kv", access = "rw" })
  local go = false
  agent:serve { name = "x", methods = {
    life = function() return life end,
    hold = function()
      while not go do perigee_.sleep(0.001) end
      return life
    end,
    stall = function(seconds)           -- its loop stands still meanwhile
      require "spec.support.process".usleep(seconds)
      agent:drain()
    end,
    traced = function() return perigee_.context():trace() end,
    traced_raw = { raw = true,
                   function() return perigee_.context():trace() end },
    often = { idempotent = true, function() return life end },
    raw = { raw = true, function() return life end },
    same = { raw = true, function(request) return request end },
    inplace = { raw = true, inplace = true,
                function(_, reply) return reply:write(life) end },
    put = { landing = function(length) return memory:slice(0, length) end,
            function(slice) return slice.length .. life end },
  } }
  child.say("ready")
  for line in child.attend do
    if line == "drain" then
      child.say(tostring(agent:drain()))
    elseif line == "wait" then
      child.say(tostring(select(2, agent:drain(0.01)) == nil))
    elseif line == "go" then
      go = true
      child.say(tostring(agent:drain(20)))
    else
      agent:close()
      child.say("closed")
    end
  end
end

describe("an agent that drains", function()
  local child, agent, proxy

  local pump = cases.pump

  local function tell(line, answer)
    child:tell(line)
    child:expect(answer, LONG, pump)
  end

  before_each(function()
    child = process.start(server, "1"):expect("ready", LONG, pump)
    agent = assert(cases.agent())
    proxy = assert(agent:proxy("worker", "x", { timeout = 60 }))
  end)
  after_each(cases.cleanup)

  local function refused(got, err)
    assert.is_nil(got)
    assert.is_true(perigee.is_error(err), tostring(err))
    assert.equal("closed", err.kind, tostring(err))
    assert.equal("draining", err.code)
    assert.is_false(err.sent)
    assert.matches("calling .*draining", tostring(err))
  end

  it("refuses calls of all kinds, and its memory is still there", function()
    tell("drain", "true")
    local hasty = proxy:with { reconnect = 0, timeout = 20 }
    local mine = cases.alloc(agent.engine, 65536)
    refused(hasty:life())
    refused(hasty:raw "payload")
    refused(hasty:inplace "payload")
    refused(hasty:put(mine:slice(0, 10000)))
    refused(hasty:life(("x"):rep(2 ^ 20)))
    refused(hasty.async:life():wait(20))
    refused(hasty.async:raw("payload"):wait(20))
    refused(assert(agent:session "worker"):proxy("x"):life())
    refused(assert(agent:proxy("worker", "x", { reconnect = 0 })):life())
    local session = assert(agent:session "worker")
    local theirs = assert(session:region "kv")
    assert.is_true(session:write { from = mine:slice(0, 4096),
                                   to = theirs:slice(0, 4096) }:wait(20))
    assert.equal(perigee.session(proxy), session)
  end)

  it("ends the calls that it has", function()
    local held = proxy.async:hold()
    assert.equal("1", (proxy:life()))
    tell("drain", "true")
    tell("wait", "false")
    refused(proxy:with { reconnect = 0 }:life())
    assert.is_false(held:done())
    tell("go", "true")
    assert.equal("1", (held:wait(20)))
  end)

  -- A batch of two calls that are answered by the life.
  local function batch(on)
    local memory = cases.alloc(agent.engine, 64)
    return assert(perigee.batch(on, "raw",
                                { memory:slice(0, 8), memory:slice(8, 8) },
                                { memory:slice(16, 1), memory:slice(17, 1) }))
  end

  -- Calls that come while the worker's loop stands still are refused late.
  for what, call in pairs {
    ["a call"] = function(x) return x:life() end,
    ["a raw call"] = function(x) return x:raw "bytes" end,
    ["a call that nobody waits for"] = function(x)
      return x.async:life():wait(LONG)
    end,
    ["a raw call that nobody waits for"] = function(x)
      return x.async:raw("bytes"):wait(LONG)
    end,
    ["a batch"] = function(x) return batch(x):post():wait(LONG) end,
  } do
    it("refuses " .. what .. " late, whose timeout covers all its tries",
       function()
      local limit = 2 * cases.slow
      local patient = proxy:with { reconnect = 60, timeout = limit }
      local stalled = proxy.async:stall(0.8 * limit)
      local began = process.now()
      local got, err = call(patient)
      local took = process.now() - began
      assert.is_nil(got)
      assert.equal("timeout", err.kind, tostring(err))
      assert.is_false(err.sent)
      assert.is_true(took > 0.9 * limit and took < 1.5 * limit, took)
      assert.is_true(stalled:done())
    end)
  end

  -- What a writer wrote lies with the peer that has not taken it.
  for how, call in pairs {
    ["waits"] = function(x, writer) return x:same(writer) end,
    ["has a future"] = function(x, writer)
      return x.async:same(writer):wait(LONG)
    end,
  } do
    it("has the writer of a call that " .. how .. " called again for the next "
      .. "one, which gets what it writes then", function()
      local nth = 0
      local stalled = proxy.async:stall(1 * cases.slow)
      local next_one = process.start(server, "2")
      local got, err = call(proxy, function(room)
        nth = nth + 1
        return room:write("written " .. nth)
      end)
      assert.equal("written 2", got, tostring(err))
      assert.equal(2, nth)
      assert.is_true(stalled:done())
      next_one:expect("ready", LONG, pump)
    end)
  end

  -- Makes calls whose writers' loans do not all fit into the pool.
  local function crowd(x)
    local calls, traces = {}, {}
    for i = 1, 3 do
      calls[i] = x.async:traced_raw(function(room) return room:write "a" end)
    end
    for i, call in ipairs(calls) do
      traces[i] = call:wait(LONG) or "none"
    end
    assert(traces[1]:sub(1, 35) == traces[2]:sub(1, 35), traces[2])
    assert(traces[1]:sub(1, 35) == traces[3]:sub(1, 35), traces[3])
    return traces[1]
  end

  for how, call in pairs {
    ["waits"] = function(x) return (x:traced()) end,
    ["has a future"] = function(x) return (x.async:traced():wait(LONG)) end,
    ["has futures, one of which waits for room"] = function(x)
      return crowd(x:with { request_capacity = 2 ^ 19 })
    end,
    ["posts a batch"] = function(x)
      local memory = cases.alloc(perigee.session(x).engine, 128)
      local all = assert(perigee.batch(x, "traced_raw", { memory:slice(0, 8) },
                                       { memory:slice(64, 64) }))
      return assert(all:post():wait(LONG))[1]:string()
    end,
  } do
    it("leaves its trace to the call of a handler that " .. how, function()
      local front = assert(cases.agent("front", {
        engine = { pool = 2 ^ 20 } }))
      local x = assert(front:proxy("worker", "x", { timeout = 60 }))
      front:serve { name = "front", methods = {
        ask = function() return call(x) end } }
      local asking = assert(agent:proxy("front", "front", { timeout = 60 }))
      local trace = "4bf92f3577b34da6a3ce929d0e0e4736"
      local stalled = proxy.async:stall(1 * cases.slow)
      process.start(server, "2")
      local got, err = asking:with { trace = trace }:ask()
      cases.await(function() return stalled:done() end)
      assert.matches("^00%-" .. trace, got, nil, tostring(err))
    end)
  end

  it("is ended by one of its own methods, in a task, and not in the handler",
     function()
    local own = assert(cases.agent("own"))
    local drained
    own:serve { name = "admin", methods = {
      hasty = function()
        local drained_in_time, err = own:drain(LONG)
        return drained_in_time, err
      end,
      begin = function() return own:drain() end,
      shut_down = function()
        perigee.spawn(function() drained = { own:drain(LONG) } end)
        return "soon"
      end,
    } }
    local admin = assert(agent:proxy("own", "admin", { reconnect = 0 }))
    local got, err = admin:hasty()
    assert.is_nil(got)
    assert.equal("remote", err.kind, tostring(err))
    assert.matches("draining_spec.lua:%d+: drain waits for all calls to end",
                   tostring(err))
    assert.equal("soon", admin:shut_down())
    cases.await(function() return drained end)
    assert.same({ true }, drained)
    refused(admin:begin())
  end)

  it("is listed as draining", function()
    assert.equal("up", assert(agent:lookup "worker").state)
    tell("drain", "true")
    assert.is_true(cases.eventually(function()
      return assert(agent:lookup "worker").state == "draining"
    end))
    assert.equal("draining", assert(agent:list())[1].state)
  end)

  it("leaves to the next one all calls of a batch that it has not read",
     function()
    local both = batch(proxy)
    for _ = 1, 2 do
      for _, part in ipairs(assert(both:post():wait(LONG))) do
        assert.equal("1", part:string())
      end
    end
    local stalled = proxy.async:stall(1 * cases.slow)
    process.start(server, "2")
    for _, part in ipairs(assert(both:post():wait(60))) do
      assert.equal("2", part:string())
    end
    assert.is_true(stalled:done())
    assert.equal("2", assert(both:post():wait(LONG))[2]:string())
  end)

  it("loses its callers to the next one of its name, and not one call",
     function()
    local calls, ended = { "life", "often", "raw", "inplace" }, 0
    tell("drain", "true")
    for _, name in ipairs(calls) do
      perigee.spawn(function()
        local patient = proxy:with { reconnect = 60 }
        local got, err = patient[name](patient)
        assert(got == "2", tostring(err or got))
        ended = ended + 1
      end)
    end
    local async, both = proxy.async:often(), batch(proxy):post()
    for _ = 1, 20 do pump() end
    assert.equal(0, ended)
    assert.is_false(async:done())
    assert.is_false(both:done())
    tell("close", "closed")
    local second = process.start(server, "2"):expect("ready", LONG, pump)
    assert.is_true(cases.eventually(function() return ended == #calls end,
                                    LONG))
    assert.equal("2", (async:wait(60)))
    for _ = 1, 2 do
      for _, part in ipairs(assert(both:wait(60))) do
        assert.equal("2", part:string())
      end
      both:post()
    end
    assert(both:wait(60))
    assert.equal("2", (proxy:life()))
    second:kill()
  end)

  it("lets callers wait for the next one as long as their calls may take",
     function()
    tell("drain", "true")
    local calls = { perigee.spawn(proxy.life, proxy:with { reconnect = 0.05 }),
                    proxy:with({ reconnect = 0.05 }).async:life() }
    perigee.sleep(0.2)
    tell("close", "closed")
    perigee.sleep(0.2)
    for _, call in ipairs(calls) do assert.is_false(call:done()) end
    local second = process.start(server, "2"):expect("ready", LONG, pump)
    for _, call in ipairs(calls) do assert.equal("2", (call:wait(60))) end
    second:kill()
  end)

  it("takes what is added to it afterwards from nobody", function()
    local one = assert(cases.agent("one"))
    one:serve { name = "x", methods = { f = function() return 1 end } }
    local sums = assert(agent:proxy("one", "x", { reconnect = 0 }))
    assert.equal(1, (sums:f()))
    assert.is_true(one:drain())
    assert.is_true(one:drain(1))
    one:serve { name = "y", methods = { f = function() return 1 end } }
    local later = assert(agent:proxy("one", "y", { reconnect = 0 }))
    assert.equal("closed", select(2, later:f()).kind)
    assert.equal(1, assert(one:proxy("worker", "x")):life() == "1" and 1)
  end)
end)

for _, where in ipairs(backends.all) do
  describe("in a registry that is a " .. where .. ", an agent that drains",
           function()
    after_each(cases.cleanup)

    -- A board keeps what it was told at first.
    local check = where == "board" and pending or it

    check("gives its name to the next one, which keeps it", function()
      local registry = backends.start(where)
      local old = assert(backends.take(registry, "one"))
      local other = assert(backends.take(registry))
      assert.is_nil((backends.take(registry, "one")))
      assert.is_true(old.held)
      assert.is_true(old:drain())
      assert.is_false(old.held)
      cases.await(function()
        local entry = other:lookup "one"
        return entry and entry.state == "draining"
      end)
      local new
      cases.await(function()
        new = backends.take(registry, "one")
        return new
      end)
      assert.is_nil((backends.take(registry, "one")))
      assert.same({ false, true }, { old.held, new.held })
      cases.await(function()
        local entry = other:lookup "one"
        return entry and entry.state == "up"
      end)
      old:close()
      perigee.sleep(0.1)
      local entry = assert(other:lookup "one")
      assert.equal(assert(other:session "one").epoch, entry.epoch)
      assert.equal("up", entry.state)
      assert.is_nil((backends.take(registry, "one")))
    end)
  end)

  describe("in a registry that is a " .. where .. ", an agent that is closed",
           function()
    after_each(cases.cleanup)

    it("has no name any more", function()
      local one = assert(backends.take(backends.start(where), "one"))
      assert.is_true(one.held)
      one:close()
      assert.is_false(one.held)
    end)
  end)
end
