-- SPDX-License-Identifier: Apache-2.0
-- Waits with a limit keep it while a long transfer of their own runs, and other
-- work goes on meanwhile. The specs count how often a wait ends while the
-- transfer is under way: a wait that does not keep its limit ends with the
-- transfer.
local cases = require "spec.support.cases"
local native = require "perigee.native"
local perigee = require "perigee"
local process = require "spec.support.process"

local LENGTH, OFTEN = 2 ^ 29, 2

local function server(child, _, ffi_, length)
  local agent = assert(child.cases.agent("worker"))
  local region = child.cases.alloc(agent.engine, tonumber(length),
                                   { name = "big", access = "r" })
  if child.cases.memory == "host" then
    ffi_.fill(region:slice(0, tonumber(length)).pointer, tonumber(length), 7)
  end
  agent:serve { name = "e", version = 1,
                methods = { same = function(x) return x end } }
  child.say("ready")
  require("perigee").run()
  agent:close()
end

describe("beside a long transfer of its own", function()
  if os.getenv "PERIGEE_TRANSPORT" == "verbs" then
    return pending("a device copies; soft-RoCE does so in the kernel, which "
      .. "has the processor meanwhile")
  end
  local agent, proxy, session, to, remote

  setup(function()
    process.start(server, LENGTH):expect("ready")
    agent = assert(cases.agent())
    proxy = assert(agent:proxy("worker", "e"))
    session = assert(agent:session("worker"))
    to = cases.alloc(agent.engine, LENGTH)
    remote = assert(session:region("big"))
  end)
  teardown(cases.cleanup)

  local function read()
    return session:read { from = remote:slice(0, LENGTH),
                          to = to:slice(0, LENGTH) }
  end

  -- How often f returns before a read has ended, as the read's event tells.
  local function count(f)
    local future, n = read(), 0
    repeat
      f(future)
      if future:wait(0) then break end
      n = n + 1
    until n == OFTEN
    assert.is_true(future:wait(60 * cases.slow))
    return n
  end

  it("future:wait returns when its time is over", function()
    assert.equal(OFTEN, count(function(future)
      local got, err = future:wait(0.001)
      assert.is_true(got or err.kind == "timeout")
    end))
  end)

  it("a wait for something else returns when its time is over", function()
    local other = session:recv_imm()
    assert.equal(OFTEN, count(function() other:wait(0.001) end))
    other:cancel()
  end)

  it("sleep returns", function()
    assert.equal(OFTEN, count(function() perigee.sleep(0.001) end))
  end)

  it("tasks run when they are due", function()
    local ran = 0
    local task = perigee.spawn(function()
      while ran < 1000 do
        perigee.sleep(0.001)
        ran = ran + 1
      end
    end)
    assert.is_true(read():wait(60 * cases.slow))
    assert.is_true(ran >= OFTEN, ran)
    task:cancel()
  end)

  it("calls of the same session are answered", function()
    local n = 0
    assert.equal(OFTEN, count(function()
      n = n + 1
      assert.equal(n, proxy:same(n))
    end))
  end)

  it("perigee_wait returns when its time is over", function()
    local handles = native.engines_t(1, { agent.engine.handle })
    local ended = {}
    assert.equal(OFTEN, count(function()
      ended[#ended + 1] = native.C.perigee_wait(handles, 1, 1e6)
    end))
    for _, status in ipairs(ended) do assert.is_true(status >= 0) end
  end)

  it("so do two engines in one program, of which one is busy", function()
    local idle = cases.engine()
    local handles = native.engines_t(2, { idle.handle, agent.engine.handle })
    assert.equal(OFTEN, count(function()
      native.C.perigee_wait(handles, 2, 1e6)
    end))
  end)

  it("all bytes are right", function()
    assert.is_true(read():wait(60 * cases.slow))
    if cases.memory == "host" then
      local bytes = to:slice(0, LENGTH).pointer
      for at = 0, LENGTH - 1, 65521 do assert.equal(7, bytes[at]) end
      assert.equal(7, bytes[LENGTH - 1])
    end
  end)
end)
