-- SPDX-License-Identifier: Apache-2.0
-- Memory of other agents by their names: Agent:read and Agent:write.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 20 * cases.slow

local function server(child, _, _, fill)
  local agent
  repeat agent = child.cases.agent("worker") until agent
  local function make()
    local kv = child.cases.alloc(agent.engine, 65536,
                                 { name = "kv", access = "rw" })
    kv:slice(0, 65536):fill(tonumber(fill))
    child.cases.alloc(agent.engine, 64, { name = "mute" .. fill })
    return kv
  end
  local kv = make()
  child.say("ready")
  for line in child.attend do
    if line == "again" then
      assert(kv:close(10))
      fill = fill + 1
      kv = make()
    elseif line == "hang up" then
      for _, session in pairs(agent.engine.sessions) do session:close() end
    end
    child.say("done")
  end
end

describe("memory of an agent, by its name,", function()
  local child, agent, region, mine

  local pump = cases.pump

  local function start(fill)
    child = process.start(server, fill):expect("ready", LONG, pump)
  end

  local function tell(line)
    child:tell(line)
    child:expect("done", LONG, pump)
  end

  before_each(function()
    start(1)
    agent = assert(cases.agent())
    region = cases.alloc(agent.engine, 65536)
    mine = region:slice(0, 4096)
  end)
  after_each(cases.cleanup)

  local function read(at, spec)
    local all = { from = "kv", at = at, to = mine, timeout = 20 * cases.slow }
    for key, value in pairs(spec or {}) do all[key] = value end
    return agent:read("worker", all)
  end

  local function fails(kind, future)
    local got, err = future:wait(LONG)
    assert.is_nil(got)
    assert.equal(kind, err.kind, tostring(err))
    assert.matches("worker", tostring(err))
  end

  it("is read and written", function()
    assert.is_true(read(0):wait(LONG))
    assert.equal(1, cases.byte(mine, 4095))
    mine:fill(9)
    assert.is_true(agent:write("worker", { to = "kv", at = 8192, from = mine })
      :wait(LONG))
    mine:fill(0)
    assert.is_true(read(8192):wait(LONG))
    assert.equal(9, cases.byte(mine, 0))
    assert.is_true(agent:read("worker", { from = "kv", to = mine }):wait(LONG))
    assert.equal(1, cases.byte(mine, 0))
    assert.equal(1, agent.engine:stats().sessions)
  end)

  it("may be asked for many times before it is found", function()
    local futures = {}
    for i = 1, 20 do futures[i] = read(64 * i) end
    assert.is_true(perigee.wait_all(futures, LONG))
    assert.equal(1, agent.engine:stats().sessions)
  end)

  it("is there only where its owner grants it", function()
    fails("range", read(65536 - 4095))
    fails("not_found", read(0, { from = "none" }))
    fails("denied", read(0, { from = "mute1", to = region:slice(0, 8) }))
    assert.is_true(read(0):wait(LONG))
    fails("range", read(2 ^ 40))
    local none, err = agent:read("nobody", { from = "kv", to = mine }):wait(5)
    assert.is_nil(none)
    assert.equal("not_found", err.kind)
    for _, spec in ipairs { {}, { from = "kv" }, { to = mine },
                            { from = "kv", to = "kv" }, { from = mine,
                            to = mine }, { from = "kv", to = mine, at = -1 },
                            { from = "kv", to = mine, offset = 1 } } do
      local fine, why = pcall(agent.read, agent, "worker", spec)
      assert.is_false(fine)
      assert.matches("agent:read", why)
    end
    assert.is_false(pcall(agent.write, agent, "worker", nil))
  end)

  it("is stale once when its owner is in another life, and then found anew",
     function()
    assert.is_true(read(0):wait(LONG))
    local session = assert(agent:session "worker")
    child:kill()
    session:ended():wait(LONG)
    local waiting = read(0, { timeout = 60 })
    start(2)
    local got, err = waiting:wait(60)
    if err and err.kind == "peer_lost" then -- it took longer to come back
      got, err = read(0):wait(LONG)
    end
    assert.is_nil(got)
    assert.equal("stale", err.kind, tostring(err))
    assert.is_true(read(0):wait(LONG))
    assert.equal(2, cases.byte(mine, 0))
  end)

  it("is stale once when its owner has closed it, and then found anew",
     function()
    assert.is_true(read(0):wait(LONG))
    tell "again"
    fails("stale", read(0))
    assert.is_true(read(0):wait(LONG))
    assert.equal(2, cases.byte(mine, 0))
  end)

  it("is the same after the connection alone was lost", function()
    assert.is_true(read(0):wait(LONG))
    local session = assert(agent:session "worker")
    tell "hang up"
    session:ended():wait(LONG)
    assert.is_true(read(0):wait(LONG))
    assert.is_not.equal(session, (agent:session "worker"))
  end)

  it("is nobody's any more when the agent is closed", function()
    assert.is_true(read(0):wait(LONG))
    child:signal "STOP"
    local waiting = agent:read("worker", { from = "other", to = mine })
    agent:close()
    local got, err = waiting:wait(LONG)
    assert.is_nil(got)
    assert.equal("closed", err.kind, tostring(err))
    child:signal "CONT"
  end)
end)
