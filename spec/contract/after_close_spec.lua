-- SPDX-License-Identifier: Apache-2.0
-- What a program may still ask of an agent, an engine and a listener that were
-- closed: nil and an error. And misuse of calls, which raises at its line.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"

describe("once it is closed", function()
  local agent, engine, listener, region, slice

  before_each(function()
    agent = assert(cases.agent("closed"))
    engine = agent.engine
    region = cases.alloc(engine, 4096)
    slice = region:slice()
    listener = assert(engine:listen(cases.address("after")))
    agent:close()
  end)
  after_each(cases.cleanup)

  local function is_closed(got, err)
    assert.is_nil(got)
    assert.is_true(perigee.is_error(err))
    assert.equal("closed", err.kind)
    assert.is_not_true(err.sent)
    assert.matches(" closed", err.message)
  end

  it("an engine's functions give closed", function()
    is_closed(engine:alloc(64))
    is_closed(engine:register(ffi.new("uint8_t[64]"), 64))
    is_closed(engine:listen(cases.address("again")))
    is_closed(engine:connect(cases.address("after")))
    is_closed(engine:endpoint())
  end)

  it("an agent's functions give closed", function()
    is_closed(agent:session("worker"))
    is_closed(agent:session("worker", { keep = true }))
    is_closed(agent:proxy("worker", "x"))
    is_closed(agent:list())
    is_closed(agent:lookup("worker"))
    is_closed(agent:regions("worker"))
    is_closed(agent:watch({}, function() end))
    is_closed(agent:mesh({ "worker" }, 1))
    is_closed(agent:rendezvous("key", 1, 1))
    is_closed(agent:drain())
    is_closed(agent:serve_once(1))
    is_closed(agent:read("worker", { from = "kv", to = slice }):wait(1))
    is_closed(agent:write("worker", { to = "kv", from = slice }):wait(1))
  end)

  it("a listener gives closed, and a region is closed at once", function()
    is_closed(listener:accept(1))
    assert.is_true(region:close(1))
  end)
end)

describe("misuse of a call", function()
  local proxy

  setup(function()
    local agent = assert(cases.agent("worker"))
    agent:serve { name = "x", methods = {
      typed = function(...) return ... end,
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
    } }
    proxy = assert(assert(cases.agent()):proxy("worker", "x"))
  end)
  teardown(cases.cleanup)

  -- Calls f, which has to raise at its own line.
  local function raises(text, f)
    local fine, why = pcall(f)
    assert.is_false(fine)
    local line = debug.getinfo(f, "S").linedefined
    assert.matches(("after_close_spec.lua:%d: "):format(line), why, 1, true)
    assert.matches(text, why)
  end

  it("is a second argument of a raw method", function()
    raises("one argument", function() return (proxy:echo("a", "b")) end)
    raises("one argument", function() return (proxy:copy("a", false)) end)
    raises("one argument", function() return (proxy.async:echo("a", {})) end)
    assert.equal("a", proxy:echo("a", nil))
  end)

  it("is an option of raw methods for a typed one", function()
    for name, value in pairs { reader = function() end, capacity = 64,
                               request_capacity = 64 } do
      local with = proxy:with { [name] = value }
      raises("option " .. name, function() return (with:typed(1)) end)
      raises("option " .. name, function() return (with.async:typed(1)) end)
    end
    assert.equal(1, proxy:typed(1))
  end)
end)
