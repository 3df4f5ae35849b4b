-- SPDX-License-Identifier: Apache-2.0
-- Trace contexts: the caller's trace reaches the handler, and is passed on in
-- every call that the handler makes, in whatever way.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
local SPAN = "00f067aa0ba902b7"
local FULL = "00-" .. TRACE .. "-" .. SPAN .. "-01"

-- Returns the trace that it was called with: its own, and that of a call that
-- it makes to itself.
local function server(child, perigee_, _, features)
  local engine = features and { features = features } or nil
  local agent = child.cases.agent("worker", { engine = engine })
  local function trace() return perigee_.context():trace() or "none" end
  local place, calls, landed = child.cases.alloc(agent.engine, 4096), nil, nil
  agent:serve {
    name = "traces", version = 1,
    methods = {
      typed = trace,
      raw = { raw = true, trace },
      inplace = { raw = true, inplace = true, function(_, reply)
        return reply:write(trace())
      end },
      landing = { landing = function(length)
          landed = trace()
          return place:slice(0, length)
        end,
        function(slice) return landed, trace(), slice.length end },
      on = function() return trace(), calls:typed() end,
      on_raw = function() return trace(), calls:raw "" end,
      on_async = function()
        return trace(), calls.async:typed():wait()
      end,
      on_waited = function()
        perigee_.sleep(0.01)
        return trace(), calls:typed()
      end,
      on_spawned = function()
        local one = perigee_.spawn(function() return calls:typed() end)
        return trace(), one:wait()
      end,
      twice = function() return calls:typed(), calls:typed() end,
      own = function(id) return calls:with { trace = id }:typed() end,
    },
  }
  calls = assert(agent:proxy("worker", "traces"))
  child.say("ready")
  perigee_.run()
end

local function parts(text)
  return text:match "^00%-(%x+)%-(%x+)%-(%x%x)$"
end

