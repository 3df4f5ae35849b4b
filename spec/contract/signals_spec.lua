-- SPDX-License-Identifier: Apache-2.0
-- Signal handlers are changed only inside serve and run, and restored after.
local cases = require "spec.support.cases"
local errors = require "perigee.runtime.errors"
local library = require "perigee"
local process = require "spec.support.process"

local SIGINT, SIGTERM = 2, 15

local function serving(child, perigee)
  child.say("ready")
  local done, err = perigee.serve {
    name = "worker", scope = child.cases.scope,
    services = { { name = "x", version = 1, methods = {
      busy = function(seconds)
        local limit = os.clock() + seconds
        repeat until os.clock() > limit
      end,
      sleep = function(seconds) perigee.sleep(seconds) end,
      serve = function()
        return pcall(function()
          local done = perigee.serve { name = "inner",
                                       scope = child.cases.scope }
          return done
        end)
      end,
      child_mask = function()
        local file = io.popen("grep SigBlk /proc/self/status")
        return file:read("*a"):match("(%x+)%s*$")
      end,
    } } },
  }
  child.say(tostring(done), err and err.kind or "")
end

local function running(child, perigee)
  local resumed = false
  perigee.spawn(function()
    child.say("running")
    perigee.sleep(1.5)
    resumed = true
    child.say("resumed")
  end)
  local done, err = perigee.run()
  child.say(tostring(done), err.kind)
  child.hear()
  child.say(tostring(resumed))
end

describe("serve", function()
  it("blames its caller for an option", function()
    for option, value in pairs { drain = -1, name = ".x", what = 1 } do
      local line
      local fine, why = pcall(function()
        line = debug.getinfo(1, "l").currentline + 1
        local done = library.serve { [option] = value }
        return done
      end)
      assert.is_false(fine)
      assert.matches(("signals_spec.lua:%d: .*%s"):format(line, option), why)
    end
  end)
end)

describe("a signal", function()
  after_each(cases.cleanup)

  for name in pairs { INT = SIGINT, TERM = SIGTERM } do
    it("SIG" .. name .. " stops serve in order", function()
      local child = process.start(serving):expect("ready")
      local proxy = cases.found("x", { timeout = 5, reconnect = 0 })
      assert.is_true((select("#", proxy:sleep(0)) == 0))
      child:signal(name)
      assert.matches("^true", (child:read(5)))
      assert.same({ "exit", 0 }, { child:wait(5) })
      local got, err = proxy:sleep(0)
      assert.is_nil(got)
      assert.is_true(err.kind == "peer_lost" or err.kind == "closed")
    end)

    it("SIG" .. name .. " ends run at once, tasks not resumed", function()
      local child = process.start(running):expect("running")
      child:signal(name)
      child:expect("nil closed", 5)
      process.usleep(1.8)
      child:tell("go on")
      child:expect("false")
      assert.same({ "exit", 0 }, { child:wait(5) })
    end)
  end

  it("lets calls end also where serve was called a second time", function()
    local child = process.start(serving):expect("ready")
    local proxy = cases.found("x", { timeout = 20 * cases.slow,
                                     reconnect = 0 })
    local fine, why = proxy:serve()
    assert.is_false(fine)
    assert.matches("signals_spec.lua:%d+: serve is called where the loop runs "
      .. "already", why)
    local sleeping = proxy.async:sleep(1)
    assert.is_true((select("#", proxy:sleep(0)) == 0))
    child:signal "TERM"
    assert.same({ nil, nil }, { sleeping:wait(20 * cases.slow) })
    assert.matches("^true", (child:read(5 * cases.slow)))
  end)

  it("given twice takes the default action", function()
    local child = process.start(function(child, perigee)
      perigee.run(function()
        child.say("busy")
        while true do io.write("") end
      end)
    end)
    child:expect("busy")
    child:signal("TERM")
    process.usleep(0.5) -- a pending signal would merge with a second
    assert.is_true(child:wait(0.05) == nil)
    child:signal("TERM")
    assert.same({ "signal", SIGTERM }, { child:wait(10) })
  end)

  it("kills a compiled loop that never polls, 2 s later", function()
    local child = process.start(function(child, perigee)
      perigee.run(function()
        child.say("busy")
        local n = 0
        while true do n = n + 1 end
      end)
    end)
    child:expect("busy")
    process.usleep(0.05)
    child:signal("INT")
    assert.same({ "signal", SIGINT }, { child:wait(20) })
  end)

  it("is what it was before, outside of run", function()
    local child = process.start(function(child, perigee)
      perigee.agent { scope = child.cases.scope }
      perigee.run(function() perigee.sleep(0.01) end)
      child.say("outside")
      while true do perigee.sleep(0.1) end
    end)
    child:expect("outside")
    child:signal("TERM")
    assert.same({ "signal", SIGTERM }, { child:wait(10) })
  end)

  it("is never blocked in the children of a handler", function()
    process.start(serving):expect("ready")
    local proxy = cases.found("x", { timeout = 5 })
    assert.equal(0, tonumber((proxy:child_mask()), 16))
  end)

  it("leaves nothing in the registry's folder", function()
    local child = process.start(serving):expect("ready")
    local proxy, agent = cases.found("x", { timeout = 5 })
    proxy:sleep(0)
    agent:close()
    child:signal("TERM")
    assert.same({ "exit", 0 }, { child:wait(5) })
    local list = io.popen(("find '%s' ! -type d"):format(cases.folder))
    assert.equal("", list:read("*a"))
    list:close()
  end)
end)

