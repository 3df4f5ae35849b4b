-- SPDX-License-Identifier: Apache-2.0
-- Names of services and methods, versions, and proxies.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  local function ping(...) return select("#", ...) end
  agent:serve { name = "calc", version = 3, methods = {
    add = function(a, b) return a + b end, ping = ping } }
  agent:serve { name = "store", version = 1, methods = { ping = ping } }
  agent:serve {
    name = "peers", version = 1,
    methods = {
      peer = function()
        local context = perigee_.context()
        return context.peer, context.method, context:cancelled(),
          context:remaining()
      end,
      late = function()
        agent:serve { name = "late", version = 1, methods = { ping = ping } }
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("a proxy", function()
  local agent

  setup(function()
    process.start(server):expect("ready")
    agent = assert(cases.agent("driver"))
  end)
  teardown(cases.cleanup)

  it("finds a service by its agent's and its own name", function()
    local calc = assert(agent:proxy("worker", "calc"))
    assert.equal(3, (calc:add(1, 2)))
  end)

  it("is refused for an agent that is not there", function()
    local proxy, err = agent:proxy("nobody", "calc")
    assert.is_nil(proxy)
    assert.equal("not_found", err.kind)
    assert.matches("nobody", err.message)
  end)

  it("is refused for an unknown service, by name, with a list", function()
    local proxy, err = agent:proxy("worker", "clac")
    assert.is_nil(proxy)
    assert.equal("no_service", err.kind)
    for _, name in ipairs { "clac", "calc", "store", "peers" } do
      assert.matches(name, err.message)
    end
  end)

  it("refuses an unknown method, by name, with a list", function()
    local calc = assert(agent:proxy("worker", "calc"))
    local got, err = calc:substract(1, 2)
    assert.is_nil(got)
    assert.equal("no_method", err.kind)
    assert.is_false(err.sent)
    assert.matches("^calling calc.substract of worker: calc has no such method",
                   err.message)
    for _, name in ipairs { "add", "ping" } do
      assert.matches(name, err.message)
    end
    local future = calc.async:substract(1, 2)
    got, err = future:wait(1)
    assert.is_nil(got)
    assert.equal("no_method", err.kind)
  end)

  it("refuses another version, and says which there is", function()
    for _, version in ipairs { 1, 2, 4 } do
      local proxy, err = agent:proxy("worker", "calc", { version = version })
      assert.is_nil(proxy)
      assert.equal("version", err.kind)
      assert.matches("3", err.message)
    end
    for _, range in ipairs { { 1, 2 }, { 4, 9 } } do
      local proxy, err = agent:proxy("worker", "calc", { version = range })
      assert.is_nil(proxy)
      assert.equal("version", err.kind)
    end
    assert(agent:proxy("worker", "calc", { version = 3 }))
    assert(agent:proxy("worker", "calc", { version = { 1, 3 } }))
    assert(agent:proxy("worker", "calc", { version = { 3, 7 } }))
    assert(agent:proxy("worker", "calc", { version = { 2, 4 } }))
  end)

  it("uses the session that there is", function()
    local before = agent.engine:stats().sessions
    local first = assert(agent:proxy("worker", "calc"))
    for _ = 1, 20 do assert(agent:proxy("worker", "store")) end
    assert.equal(before, agent.engine:stats().sessions)
    assert.equal(3, (first:add(1, 2)))
  end)

  it("finds a service that was added later", function()
    local peers = assert(agent:proxy("worker", "peers"))
    assert.is_nil((agent:proxy("worker", "late")))
    peers:late()
    local late = assert(agent:proxy("worker", "late"))
    assert.equal(2, (late:ping(1, nil)))
  end)

  it("takes known options of the right type only", function()
    assert.has_error(function()
      agent:proxy("worker", "calc", { timeuot = 1 })
    end)
    assert.has_error(function()
      agent:proxy("worker", "calc", { timeout = "1" })
    end)
    assert.has_error(function()
      agent:proxy("worker", "calc", { version = "1" })
    end)
    assert.has_error(function() agent:proxy("worker") end)
    assert.has_error(function() agent:proxy(nil, "calc") end)
  end)

  it("lets a handler know who calls, what, and for how long", function()
    local peers = assert(agent:proxy("worker", "peers", { timeout = 2 }))
    local peer, method, cancelled, remaining = peers:peer()
    assert.matches("driver", peer)
    assert.equal("peer", method:match("(%w+)$"))
    assert.is_false(cancelled)
    assert.is_true(remaining > 0 and remaining <= 2)
    local endless = peers:with { timeout = math.huge }
    assert.equal(math.huge, (select(4, endless:peer())))
  end)
end)

describe("a service", function()
  local agent

  before_each(function() agent = assert(cases.agent()) end)
  after_each(cases.cleanup)

  it("may not have a method called with, async or close", function()
    for _, name in ipairs { "with", "async", "close" } do
      local fine, message = pcall(function()
        agent:serve { name = "bad", version = 1,
                      methods = { [name] = function() end } }
      end)
      assert.is_false(fine)
      assert.matches(name, message)
      assert.matches("names_spec.lua:", message)
    end
  end)

  it("is checked when it is defined", function()
    local none = function() end
    local bad = {
      {}, { name = "x" }, { name = "x", methods = {}, extra = 1 },
      { name = 1, version = 1, methods = { a = none } },
      { name = "x", version = "1", methods = { a = none } },
      { name = "x", version = 1, methods = { a = 1 } },
      { name = "x", version = 1, methods = { a = {} } },
      { name = "x", version = 1, methods = { a = { raw = true } } },
      { name = "x", version = 1, methods = { a = { rwa = true, none } } },
      { name = "x", version = 1, methods = { [1] = none } },
      { name = "x", version = 1, methods = { a = { landing = 1, none } } },
    }
    for i, service in ipairs(bad) do
      local fine, message = pcall(function() agent:serve(service) end)
      assert.is_false(fine, i)
      assert.matches("names_spec.lua:", message)
    end
  end)

  it("is served once by an agent", function()
    local service = { name = "x", version = 1,
                      methods = { a = function() end } }
    agent:serve(service)
    assert.has_error(function() agent:serve(service) end)
  end)

  it("can be served call by call", function()
    local own = assert(cases.agent("slow"))
    local served = 0
    own:serve { name = "x", version = 1, methods = { a = function()
      served = served + 1
    end } }
    local child = process.start(function(child)
      local caller = assert(child.cases.agent())
      local proxy = assert(caller:proxy("slow", "x"))
      for _ = 1, 3 do proxy:a() end
      child.say("done")
      child.hear()
    end)
    for i = 1, 3 do
      assert.is_true(own:serve_once(30))
      assert.is_true(served >= i)
    end
    child:expect("done", 30, function() perigee.sleep(0.001) end)
    local done, err = own:serve_once(0.05)
    assert.is_nil(done)
    assert.equal("timeout", err.kind)
  end)
end)
