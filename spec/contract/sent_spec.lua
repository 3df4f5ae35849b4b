-- SPDX-License-Identifier: Apache-2.0
-- context:sent() ends once, however the call, its session, its agent or the
-- loop ends; and each landing has its handler or is abandoned.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

describe("context:sent", function()
  local agent, ends

  -- Waits for a context's end in a task; ends[name] is what it gave.
  local function watch(name, context)
    context = context or perigee.context()
    perigee.spawn(function()
      ends[name] = { context:sent() }
    end)
    return context
  end

  local function ended(name)
    assert.is_true(cases.eventually(function() return ends[name] end),
                   name .. " has not ended")
    return ends[name][1], ends[name][2]
  end

  local function ends_in(kind, name)
    local sent, err = ended(name)
    assert.is_nil(sent)
    assert.equal(kind, err.kind, tostring(err))
  end

  before_each(function()
    ends = {}
    agent = assert(cases.agent("worker"))
  end)
  after_each(cases.cleanup)

  local function proxy_of(methods, options)
    agent:serve { name = "x", methods = methods }
    return assert(assert(cases.agent()):proxy("worker", "x", options
      or { timeout = 5 }))
  end

  it("ends when the agent is closed while the handler runs", function()
    local proxy = proxy_of { wait = function()
      watch "runs"
      perigee.sleep(60)
    end }
    local call = proxy.async:wait()
    perigee.sleep(0.02)
    assert.is_nil(ends.runs)
    agent:close()
    ends_in("closed", "runs")
    assert.is_nil((call:wait(5)))
  end)

  it("ends when the handler closes its agent, and raises or returns", function()
    for _, raises in ipairs { true, false } do
      ends = {}
      local proxy = proxy_of { finish = function()
        if raises then watch "before" end
        agent:close()
        watch "after"
        if raises then error("no") end
        return 1
      end }
      assert.is_nil((proxy:finish()))
      if raises then ends_in("closed", "before") end
      ends_in("closed", "after")
      cases.cleanup()
      agent = assert(cases.agent("worker"))
    end
  end)

  it("ends when a raw handler closes its agent", function()
    for _, how in ipairs { "own", "text", "raises", "inplace" } do
      ends = {}
      local function handler(request)
        watch "raw"
        agent:close()
        if how == "raises" then error("no") end
        return how == "inplace" and 0 or how == "own" and request or "text"
      end
      local proxy = proxy_of { go = { raw = true, inplace = how == "inplace",
                                      handler } }
      assert.is_nil((proxy:go("x")))
      ends_in("closed", "raw")
      cases.cleanup()
      agent = assert(cases.agent("worker"))
    end
  end)

  it("ends when the agent is closed after the reply", function()
    local page = cases.alloc(agent.engine, 2 ^ 20)
    agent:serve { name = "x", methods = { get = function()
      watch "replied"
      return page:slice()
    end } }
    local child = process.start(function(child)
      local proxy = assert(assert(child.cases.agent()):proxy("worker", "x"))
      proxy.async:get()
      child.say("called")
      child.hear()                      -- the reply lies unread meanwhile
    end)
    child:expect("called", 30, function() perigee.sleep(0.001) end)
    assert.is_true(cases.eventually(function()
      return next(agent.engine.replying)
    end))
    assert.is_nil(ends.replied)
    agent:close()
    ends_in("closed", "replied")
    child:tell("")
  end)

  it("ends when the loop is stopped while the handler runs", function()
    local proxy = proxy_of { wait = function()
      ends.context = perigee.context()
      perigee.sleep(60)
    end }
    perigee.run(function()
      proxy.async:wait()
      repeat perigee.sleep(0.001) until ends.context
      perigee.stop()
      perigee.sleep(60)
    end)
    local sent, err = ends.context:sent(5)
    assert.is_nil(sent)
    assert.equal("closed", err.kind)
  end)

  it("ends when its session does before the reply", function()
    local go
    local proxy = proxy_of { wait = function()
      local context = watch "lost"
      while not go do perigee.sleep(0.001) end
      return context:cancelled()
    end }
    local call = proxy.async:wait()
    perigee.sleep(0.02)
    perigee.session(proxy):close()
    assert.is_nil((call:wait(5)))
    perigee.sleep(0.02)
    go = true
    ends_in("peer_lost", "lost")
  end)

  describe("of a landing's context", function()
    local memory, contexts, abandoned

    local function landing_of(f)
      memory, contexts = cases.alloc(agent.engine, 4096), {}
      abandoned = 0
      return proxy_of { put = {
        landing = function(length)
          contexts[1] = watch "landing"
          return f(length)
        end,
        abandoned = function() abandoned = abandoned + 1 end,
        function()
          contexts[2] = perigee.context()
          return "stored"
        end } }
    end

    local function slice_of(proxy, length)
      return cases.alloc(perigee.session(proxy).engine, length):slice()
    end

    it("is its handler's, and ends with the reply", function()
      local proxy = landing_of(function() return memory:slice(0, 10) end)
      assert.equal("stored", proxy:put(slice_of(proxy, 10)))
      assert.is_true((ended "landing"))
      assert.is_true(contexts[1] == contexts[2])
    end)

    it("ends where the landing refuses, is too short, or raises", function()
      local ways = {
        function() return nil, "no" end,
        function() return memory:slice(0, 5) end,
        function() return 5 end,
        function() error("no") end,
      }
      for _, way in ipairs(ways) do
        ends = {}
        local proxy = landing_of(way)
        assert.is_nil((proxy:put(slice_of(proxy, 10))))
        ended "landing"
        cases.cleanup()
        agent = assert(cases.agent("worker"))
      end
    end)

    it("ends where the landing closes its agent", function()
      local proxy = landing_of(function()
        local slice = memory:slice(0, 10)
        agent:close()
        return slice
      end)
      assert.is_nil((proxy:put(slice_of(proxy, 10))))
      ends_in("closed", "landing")
      assert.equal(1, abandoned)
    end)
  end)
end)

