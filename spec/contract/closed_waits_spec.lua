-- SPDX-License-Identifier: Apache-2.0
-- Every wait of an agent ends when the agent or its engine is closed.
local cases = require "spec.support.cases"
local perigee = require "perigee"

local LONG = 1000                       -- seconds, which none may take

describe("a wait", function()
  local server, agent, proxy, session, slice, listener

  before_each(function()
    server, agent = assert(cases.agent("worker")), assert(cases.agent())
    local function sleep() perigee.sleep(LONG) end
    server:serve { name = "x", methods = {
      sleep = sleep, again = { idempotent = true, sleep } } }
    proxy = assert(agent:proxy("worker", "x", { timeout = LONG }))
    session = perigee.session(proxy)
    slice = cases.alloc(agent.engine, 4096):slice()
    listener = assert(agent.engine:listen(cases.address("waits")))
  end)
  after_each(cases.cleanup)

  local waits = {
    ["of a call"] = function() return proxy:sleep() end,
    ["of an async call"] = function() return proxy.async:sleep():wait() end,
    ["of an idempotent call"] = function() return proxy:again() end,
    ["of an async idempotent call"] = function()
      return proxy.async:again():wait()
    end,
    ["of a receive"] = function()
      return session:recv(slice, { timeout = math.huge }):wait()
    end,
    ["of an immediate"] = function() return session:recv_imm():wait() end,
    ["of a session's end"] = function() return session:ended():wait() end,
    ["of a kept session's end"] = function()
      return assert(agent:session("worker", { keep = true })):ended():wait()
    end,
    ["of a kept session's receive"] = function()
      local kept = assert(agent:session("worker", { keep = true }))
      return kept:recv(slice, { timeout = LONG }):wait()
    end,
    ["of accept"] = function() return listener:accept() end,
    ["of serve_once"] = function() return agent:serve_once() end,
    ["of two serve_once"] = function()
      perigee.spawn(agent.serve_once, agent, LONG)
      return agent:serve_once(LONG)
    end,
    ["of a rendezvous"] = function()
      return agent:rendezvous("key", 2, LONG)
    end,
    ["of a mesh"] = function() return agent:mesh({ "absent" }, LONG) end,
  }

  for name, wait in pairs(waits) do
    for _, way in ipairs { "agent", "engine" } do
      it(name .. " ends when its " .. way .. " is closed", function()
        local task = perigee.spawn(wait)
        perigee.sleep(0.05)
        assert.is_false(task:done())
        local closed = way == "agent" and agent or agent.engine
        closed:close()
        local got, err = task:wait(10 * cases.slow)
        assert.is_true(task:done())
        assert.is_nil(got)
        assert.equal("closed", err.kind, tostring(err))
      end)
    end
  end

  it("of accept that a stop has dropped takes no session", function()
    perigee.run(function()
      perigee.spawn(function() listener:accept() end)
      perigee.sleep(0.01)
      perigee.stop()
    end)
    local dialled = perigee.spawn(function()
      return assert(server.engine:connect(listener.address))
    end)
    assert(listener:accept(10 * cases.slow))
    assert(dialled:wait())
  end)
end)