describe("a trace", function()
  local calls, agent

  setup(function()
    process.start(server):expect("ready")
    calls, agent = cases.proxy("traces", { timeout = 10 })
  end)
  teardown(cases.cleanup)

  it("comes to handlers of every kind", function()
    local traced = calls:with { trace = FULL }
    assert.equal(FULL, (traced:typed()))
    assert.equal(FULL, traced:raw "bytes")
    assert.equal(FULL, traced:inplace(("x"):rep(64)))
    assert.equal(FULL, traced:inplace(function(loan)
      return loan:write "short"
    end))
    assert.equal(FULL, traced:raw(("x"):rep(100000)))
    assert.equal(FULL, (traced:typed(("x"):rep(100000))))
    assert.equal(FULL, traced.async:typed():wait())
  end)

  it("comes with slices, too", function()
    local memory = cases.alloc(agent.engine, 4096)
    local landing, trace, length =
      calls:with { trace = FULL }:landing(memory:slice())
    assert.equal(FULL, landing)
    assert.equal(FULL, trace)
    assert.equal(4096, length)
  end)

  it("goes with calls whose replies land where the caller says", function()
    local memory, asked = cases.alloc(agent.engine, 4096), 0
    local traced = calls:with { trace = FULL, landing = function(length)
      asked = asked + 1
      return memory:slice(0, length)
    end }
    assert.equal(FULL, traced:raw(("x"):rep(100000)):string())
    assert.equal(FULL, traced:inplace(("x"):rep(64)):string())
    assert.equal(2, asked)
    assert.equal(FULL, (traced:typed()))
    local none, err = calls:with { trace = FULL, landing = function()
      return nil, "no place"
    end }:raw "x"
    assert.is_nil(none)
    assert.equal("denied", err.kind)
  end)

  it("is none unless one was named", function()
    calls:with { trace = FULL }:typed()
    assert.equal("none", (calls:typed()))
    assert.equal("none", calls:raw "")
    assert.equal("none", calls:inplace "")
  end)

  it("stays with what with makes of its proxy", function()
    local traced = calls:with { trace = FULL }:with { timeout = 5 }
    assert.equal(FULL, (traced:typed()))
  end)

  it("may be told by its id alone, and has a new span in each call", function()
    local traced = calls:with { trace = TRACE }
    local id, one, flags = parts((traced:typed()))
    local _, two = parts((traced:typed()))
    assert.equal(TRACE, id)
    assert.equal("01", flags)
    assert.is_true(one ~= two)
  end)

  for _, way in ipairs { "on", "on_raw", "on_async", "on_waited",
                         "on_spawned" } do
    it("goes on with a new span: " .. way, function()
      local traced = calls:with { trace = FULL }
      local came, went = traced[way](traced)
      assert.equal(FULL, came)
      local id, span, flags = parts(went)
      assert.equal(TRACE, id)
      assert.equal("01", flags)
      assert.is_true(span ~= SPAN)
      came, went = calls[way](calls)
      assert.equal("none", came)
      assert.equal("none", went)
    end)
  end

  it("may be a new one for each call, which its calls carry on", function()
    local traced, ids = calls:with { trace = true }, {}
    for i, call in ipairs { function() return (traced:typed()) end,
                            function() return traced:raw "bytes" end,
                            function() return traced:inplace "bytes" end,
                            function()
                              return (traced.async:typed():wait())
                            end } do
      local id, span, flags = parts(call())
      assert.equal("01", flags)
      assert.is_truthy(span:find "[^0]")
      assert.is_nil(ids[id], i)
      ids[id] = true
    end
    local came, went = traced:on()
    assert.equal((parts(came)), (parts(went)))
  end)

  it("has a span for each call that a handler makes", function()
    local one, two = calls:with { trace = FULL }:twice()
    assert.is_true(one ~= two)
  end)

  it("gives way to one that the handler names", function()
    local other = "00-" .. ("a"):rep(32) .. "-" .. ("b"):rep(16) .. "-00"
    assert.equal(other, (calls:with { trace = FULL }:own(other)))
  end)

  it("is not mixed up among calls that are served at once", function()
    local futures, ids = {}, {}
    for i = 1, 32 do
      ids[i] = ("%032x"):format(i)
      futures[i] = calls:with { trace = ids[i] }.async:on_waited()
    end
    for i, future in ipairs(futures) do
      local came, went = future:wait()
      assert.equal(ids[i], (parts(came)))
      assert.equal(ids[i], (parts(went)))
    end
  end)

  it("that is none is misuse, at the caller's line", function()
    local zeros = ("0"):rep(32)
    for _, wrong in ipairs { "", "00", TRACE:sub(2), TRACE .. "0",
                             TRACE:upper(), zeros, 7, false,
                             "01-" .. TRACE .. "-" .. SPAN .. "-01",
                             "00-" .. zeros .. "-" .. SPAN .. "-01",
                             "00-" .. TRACE .. "-" .. zeros:sub(17) .. "-01",
                             FULL .. " ", "ff" .. FULL:sub(3) } do
      local fine, text = pcall(function() calls:with { trace = wrong } end)
      assert.is_false(fine)
      assert.matches("traces_spec.lua:%d+: .*traceparent", text)
    end
  end)
end)

describe("a peer without traces", function()
  after_each(cases.cleanup)

  it("is unsupported where one was named, before it is called", function()
    process.start(server, "-trace"):expect("ready")
    local calls = cases.proxy("traces", { timeout = 10 })
    local traced, new = calls:with { trace = FULL }, calls:with { trace = true }
    for _, call in ipairs { function() return traced:typed() end,
                            function() return new:typed() end,
                            function() return traced:raw "bytes" end,
                            function()
                              return traced:inplace(function() return 0 end)
                            end,
                            function()
                              return traced.async:typed():wait()
                            end } do
      local none, err = call()
      assert.is_nil(none)
      assert.equal("unsupported", err.kind)
      assert.is_false(err.sent)
      assert.matches('the peer does not have the feature "trace"',
                     err.message, 1, true)
    end
    assert.equal("none", (calls:typed()))
  end)

  it("is called without one that is only carried on", function()
    process.start(server, "-trace"):expect("ready")
    local old = cases.proxy("traces", { timeout = 10 })
    local agent = cases.agent("between")
    agent:serve { name = "between", methods = {
      on = function() return perigee.context():trace(), old:typed() end } }
    local between = assert(agent:proxy("between", "between"))
    local came, went = between:with { trace = FULL }:on()
    assert.equal(FULL, came)
    assert.equal("none", went)
  end)
end)