describe("a context", function()
  local HERE = debug.getinfo(1, "S").short_src
  after_each(cases.cleanup)

  local MISUSE = {
    { "raw handler .*must not wait", function(it)
      it.raw:proxy "x" end },
    { "raw handler .*must not wait", function(it)
      it.raw:sent() end },
    { "context:sent's timeout must be seconds", function(it)
      it.raw:sent(-1) end },
    { "context:sent's timeout must be seconds", function(it)
      it.typed:sent "long" end },
    { "a service's name must be a string", function(it)
      it.typed:proxy(7) end },
    { "proxy has no option", function(it)
      it.typed:proxy("x", { unknown = 1 }) end },
  }

  it("tells misuse at the program's line", function()
    local agent, it = assert(cases.agent("worker")), {}
    agent:serve { name = "x", methods = {
      typed = function() it.typed = perigee.context() end,
      raw = { raw = true, function()
        it.raw = perigee.context()
        for i, each in ipairs(MISUSE) do it[i] = { pcall(each[2], it) } end
      end } } }
    local proxy = assert(assert(cases.agent()):proxy("worker", "x"))
    proxy:typed()
    assert(proxy:raw())
    for i, each in ipairs(MISUSE) do
      local line = debug.getinfo(each[2], "S").linedefined + 1
      assert.is_false(it[i][1])
      assert.matches(("^%s:%d: .*%s"):format(HERE, line, each[1]), it[i][2])
    end
  end)
end)