-- Ctrl-C makes LuaJIT's program raise "interrupted!" wherever it is. Each child
-- sends the signal to itself at a certain place, and says what came of it.
local function asking(child, _, ffi, method)
  ffi.cdef "int raise(int);"
  local agent = assert(child.cases.agent())
  local calc = assert(agent:proxy("worker", "x", { timeout = 30 }))
  assert(calc[method](calc))
  require "spec.support.collecting".before(function() ffi.C.raise(2) end)
  child.say(pcall(function()
    for _ = 1, 1000 do
      local values, err = calc[method](calc)
      if not values then return tostring(err) end
    end
  end))
end

-- The same of a call that is waited for twice.
local function asking_again(child, _, ffi)
  ffi.cdef "int raise(int);"
  local agent = assert(child.cases.agent())
  local calc = assert(agent:proxy("worker", "x", { timeout = 30 }))
  assert(calc:few())
  require "spec.support.collecting".before(function() ffi.C.raise(2) end)
  for _ = 1, 1000 do
    local future = calc.async:few()
    local fine, raised = pcall(future.wait, future)
    if not fine then
      child.say(raised, (select(2, future:wait(10)) or {}).kind)
      return
    end
  end
end

local function interrupted(child, perigee, ffi, where)
  ffi.cdef "int raise(int);"
  local function stop() return ffi.C.raise(2) end
  local agent = assert(child.cases.agent("worker"))
  agent:serve { name = "x", version = 1, methods = {
    typed = function() return stop() + 1 end,
    raw = { function() return ("x"):rep(stop()) end, raw = true },
    raises = function(text) error(text, 0) end,
  } }
  child.say("ready")
  if where == "task" then perigee.spawn(function() return stop() + 1 end) end
  child.say(pcall(perigee.sleep, 60))
end

-- A program that goes on after each interrupt, and says that it came.
local function surviving(child, perigee, ffi)
  ffi.cdef "int raise(int);"
  local function stop() return ffi.C.raise(2) end
  local agent = assert(child.cases.agent("worker"))
  local armed = false
  require "spec.support.collecting".before(function()
    local now = armed
    armed = false
    if now then stop() end
  end)
  local function own(options)
    return assert(agent:proxy("worker", "x", options))
  end
  agent:serve { name = "x", version = 1, methods = {
    typed = function() return stop() + 1 end,
    raw = { function() return ("x"):rep(stop()) end, raw = true },
    inplace = { function() return stop() + 1 end, inplace = true },
    landed = { function(slice) return slice.length end,
               landing = function(length)
                 stop()
                 return agent.engine:alloc(length):slice()
               end },
    echo = { function(request) return request end, raw = true },
    reads = function()
      return own { reader = function() return stop() + 1 end }:echo "x"
    end,
    reads_later = function()
      return own { reader = function() return stop() + 1 end }.async:echo "x"
        :wait()
    end,
    writes = function()
      return own():echo(function() return stop() + 1 end)
    end,
    lands = function()
      return own { landing = function() return stop() + 1 end }:echo "x"
    end,
    watches = function()
      assert(agent:watch({}, function() return stop() + 1 end))
    end,
    awaits = function()
      local told
      told = agent:on_session(function()
        told:close()
        return stop() + 1
      end)
    end,
    arm = function() armed = true end,
    count = function(list) return #list end,
    held = function() return agent.engine:stats().held_operations end,
  } }
  child.say("ready")
  while true do child.say(pcall(perigee.sleep, 60)) end
end

