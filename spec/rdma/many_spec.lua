-- SPDX-License-Identifier: Apache-2.0
-- Many sessions and many peers: all of them work at once, none finds its
-- receiver not ready, and nothing is left when they end. PERIGEE_SOAK is the
-- length of the soak in seconds.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

local SOAK = tonumber(os.getenv("PERIGEE_SOAK")) or 5
local SESSIONS, PEERS = 64, 4

describe("64 sessions of one engine", function()
  local sides, why = weather.anywhere "depth=32"
  if not sides then return pending(why) end
  after_each(cases.cleanup)

  it("call, write and read at once, and end cleanly", function()
    local child = weather.worker(sides, weather.services)
    local agent = weather.agent(sides.near)
    assert(agent:proxy("worker", "x", { timeout = 60 }))
    local address = agent:session("worker"):explain().address
    local options = weather.options(sides.near)
    options.sessions = SESSIONS
    local engine = cases.engine(options)
    local here, sessions, futures = engine:alloc(SESSIONS * 8192), {}, {}
    for i = 1, SESSIONS do
      sessions[i] = assert(engine:connect(address,
        { transport = "verbs", timeout = 30 }))
    end
    assert.equal(SESSIONS, engine:stats().sessions)
    for i, session in ipairs(sessions) do
      local proxy = assert(session:proxy("x", { timeout = 60 }))
      local at = (i - 1) * 8192
      local remote = assert(session:region("m"))
      futures[#futures + 1] = proxy.async:same(i)
      futures[#futures + 1] = proxy.async:put(here:slice(at, 8192):fill(i), i)
      futures[#futures + 1] = session:write { from = here:slice(at, 8192),
                                              to = remote:slice(at, 8192) }
    end
    for i = 1, SESSIONS do
      assert.equal(i, weather.well(futures[3 * i - 2]))
      assert.equal(8192, weather.well(futures[3 * i - 1]))
      weather.well(futures[3 * i])
    end
    here:slice(0, SESSIONS * 8192):fill(0)
    for i, session in ipairs(sessions) do
      local at = (i - 1) * 8192
      weather.well(session:read {
        from = session.remotes.m:slice(at, 8192), to = here:slice(at, 8192) })
      assert.is_true(here:slice(at, 8192):string()
        == string.char(i):rep(8192))
    end
    local none, err = engine:connect(address, { transport = "verbs" })
    assert.is_nil(none)
    assert.equal("no_memory", err.kind)
    assert.matches("all 64 sessions are in use", tostring(err))
    for _, session in ipairs(sessions) do session:close() end
    assert.is_true(cases.eventually(function()
      return engine:stats().sessions == 0
    end, 20))
    assert.equal(0, engine:stats().operations)
    weather.well(assert(agent:proxy("worker", "x")).async:same(1))
    child:kill()
  end)
end)

-- Serves as "peerN": the methods return what they get.
local function peer(child, perigee_, _, rdma, name)
  local agent = assert(child.cases.agent(name,
    { transport = "verbs", engine = { rdma = rdma, hello_timeout = 90 } }))
  agent.engine:alloc(2 ^ 20, { name = "m", access = "rw" })
  agent:serve { name = "x", version = 1, methods = {
    same = function(x) return x end,
    echo = { raw = true, function(request) return request end },
  } }
  child.say("ready")
  perigee_.run()
  agent:close()
end

describe("a soak of many peers", function()
  local sides, why = weather.anywhere "qps=2 stripe=16K"
  if not sides then return pending(why) end
  after_each(cases.cleanup)

  it("never finds a receiver not ready", function()
    local monitor, lacking = perigee.RnrMonitor {}
    if not monitor then return pending(tostring(lacking)) end
    local agent, calls = weather.agent(sides.near), 0
    local tasks, ends = {}, nil
    local function busy(i)
      local proxy = assert(agent:proxy("peer" .. i, "x", { timeout = 60 }))
      local session = assert(agent:session("peer" .. i))
      local remote = assert(session:region("m"))
      local here = agent.engine:alloc(2 ^ 17):slice(0, 2 ^ 17)
      local round = 0
      while process.now() < ends do
        round = round + 1
        local text = cases.bytes(round * 977 % 20000, i)
        local futures = { proxy.async:echo(text) }
        for k = 1, 10 do futures[k + 1] = proxy.async:same(k) end
        here:fill(round % 251)
        local write = session:write { from = here,
                                      to = remote:slice(0, 2 ^ 17) }
        assert(weather.well(futures[1]) == text)
        for k = 1, 10 do assert(weather.well(futures[k + 1]) == k) end
        weather.well(write)
        calls = calls + 11
      end
      return round
    end
    for i = 1, PEERS do process.start(peer, sides.far, "peer" .. i) end
    for child in pairs(process.all) do child:expect("ready", 30) end
    monitor:snapshot()
    ends = process.now() + SOAK
    for i = 1, PEERS do
      tasks[i] = perigee.spawn(function() return busy(i) end)
    end
    while process.now() < ends do
      perigee.sleep(0.2)
      assert.equal(0, assert(monitor:total_delta()))
    end
    for i = 1, PEERS do assert.is_true(weather.well(tasks[i]) > 0) end
    perigee.sleep(0.05) -- the kernel's values are some ms old
    assert.equal(0, assert(monitor:total_delta()))
    assert.is_true(calls > 0)
  end)
end)