describe("an abandoned landing", function()
  local agent, client, told, memory

  -- Serves "x" with method put. told has what
  -- perigee.context gives while a landing is abandoned.
  local function serve(f, methods)
    agent, client = assert(cases.agent("worker")), assert(cases.agent())
    memory, told = cases.alloc(agent.engine, 4096), {}
    methods.put = {
      landing = f,
      abandoned = function() told[#told + 1] = { pcall(perigee.context) } end,
      function() return "stored" end }
    agent:serve { name = "x", methods = methods }
    return assert(client:proxy("worker", "x", { timeout = 20 }))
  end

  local function check_told()
    assert.equal(1, #told)
    assert.is_false(told[1][1])
    assert.matches("no handler runs here", told[1][2])
  end

  after_each(cases.cleanup)

  it("has no context, where a handler waits meanwhile", function()
    local proxy
    proxy = serve(function() return memory:slice(0, 4) end, {
      outer = function(slice_length)
        local region = cases.alloc(client.engine, slice_length)
        local got, err = proxy:put(region:slice())
        return got, err.kind, perigee.context().method
      end })
    assert.same({ nil, "too_large", "outer" }, { proxy:outer(10) })
    check_told()
  end)

  -- Returns what a put of many values gives, whose landing has another client
  -- call a handler that closes the engine. They are decoded in portions, twice:
  -- once for the landing, and once for a handler that mostly will not run.
  local function put_and_end()
    local other, values = nil, {}
    local proxy = serve(function()
      other.async:ends()
      return memory:slice(0, 4)
    end, {
      ends = function() agent.engine:close() end })
    other = assert(assert(cases.agent()):proxy("worker", "x"))
    for i = 1, 40000 do values[i] = i end
    local slice = cases.alloc(client.engine, 4):slice()
    return proxy:put(slice, values)
  end

  it("has none where a handler closes its engine", function()
    local tries, got = 0
    repeat
      cases.cleanup()
      tries, got = tries + 1, put_and_end()
    until not got or tries == 20
    assert.is_nil(got)
    check_told()
  end)
end)

describe("a reader", function()
  after_each(cases.cleanup)

  it("has no context of a handler that waits, but is another call's", function()
    local agent, told = assert(cases.agent("worker")), nil
    local proxy
    agent:serve { name = "x", methods = {
      echo = { raw = true, function(request) return request end },
      outer = function() return proxy:echo "inner" end } }
    proxy = assert(assert(cases.agent()):proxy("worker", "x", { timeout = 20 }))
    local reads = proxy:with { reader = function()
      told = { pcall(perigee.context) }
    end }
    local future = reads.async:echo "other"
    assert.equal("inner", proxy:outer())
    future:wait()
    assert.is_false(told[1])
    assert.matches("no handler runs here", told[2])
  end)
end)

describe("a landing", function()
  after_each(cases.cleanup)

  it("has its handler, or is abandoned, whenever its caller cancels", function()
    local agent, client = assert(cases.agent("worker")), assert(cases.agent())
    local memory = cases.alloc(agent.engine, 4096)
    local given, handled, abandoned = 0, 0, 0
    agent:serve { name = "x", methods = { put = {
      landing = function()
        given = given + 1
        return memory:slice(0, 10)
      end,
      abandoned = function() abandoned = abandoned + 1 end,
      function() handled = handled + 1 end } } }
    local proxy = assert(client:proxy("worker", "x", { timeout = 20 }))
    local slice = cases.alloc(client.engine, 10):slice()
    local values = {}                   -- decoded in portions, twice
    for i = 1, 40000 do values[i] = i end
    for try = 1, 24 do
      local before = given
      local call = proxy.async:put(slice, values)
      assert.is_true(cases.eventually(function() return given > before end))
      perigee.sleep(try * 0.0003)
      call:cancel()
      call:wait()
    end
    assert.is_true(cases.eventually(function()
      return given == handled + abandoned
    end), ("%d given, %d handled, %d abandoned"):format(given, handled,
                                                        abandoned))
    assert.is_nil(next(agent.engine.landed))
    assert.is_nil(next(agent.engine.contexts))
  end)
end)
