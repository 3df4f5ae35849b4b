-- SPDX-License-Identifier: Apache-2.0
-- Many things at once: calls both ways, 64 sessions on one engine, and random
-- mixes of everything, with every payload checked.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  local region = agent.engine:alloc(2 ^ 24)
  agent.engine:alloc(2 ^ 24, { name = "m", access = "rw" })
  local callers = 0
  agent:serve {
    name = "mix", version = 1,
    methods = {
      same = function(...) return ... end,
      sleep = function(seconds, value)
        perigee_.sleep(seconds)
        return value
      end,
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
      slice = function(slice) return slice end,
      -- Makes `count` calls back to the caller, all at once.
      storm = function(count)
        local caller = assert(perigee_.context():proxy("back"))
        local futures = {}
        for i = 1, count do
          futures[i] = caller.async:double(i, ("x"):rep(i))
        end
        for i = 1, count do assert(futures[i]:wait(10) == 2 * i) end
        return count
      end,
      hello = function() callers = callers + 1 return callers end,
      part = function(offset, length, value)
        return region:slice(offset, length):fill(value)
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("calls", function()
  local proxy, agent

  setup(function()
    process.start(server):expect("ready")
    proxy, agent = cases.proxy("mix", { timeout = 20 })
    agent:serve { name = "back", version = 1, methods = {
      double = function(n, text)
        assert(#text == n)
        return 2 * n
      end } }
  end)
  teardown(cases.cleanup)

  it("go both ways at once on one session", function()
    local storms, calls = {}, {}
    for i = 1, 10 do storms[i] = proxy.async:storm(100) end
    for i = 1, 500 do calls[i] = proxy.async:echo(cases.bytes(i * 37)) end
    for i = 1, 500 do
      assert.is_true(calls[i]:wait(20) == cases.bytes(i * 37))
    end
    for i = 1, 10 do assert.equal(100, (storms[i]:wait(20))) end
  end)

  it("of every kind and size mix, with payloads checked", function()
    math.randomseed(7)
    local memory = cases.alloc(agent.engine, 2 ^ 24)
    local session = assert(agent:session("worker"))
    local remote = assert(session:region("m"))
    local sizes = { 0, 1, 100, 8191, 8192, 8193, 16384, 16385, 65536, 200000 }
    local SLOT = 2 ^ 18
    local kinds = {}

    function kinds.typed(text)
      return proxy.async:same(text, nil, #text), function(got, none, n)
        return got == text and none == nil and n == #text
      end
    end
    function kinds.raw(text)
      return proxy.async:echo(text), function(got) return got == text end
    end
    function kinds.inplace(text)
      return proxy:with({ capacity = #text }).async:copy(text),
        function(got) return got == text end
    end
    function kinds.slow(text)
      return proxy.async:sleep(math.random() * 0.003, text),
        function(got) return got == text end
    end
    function kinds.slice(text, slot)
      local slice = memory:slice(slot * SLOT, #text):write(text)
      return proxy:with({ into = slice }).async:slice(slice),
        function(got) return got and got:string() == text end
    end
    function kinds.write(text, slot)
      local slice = memory:slice(slot * SLOT, #text):write(text)
      local there = remote:slice(slot * SLOT, #text)
      return session:write { from = slice, to = there }, function(done)
        if not done then return false end
        slice:fill(0)
        assert(session:read { from = there, to = slice }:wait(5))
        return slice:string() == text
      end
    end
    local names = {}
    for name in pairs(kinds) do names[#names + 1] = name end
    table.sort(names)
    local window = {}
    local function finish(slot)
      local one = window[slot]
      if one and not one.check(one.future:wait(20)) then
        error(("%s of %d bytes: %s"):format(one.name, one.size,
          tostring(select(2, one.future:wait(0)))))
      end
      window[slot] = nil
    end
    for i = 1, 3000 do
      local slot = i % 40
      finish(slot)
      local name = names[math.random(#names)]
      local size = sizes[math.random(#sizes)]
      local future, check = kinds[name](cases.bytes(size, i), slot)
      window[slot] = { future = future, check = check, name = name,
                       size = size }
      if i % 97 == 0 then
        future:cancel()
        future:wait(5)
        window[slot] = nil
      end
    end
    for slot = 0, 39 do finish(slot) end
  end)
end)

describe("one engine", function()
  before_each(function() process.start(server):expect("ready") end)
  after_each(cases.cleanup)

  it("serves 64 sessions", function()
    local children = {}
    local function callers(child, perigee_, _, count)
      local proxies = {}
      for i = 1, tonumber(count) do
        local agent = assert(child.cases.agent())
        proxies[i] = assert(agent:proxy("worker", "mix", { timeout = 20 }))
        proxies[i]:hello()
      end
      child.say("connected")
      child.hear()
      for round = 1, 50 do
        local futures = {}
        for i, one in ipairs(proxies) do
          futures[i] = one.async:same(i, round, ("y"):rep(i * round))
        end
        for i, future in ipairs(futures) do
          local a, b, c = future:wait(20)
          assert(a == i and b == round and #c == i * round)
        end
        perigee_.sleep(0)
      end
      child.say("done")
      child.hear()
    end
    for i = 1, 4 do children[i] = process.start(callers, 16) end
    for i = 1, 4 do children[i]:expect("connected", 20) end
    local proxy = cases.proxy("mix", { timeout = 5 })
    assert.equal(65, (proxy:hello()))
    for i = 1, 4 do children[i]:tell("go") end
    for i = 1, 4 do children[i]:expect("done", 60) end
    assert.equal(1, (proxy:same(1)))
  end)

  it("has 64 sessions that it dialled, all of them busy", function()
    local children = {}
    for i = 1, 4 do
      children[i] = process.start(function(child, perigee_, _, number)
        for n = 1, 16 do
          local name = ("server-%s-%d"):format(number, n)
          local agent = assert(child.cases.agent(name))
          agent:serve { name = "who", version = 1, methods = {
            who = function() return name end } }
        end
        child.say("ready")
        perigee_.run()
      end, i)
    end
    local agent, proxies = assert(cases.agent()), {}
    for i = 1, 4 do
      children[i]:expect("ready")
      for n = 1, 16 do
        local name = ("server-%d-%d"):format(i, n)
        proxies[name] = assert(agent:proxy(name, "who", { timeout = 20 }))
      end
    end
    assert.equal(64, agent.engine:stats().sessions)
    for _ = 1, 50 do
      local futures = {}
      for name, proxy in pairs(proxies) do futures[name] = proxy.async:who() end
      for name, future in pairs(futures) do
        assert.equal(name, (future:wait(10)))
      end
    end
    perigee.sleep(0)
  end)
end)