describe("an interrupt", function()
  after_each(cases.cleanup)

  for _, method in ipairs { "typed", "raw", "inplace", "landed", "reads",
                            "reads_later", "writes", "lands" } do
    it(("ends the call of a program that goes on after it: %s"):format(method),
       function()
      local child = process.start(surviving):expect("ready")
      local proxy, agent = cases.found("x", { timeout = 30 * cases.slow,
                                              reconnect = 0 })
      local slice = method == "landed" and cases.alloc(agent.engine, 64):slice()
        or nil
      local session = next(agent.engine.sessions)
      local got, err = proxy[method](proxy, slice)
      assert.is_nil(got)
      assert.equal("closed", err.kind, tostring(err))
      assert.matches("was interrupted", err.message)
      assert.is_true(err.sent or method == "landed")
      assert.matches("^false .*interrupted!$", (child:read(30 * cases.slow)))
      assert.equal(1, (proxy:held()))   -- this call itself
      assert.equal(session, next(agent.engine.sessions))
    end)
  end

  for method, what in pairs { watches = "watches the names",
                              awaits = "is told of a session" } do
    it("goes through a function that " .. what, function()
      local child = process.start(surviving):expect("ready")
      local proxy = cases.found("x", { timeout = 30 * cases.slow,
                                       reconnect = 0 })
      proxy[method](proxy)
      local other = method == "awaits"
        and assert(assert(cases.agent()):session "worker")
      assert.matches("^false .*:%d+: interrupted!$",
                     (child:read(30 * cases.slow)))
      assert.equal(1, (proxy:held()))
      assert.is_true(not other or other.handle ~= false)
    end)
  end

  it("delays a call whose large arguments are decoded, if the program goes on",
     function()
    local child = process.start(surviving):expect("ready")
    local proxy = cases.found("x", { timeout = 30 * cases.slow, reconnect = 0 })
    local many = {}
    for i = 1, 50000 do many[i] = i end
    proxy:arm()
    local first, second = proxy.async:count(many), proxy.async:count(many)
    assert.equal(50000, first:wait())
    assert.equal(50000, second:wait())
    assert.matches("^false .*interrupted!$", (child:read(30 * cases.slow)))
    assert.equal(1, (proxy:held()))
  end)

  it("is known by its text, with a place or without", function()
    for _, text in ipairs { "interrupted!", "x.lua:1: interrupted!" } do
      assert.is_true(errors.is_interrupt(text))
      assert.same({ false, text }, { pcall(errors.pass, text) })
    end
    for _, other in ipairs { "x.lua:1: it is interrupted!", "x: interrupted!",
                             "interrupted!\n", { "interrupted!" } } do
      assert.is_false(errors.is_interrupt(other))
      errors.pass(other)
    end
  end)

  for method, what in pairs { few = "a reply", many = "a large reply" } do
    it("goes through the decoding of " .. what, function()
      local agent = cases.agent("worker")
      local few, many = {}, {}
      for i = 1, 200 do few[i] = i end
      for i = 1, 50000 do many[i] = i end
      agent:serve { name = "x", version = 1, methods = {
        few = function() return few end,
        many = function() return many end,
      } }
      local said, why = process.start(asking, method):read(60, cases.pump)
      assert.matches("^false .*:%d+: interrupted!$", said or why)
    end)
  end

  it("ends the call whose reply is being decoded", function()
    local agent = cases.agent("worker")
    local few = {}
    for i = 1, 200 do few[i] = i end
    agent:serve { name = "x", version = 1,
                  methods = { few = function() return few end } }
    local said, why = process.start(asking_again):read(60, cases.pump)
    assert.matches("^.*:%d+: interrupted! closed$", said or why)
  end)

  for _, method in ipairs { "typed", "raw" } do
    it(("goes through a %s handler, and is none of its errors"):format(method),
       function()
         local child = process.start(interrupted, method):expect("ready")
         local proxy = cases.found("x", { timeout = 60, reconnect = 0 })
         local got, err = proxy[method](proxy)
         assert.matches("^false .*:%d+: interrupted!$", (child:read(60)))
         assert.is_nil(got)
         assert.equal("closed", err.kind)
       end)
  end

  it("goes through a task", function()
    local child = process.start(interrupted, "task"):expect("ready")
    assert.matches("^false .*:%d+: interrupted!$", (child:read(60)))
  end)

  it("is nothing that a peer can cause", function()
    process.start(interrupted, "none"):expect("ready")
    local proxy = cases.found("x", { timeout = 60, reconnect = 0 })
    for _, text in ipairs { "interrupted!", "x.lua:1: interrupted!" } do
      local got, err = proxy:raises(text)
      assert.is_nil(got)
      assert.equal("remote", err.kind)
    end
  end)
end)
