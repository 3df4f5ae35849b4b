-- SPDX-License-Identifier: Apache-2.0
-- What is told without being asked for: failures of handlers at their server,
-- operations that a program has forgotten, what an object is.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

describe("a handler that fails", function()
  local said, before, agent, proxy

  before_each(function()
    said, before = {}, perigee.log
    perigee.log = function(level, message)
      if level == "warning" then said[#said + 1] = message end
    end
    agent = assert(cases.agent("worker"))
    agent:serve { name = "x", methods = {
      fails = function(why) error(why) end,
      raises = function(what) error(what) end,
      anywhere = function(i)
        assert(loadstring(("error 'there'"), "=place " .. i))()
      end,
      other = function() error("of the other") end,
      same = function(x) return x end,
      keeps = { raw = true, function()
        perigee.context()
        error("of one with a context")
      end },
      raw = { raw = true, function() error("of the raw one") end },
      inplace = { raw = true, inplace = true, function() return -1 end },
      put = { landing = function() error("of the landing") end,
              function() end },
      short = {
        landing = function() return agent.memory:slice(0, 1) end,
        abandoned = function() error("of the abandoned one") end,
        function() end },
      odd = function() return print end,
      returns = function(...) return ... end,
      session = function()
        return perigee.context().session == next(agent.told)
      end,
    } }
    agent.told, agent.memory = {}, cases.alloc(agent.engine, 64)
    agent:on_session(function(session) agent.told[session] = true end)
    proxy = assert(assert(cases.agent()):proxy("worker", "x"))
  end)
  after_each(function()
    perigee.log = before
    cases.cleanup()
  end)

  it("is logged at its server, with its method and traceback", function()
    proxy:fails("too bad")
    assert.equal(1, #said)
    assert.matches("^x.fails failed: .*too bad\nstack traceback:", said[1])
    proxy:raw("a")
    assert.matches("^x.raw failed: .*of the raw one", said[2])
    proxy:inplace("a")
    assert.matches("^x.inplace failed: .*inplace handler returns", said[3])
    proxy:put(cases.alloc(perigee.session(proxy).engine, 64):slice())
    assert.matches("^x.put failed: .*of the landing", said[4])
    proxy:odd()
    assert.matches("^x.odd failed: x.odd returned a function", said[5])
    assert.equal(5, #said)
  end)

  it("is logged once a second for each kind, and how many more there were",
     function()
    local since, ends = process.now(), os.time() + 60
    for _ = 1, 20 do proxy:fails("too bad") end
    proxy:other()
    if process.now() - since > 1 then
      return pending "the machine is too busy for twenty calls in a second"
    end
    assert.equal(2, #said)
    assert.matches("^x.other failed", said[2])
    repeat perigee.sleep(0.05) until #said == 3 or os.time() > ends
    assert.matches("^19 more like this in the last [%d.]+ seconds: "
      .. "x.fails failed: .*too bad$", said[3])
  end)

  it("is logged once a second also as it is told that it will not run",
     function()
    local slice = cases.alloc(perigee.session(proxy).engine, 64):slice()
    local since = process.now()
    for _ = 1, 50 do
      assert.equal("too_large", select(2, proxy:short(slice)).kind)
    end
    assert.is_true(#said <= 2 * math.ceil(process.now() - since),
                   #said .. " lines")
    assert.matches("^x.short's abandoned failed: .*of the abandoned one\nstack",
                   said[1])
  end)

  it("is of the kind of its line, whatever its callers have it say", function()
    local since = process.now()
    for i = 1, 100 do
      proxy:fails(("x%d:1: made up"):format(i))
      proxy:raises { message = ("x%d:1: made up"):format(i) }
    end
    local methods = agent.services.x.methods
    assert.equal(1, methods.fails.failures.n)
    assert.equal(1, methods.raises.failures.n)
    assert.is_true(#said <= 2 * math.ceil(process.now() - since))
  end)

  it("at each call in another place is not remembered for ever", function()
    local since = process.now()
    for i = 1, 100 do proxy:anywhere(i) end
    assert.is_true(agent.services.x.methods.anywhere.failures.n <= 16)
    -- Each second a line of each place, and one of how many more there were.
    assert.is_true(#said <= 32 * math.ceil(process.now() - since))
  end)

  it("with a long message is told in part", function()
    proxy:raises { message = ("\255"):rep(60000) }
    local line                          -- earlier failures may be told, too
    for _, text in ipairs(said) do
      if text:find "^x.raises failed" then line = text end
    end
    assert.is_true(#line < 20000)
    assert.matches("^x.raises failed: \\xff.*\\xff%.%.%.\nstack traceback:",
                   line)
  end)

  it("ends its call, and its context, whatever the log does", function()
    local told, contexts = {}, agent.engine.contexts
    perigee.log = function(level, message)
      told[#told + 1] = level .. ": " .. message
      proxy:raw("from the log")
      told[#told + 1] = "has waited"
    end
    for _ = 1, 3 do
      proxy:keeps("a")
      agent.services.x.methods.keeps.failures = nil
    end
    assert.is_true(cases.eventually(function()
      return next(contexts) == nil
    end), "a context has not ended")
    assert.equal(3, #told)
    for _, line in ipairs(told) do
      assert.matches("^warning: x.keeps failed", line)
    end
  end)

  it("is logged by a task that the log makes, too", function()
    local told = {}
    perigee.log = function(_, message)
      perigee.spawn(function() told[#told + 1] = { proxy:same(message) } end)
    end
    proxy:fails "too bad"
    cases.await(function() return told[1] end)
    assert.matches("too bad", told[1][1], 1, true)
  end)

  it("is not one that returns an error", function()
    local errors = require "perigee.runtime.errors"
    proxy:returns(nil, errors.new("denied", "no", false))
    -- How many more lines there were of calls before may be said now.
    for _, line in ipairs(said) do assert.not_matches("x.returns", line) end
  end)

  it("knows the session of its caller", function()
    assert.is_true(proxy:session())
  end)
end)

describe("wait_all with first_error", function()
  local proxy

  before_each(function()
    local agent = assert(cases.agent("worker"))
    agent:serve { name = "x", methods = {
      sleep = function(seconds) perigee.sleep(seconds) end,
      echo = { raw = true, function(request) return request end },
      fails = function(seconds)
        perigee.sleep(seconds)
        error("too bad", 0)
      end,
    } }
    proxy = assert(assert(cases.agent()):proxy("worker", "x"))
  end)
  after_each(cases.cleanup)

  local FIRST = { first_error = true }

  it("returns when one has failed, whatever is pending", function()
    local long, bad = proxy.async:sleep(1000), proxy.async:fails(0.02)
    local worse = proxy.async:fails(1000)
    local ok, err = perigee.wait_all({ long, worse, bad }, 500, FIRST)
    assert.is_nil(ok)
    assert.equal("remote", err.kind)
    assert.is_false(long:done())
    assert.is_nil((perigee.wait_all({ long, bad }, 500, FIRST)))
  end)

  it("returns true when all have ended, and nil at its timeout", function()
    local a, b = proxy.async:sleep(0.01), proxy.async:sleep(0)
    assert.is_true(perigee.wait_all({ a, b, a }, 500, FIRST))
    assert.is_true(perigee.wait_all({}, 500, FIRST))
    local ok, err = perigee.wait_all({ proxy.async:sleep(1000) }, 0.02, FIRST)
    assert.is_nil(ok)
    assert.equal("timeout", err.kind)
  end)

  it("raises what a future raises, and for another option", function()
    local raises = proxy:with({ reader = function() error("raised") end })
      .async:echo("x")
    local fine, why = pcall(perigee.wait_all, { raises }, 500, FIRST)
    assert.is_false(fine)
    assert.matches("raised", why)
    assert.has_error(function() perigee.wait_all({}, 1, { first = true }) end)
  end)
end)

describe("operations that a program has forgotten", function()
  after_each(cases.cleanup)

  -- Runs f in a child that ends then; returns what it logged at its end.
  local function said_by(f)
    cases.agent("worker"):serve { name = "x", methods = {
      sleep = function() perigee.sleep(1000) end } }
    local child = process.start(f)
    local lines = {}
    while true do
      local line = child:read(30, function() perigee.sleep(0.001) end)
      if line == "over" or not line then break end
      lines[#lines + 1] = line
    end
    while true do
      local line = child:read(30, function() perigee.sleep(0.001) end)
      if not line then break end
      lines[#lines + 1] = line
    end
    return table.concat(lines, "\n")
  end

  it("are told in one warning when it ends", function()
    local said = said_by(function(child, perigee_)
      perigee_.log = function(level, message) child.say(level, message) end
      local proxy = assert(assert(child.cases.agent()):proxy("worker", "x"))
      for _ = 1, 5 do child.kept = proxy.async:sleep() end
      child.say "over"
    end)
    local each = "waiting for a call of worker; "
    assert.equal("warning the program ends while 5 operations are pending, for "
      .. "which nothing waits: " .. each:rep(3) .. "...", said)
  end)

  it("are none that it has closed, waits for, or may leave", function()
    local said = said_by(function(child, perigee_)
      perigee_.log = function(level, message) child.say(level, message) end
      local closed, agent = assert(child.cases.agent()),
                            assert(child.cases.agent())
      assert(closed:proxy("worker", "x")).async:sleep()
      closed:close()
      local proxy = assert(agent:proxy("worker", "x"))
      perigee_.spawn(function() proxy:sleep() end)
      perigee_.session(proxy):recv(child.cases.alloc(agent.engine, 64):slice())
      perigee_.sleep(0.02)
      child.say "over"
    end)
    assert.equal("", said)
  end)
end)

describe("an object", function()
  after_each(cases.cleanup)

  it("prints what it is", function()
    local agent, other = assert(cases.agent("worker")), assert(cases.agent())
    local context
    agent:serve { name = "x", methods = { get = function()
      context = perigee.context()
    end } }
    local engine, scope = agent.engine, agent.scope
    local region = cases.alloc(engine, 4096, { name = "kv", access = "rw" })
    local unnamed = cases.alloc(engine, 64)
    local listener = assert(engine:listen(cases.address("prints")))
    local proxy = assert(other:proxy("worker", "x"))
    local session = perigee.session(proxy)
    local remote = assert(session:region("kv"))
    local future = proxy.async:get()
    local transfer = assert(session:prepare_write {
      from = cases.alloc(other.engine, 64):slice(), to = remote:slice(0, 64) })
    assert.equal("agent worker in scope " .. scope, tostring(agent))
    assert.equal("engine (open)", tostring(engine))
    assert.equal('region "kv" (4096 bytes)', tostring(region))
    assert.equal("an unnamed region (64 bytes)", tostring(unnamed))
    assert.equal("listener at " .. listener.address, tostring(listener))
    assert.equal("proxy of x of worker", tostring(proxy))
    assert.equal("session with worker (open)", tostring(session))
    assert.equal('region "kv" of worker (4096 bytes)', tostring(remote))
    assert.equal("slice (64 bytes at 8 of an unnamed region)",
                 tostring(cases.alloc(engine, 128):slice(8, 64)))
    assert.equal("future (waiting for a call of worker: pending)",
                 tostring(future))
    future:wait()
    assert.matches(": ended%)$", tostring(future))
    assert.matches("^prepared transfer %(", tostring(transfer))
    assert.equal("context (x.get for " .. other.name .. ")", tostring(context))
    agent:close()
    listener:close()
    assert.equal("engine (closed)", tostring(engine))
    assert.equal('region "kv" (4096 bytes, closed)', tostring(region))
    assert.matches("closed", tostring(listener))
  end)
end)
