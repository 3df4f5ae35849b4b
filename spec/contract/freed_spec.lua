-- SPDX-License-Identifier: Apache-2.0
-- Sessions that the program closes while code runs on the loop: what was under
-- way in them has its end all the same (calls, context():sent(), abandoned),
-- and nothing of it comes back with the next operation of the same number.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LARGE = 2 ^ 28

local function server(child, perigee_)
  child.serve { name = "x", version = 1, methods = {
    same = function(x) return x end,
    sleep = function() perigee_.sleep(60) end,
    echo = { raw = true, function(request) return request end },
  } }
end

-- Calls the parent: "get", "put LENGTH", "close".
local function caller(child)
  local agent = assert(child.cases.agent())
  local proxy = assert(agent:proxy("parent", "y", { timeout = 60 }))
  local region = child.cases.alloc(agent.engine, 2 ^ 28)
  child.say("ready")
  while true do
    local what, length = assert(child.hear()):match("(%a+) ?(%d*)")
    local got, err
    if what == "get" then
      proxy.async:get()
    elseif what == "put" then
      got, err = proxy:put(region:slice(0, tonumber(length)), length)
      child.say(tostring(got), err and err.kind or "fine")
    else
      got, err = proxy:close_all("")
      child.say(tostring(got), err and err.kind or "fine")
    end
  end
end

local function slow(seconds) return seconds * cases.slow end

local function start_caller()
  local child = process.start(caller)
  child:expect("ready", slow(30), cases.pump)
  return child
end

describe("a session that is closed on the loop", function()
  local agent, proxy, other, session, region, seen

  -- The action of the reader, handler or landing of a test.
  local function close()
    proxy:close()
    session:close()
  end

  local function service()
    return { name = "y", version = 1, methods = {
      close_all = { raw = true, function() close() end },
      get = function()
        seen.context = perigee.context()
        return region:slice(0, 2 ^ 20)
      end,
      put = {
        landing = function(length, key)
          if seen.landing then seen.landing() end
          return region:slice(0, length), key
        end,
        abandoned = function(slice)
          seen.abandoned = (seen.abandoned or 0) + slice.length
        end,
        function(slice) return tostring(slice.length) end,
      },
    } }
  end

  before_each(function()
    seen = {}
    process.start(server):expect("ready")
    agent = assert(cases.agent("parent"))
    region = cases.alloc(agent.engine, LARGE)
    agent:serve(service())
    proxy = assert(agent:proxy("worker", "x", { timeout = 600 }))
    other = assert(agent:proxy("worker", "x", { timeout = 60 }))
    session = perigee.session(proxy)
  end)
  after_each(cases.cleanup)

  local function closing()
    return other:with { reader = function() close() end }
  end

  local function ended(future, kind)
    local got, err = future:wait(slow(20))
    assert.is_true(future:done(), "it has no end: " .. tostring(err))
    if not kind then return end
    assert.is_nil(got)
    assert.equal(kind, err.kind, tostring(err))
  end

  local function nothing_left()
    local engine = agent.engine
    for _, one in pairs(engine.sessions) do one:close() end
    assert.is_true(cases.eventually(function()
      return not next(engine.sessions)
    end), "a session is never freed")
    assert.equal(0, engine.flying)
    for _, name in ipairs { "inflight", "landed", "replying" } do
      assert.is_nil(next(engine[name]), name .. " is not empty")
    end
    assert.equal(0, engine:stats().dropped)
  end

  it("by a reader, ends its calls", function()
    local first, second = proxy.async:sleep(), proxy.async:echo("x")
    closing():echo("y")
    ended(first, "closed")
    ended(second)
    nothing_left()
  end)

  it("by a raw handler, ends its calls", function()
    local child = start_caller()
    local future = proxy.async:sleep()
    child:tell("close")
    child:expect(" fine", slow(30), cases.pump)
    ended(future, "closed")
    child:kill()
    nothing_left()
  end)

  it("by a landing, ends its calls", function()
    local child = start_caller()
    local future = proxy.async:sleep()
    seen.landing = close
    child:tell("put 64")
    child:expect("64 fine", slow(30), cases.pump)
    ended(future, "closed")
    child:kill()
    nothing_left()
  end)

  it("by one task, ends the calls of another one", function()
    for i = 1, 50 do
      local future = perigee.spawn(function() return proxy:same(i) end)
      local closer = perigee.spawn(function()
        other:same(i)
        close()
      end)
      assert.is_true(perigee.wait_all({ closer }, slow(20)))
      ended(future)
      proxy = assert(agent:proxy("worker", "x", { timeout = 600 }))
      session = perigee.session(proxy)
    end
    close()
    nothing_left()
  end)

  -- The accepted session of a child that calls.
  local function accepted()
    for _, one in pairs(agent.engine.sessions) do
      if one.accepted and one.handle then return one end
    end
  end

  it("ends context():sent()", function()
    local child = start_caller()
    child:tell("get")
    cases.await(function() return next(agent.engine.replying) end)
    local sent = perigee.spawn(function() return seen.context:sent() end)
    perigee.sleep(0)
    session = accepted()
    closing():echo("y")
    ended(sent)
    child:kill()
    nothing_left()
  end)

  it("calls abandoned, and its landing is nobody else's", function()
    local child = start_caller()
    seen.landing = function()
      seen.landing, session = nil, accepted()
      closing().async:echo("y")
    end
    child:tell("put " .. LARGE)
    child:expect("nil peer_lost", slow(60), cases.pump)
    cases.await(function() return seen.abandoned end)
    assert.equal(LARGE, seen.abandoned)
    for _ = 1, 3 do
      child:tell("put 64")
      child:expect("64 fine", slow(60), cases.pump)
    end
    assert.equal(LARGE, seen.abandoned)
    child:kill()
    nothing_left()
  end)
end)

describe("two agents in one state", function()
  after_each(cases.cleanup)

  -- One engine's event ends a wait; the other one's next is a typed request,
  -- for which the wait itself must stop.
  it("lose no wake", function()
    process.start(function(child, perigee_)
      local agent, proxy = assert(child.cases.agent("worker")), nil
      agent:serve { name = "x", version = 1, methods = {
        same = function(x) return x end } }
      child.say("ready")
      child.cases.await(function()
        proxy = agent:proxy("parent", "y", { timeout = 60 })
        return proxy
      end)
      for _ = 1, 8 do
        perigee_.spawn(function()
          while proxy:same(1) do end
        end)
      end
      perigee_.run()
    end):expect("ready")
    local first, second = assert(cases.agent()), assert(cases.agent("parent"))
    second:serve { name = "y", version = 1, methods = {
      same = function(x) return x end } }
    local proxy = assert(first:proxy("worker", "x", { timeout = 30 }))
    local done = perigee.spawn(function()
      for i = 1, 2000 do
        local a, b = proxy.async:same(i), proxy.async:same(-i)
        assert(a:wait() == i and b:wait() == -i)
      end
      return true
    end)
    local fine, err = done:wait(slow(30))
    assert.is_true(fine, "a wait goes on though its future has ended: "
      .. tostring(err))
  end)
end)
