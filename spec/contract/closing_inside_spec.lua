-- SPDX-License-Identifier: Apache-2.0
-- Code that runs on the loop and closes what it runs in: what it was given
-- stays valid until it returns, its call ends once, and others go on.
local cases = require "spec.support.cases"
local perigee = require "perigee"

describe("what runs on the loop", function()
  local server, client, proxy, spare, closed, abandoned

  local SIZES = { 100, cases.EAGER + 1, 2 ^ 20 }
  local WAYS = { "proxy", "session", "agent", "engine" }

  -- Closes it once, on this side.
  local function close(agent, way)
    if closed then return end
    closed = true
    if way == "proxy" then return proxy:close() end
    if way == "session" then
      for _, session in pairs(agent.engine.sessions) do session:close() end
    else
      (way == "agent" and agent or agent.engine):close()
    end
  end

  local function start(closes)
    closed, abandoned = false, 0
    server, client = assert(cases.agent("worker")), assert(cases.agent())
    local memory = cases.alloc(server.engine, 2 ^ 20)
    server:serve { name = "x", methods = {
      raw = { raw = true, function(request)
        closes("raw")
        return request:string()
      end },
      own = { raw = true, function(request)
        closes("own")
        return request
      end },
      copy = { raw = true, inplace = true, function(request, reply)
        closes("copy")
        return reply:write(request)
      end },
      put = { landing = function(length)
        closes("landing")
        return memory.handle and memory:slice(0, length) or memory.kept
      end, abandoned = function() abandoned = abandoned + 1 end,
      function() return "stored" end },
    } }
    memory.kept = memory:slice(0, 2 ^ 20)
    proxy = assert(client:proxy("worker", "x", { timeout = 5 }))
    spare = proxy:with {}
  end

  after_each(cases.cleanup)

  local function each(f)
    for _, way in ipairs(WAYS) do
      for _, size in ipairs(SIZES) do
        f(way, size)
        cases.cleanup()
      end
    end
  end

  -- A session of which a loan stays open serves no other writer.
  local function others_go_on(way, text)
    if way ~= "proxy" then return end
    for _ = 1, 3 do
      assert.is_true(spare:with { capacity = #text }:copy(function(loan)
        return loan:write(text)
      end) == text)
    end
  end

  it("as a writer may close its proxy, session, agent and engine", function()
    for _, wait in ipairs { true, false } do
      each(function(way, size)
        start(function() end)
        local text = cases.bytes(size)
        local called = proxy:with { capacity = size }
        proxy = called
        local function writer(loan)
          close(client, way)
          return loan:write(text)
        end
        local got, err
        if wait then
          got, err = called:copy(writer)
        else
          got, err = called.async:copy(writer):wait()
        end
        assert.is_nil(got)
        assert.equal("closed", err.kind)
        assert.is_false(err.sent)
        others_go_on(way, text)
      end)
    end
  end)

  it("as a writer may close them and raise", function()
    each(function(way, size)
      start(function() end)
      local called = proxy:with { capacity = size }
      proxy = called
      local fine, why = pcall(called.copy, called, function()
        close(client, way)
        error("raised by the writer")
      end)
      assert.is_false(fine)
      assert.matches("raised by the writer", why)
      others_go_on(way, cases.bytes(size))
    end)
  end)

  it("as a reader may, and has its results", function()
    for _, wait in ipairs { true, false } do
      each(function(way, size)
        start(function() end)
        local text = cases.bytes(size)
        local reads = proxy:with { reader = function(view)
          close(client, way)
          return view:string()
        end }
        local got
        if wait then
          got = reads:raw(text)
        else
          got = reads.async:raw(text):wait()
        end
        assert.is_true(got == text)
        others_go_on(way, text)
      end)
    end
  end)

  it("as a handler may, and its caller has one end", function()
    for _, method in ipairs { "raw", "own", "copy" } do
      each(function(way, size)
        start(function() close(server, way) end)
        local text = cases.bytes(size)
        local called = proxy:with { capacity = size }
        local got, err = called[method](called, text)
        if way == "proxy" then
          assert.is_true(got == text)
          others_go_on(way, text)
        else
          assert.is_nil(got)
          assert.equal("peer_lost", err.kind)
        end
      end)
    end
  end)

  it("as a landing may, and what it gave is abandoned once", function()
    each(function(way, size)
      start(function() close(server, way) end)
      local slice = cases.alloc(client.engine, size):slice()
      local got, err = proxy:put(slice)
      if way == "proxy" then
        assert.equal("stored", got)
        assert.equal(0, abandoned)
      else
        assert.is_nil(got)
        assert.equal("peer_lost", err.kind)
        assert.equal(1, abandoned)
      end
    end)
  end)

  it("and has closed its engine keeps a name free for the next", function()
    start(function() close(server, "agent") end)
    assert.is_nil((proxy:raw("x")))
    local next_one = assert(cases.agent("worker"))
    next_one:serve { name = "x", methods = { raw = { raw = true,
      function() return "the next" end } } }
    local other = assert(assert(cases.agent()):proxy("worker", "x"))
    assert.equal("the next", other:raw("x"))
  end)

  it("ends what is pending when it closes its agent", function()
    local pending
    start(function() close(server, "agent") end)
    client:serve { name = "slow", methods = {
      sleep = function() perigee.sleep(60) end } }
    local slow = assert(server:proxy(client.name, "slow"))
    pending = slow.async:sleep()
    assert.is_nil((proxy:raw("x")))
    local _, err = pending:wait(5)
    assert.equal("closed", err.kind)
    assert.is_true(pending:done())
  end)
end)
