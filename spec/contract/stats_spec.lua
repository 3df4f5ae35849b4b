-- SPDX-License-Identifier: Apache-2.0
-- Thousands of calls of all kinds and with all ends, some of them at once: an
-- agent's stats file has each of them once, on both sides.
local cases = require "spec.support.cases"
local host = require "perigee.stats.host"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_, _, name, progress)
  local agent = child.cases.agent(name, { progress = progress })
  agent:serve { name = "s", methods = {
    add = function(a, b) return a + b end,
    echo = { raw = true, inplace = true, function(request, reply)
      return reply:write(request)
    end },
    fail = function() error("told to", 0) end,
    hang = function() perigee_.sleep(60) end,
  } }
  child.say "ready"
  perigee_.run()
end

local function stats_of(agent, name)
  return assert(host.read(os.getenv "PERIGEE_REGISTRY", agent.scope, name))
end

-- Calls by method and end, of own calls ("peer") or served ones ("own").
local function ends_of(told, whose)
  local all, sum = {}, 0
  for _, each in ipairs(told.methods) do
    if each.whose == whose and each.service == "s" then
      all[each.method] = each
    end
    if each.whose == whose then sum = sum + each.calls end
  end
  return all, sum
end

-- Makes n calls, eight of them at a time, of which one in ten fails and one in
-- 250 is cancelled. Returns how many of each.
local function make_calls(proxy, n)
  local made, async = { add = 0, echo = 0, fail = 0, hang = 0 }, proxy.async
  local pending = {}
  for i = 1, n do
    local one = pending[i % 8]
    if one then one:wait() end
    local method = i % 10 == 3 and "fail" or i % 250 == 0 and "hang"
      or i % 3 == 0 and "echo" or "add"
    if method == "echo" then
      pending[i % 8] = async:echo(("x"):rep(i % 300))
    elseif method == "hang" then
      pending[i % 8] = async:hang()
      perigee.sleep(0.001)
      pending[i % 8]:cancel()
    else
      pending[i % 8] = async[method](async, i, 1)
    end
    made[method] = made[method] + 1
  end
  for _, one in pairs(pending) do one:wait() end
  return made
end
jit.off(make_calls)                -- its loop over pairs(), see check.lua

describe("an agent's stats", function()
  after_each(cases.cleanup)

  it("tell who dialed a session, and why it is over nothing better", function()
    local one, two = assert(cases.agent()), assert(cases.agent())
    local session = assert(one:session(two.name))
    local told = session:explain()
    local is_best = told.transport == "shm"
    local ends = { stats_of(one, one.name).sessions[1] }
    cases.eventually(function()
      ends[2] = stats_of(two, two.name).sessions[1]
      return ends[2]
    end)
    for i, each in ipairs(ends) do
      assert.equal(i == 1, each.dialed)
      assert.equal(told.transport, each.transport)
      assert.equal(is_best, each.not_better == "", each.not_better)
    end
    if told.transport == "tcp" then     -- the listener has asked for nothing
      assert.equal("not shm (another transport was asked for), not verbs "
        .. "(another transport was asked for)", ends[1].not_better)
      assert.matches("^not shm %(the peer does not offer it%), ",
                     ends[2].not_better)
    end
    assert.equal(told.epoch, ends[1].epoch)
  end)

  for _, progress in ipairs { "poll", "thread" } do
    it("have each call once, with progress = " .. progress, function()
      local name = "counted-" .. progress
      process.start(server, name, progress):expect "ready"
      local agent = assert(cases.agent("caller-" .. progress,
                                       { progress = progress }))
      local made = make_calls(assert(agent:proxy(name, "s")), 5000)
      assert(agent:proxy(name, "s")):add(1, 1)  -- all before is counted
      local own = ends_of(stats_of(agent, agent.name), "peer")
      assert.equal(made.fail, own.fail.ends.remote)
      assert.equal(made.hang, own.hang.ends.cancelled)
      assert.equal(made.echo, own.echo.calls - own.echo.failures)
      local served
      cases.await(function()
        local told = stats_of(agent, name)
        local sum
        served, sum = ends_of(told, "own")
        return sum <= told.counters.served and served.add.calls > made.add
      end)
      assert.equal(made.add + 1, served.add.calls)
      assert.equal(made.echo, served.echo.calls)
      assert.equal(made.fail, served.fail.ends.remote)
    end)
  end
end)
