-- SPDX-License-Identifier: Apache-2.0
-- `perigee health`, as a probe runs it, of agents that live, do not poll, are
-- stopped or were killed.
local cjson = require "cjson"
local command = require "spec.support.command"
local process = require "spec.support.process"

-- An agent that waits for calls, or computes and never polls. Its engine may
-- have a thread, which polls in its place.
local WORKER = [[
local perigee = require "perigee"
local fate, progress = ...
local agent = assert(perigee.agent { name = "a", progress = progress })
print "ready"
io.stdout:flush()
while fate == "busy" do end
perigee.run()
agent:close()
]]

local function start(fate, progress)
  return command.run_script("worker.lua", WORKER, fate, progress or "poll")
end

local function health(...) return command.run("health", "a", ...) end

local function document(...)
  local status, text, errors = health("--json", ...)
  return status, cjson.decode(text), errors
end

-- Signals the agent itself; its parent starts ranks.
local function signal(name)
  local _, all = document()
  os.execute(("kill -%s %d"):format(name, all.pid))
end

after_each(command.clean)

describe("the health of an agent", function()
  it("is good while it waits for events", function()
    local worker = start "waits"
    local status, text, errors = health()
    assert.equal(0, status, errors)
    assert.matches("^a waits for events %(process %d+%)\n$", text)
    assert.equal("", errors)
    local all
    status, all = document()
    assert.equal(0, status)
    assert.same({ "asleep", true, 0 }, { all.state, all.healthy, all.busy })
    worker:signal "TERM"
    worker:wait(30 * process.slow)
    status, text, errors = health()             -- it has ended in order
    assert.equal(1, status)
    assert.equal("", text)
    assert.matches("^perigee health: a has no stats here: [^\n]+\n$", errors)
    status, all = document()
    assert.equal(1, status)
    assert.is_false(all.healthy)
  end)

  for _, progress in ipairs { "poll", "thread" } do
    it("is bad if its program does not poll for too long, with progress = "
       .. progress, function()
      start("busy", progress)
      assert.is_true(command.eventually(function()
        return health("--busy", "100ms") == 1
      end))
      local status, text, errors = health("--busy", "100ms")
      assert.equal(1, status)
      assert.equal("", text)
      assert.matches("^perigee health: a has not polled for [%d.]+ m?s, and "
        .. "may take 100 ms %(process %d+%)\n$", errors)
      assert.equal(0, (health("--busy", "1h")))
    end)
  end

  it("is bad if it is stopped, and then if it was killed", function()
    local worker = start "waits"
    signal "STOP"
    local status, all, errors
    assert.is_true(command.eventually(function() return health() == 1 end))
    status, all, errors = document()
    assert.equal(1, status)
    assert.same({ "stopped", false }, { all.state, all.healthy })
    assert.matches("^perigee health: a is stopped, by a signal or a debugger "
      .. "%(process %d+%)\n$", errors)
    assert.equal(errors, "perigee health: " .. all.why .. "\n")
    signal "KILL"
    worker:wait(30 * process.slow)
    status, all, errors = document()
    assert.equal(1, status)
    assert.same({ "dead", false }, { all.state, all.healthy })
    assert.matches("^perigee health: a is dead: process %d+ has ended\n$",
                   errors)
  end)

  it("is told at once where a pipe has the name of a stats file", function()
    local folder = command.folder() .. "/perigee/cli"
    os.execute(("mkdir -p -m 700 '%s'"):format(folder:match "^(.*)/"))
    os.execute(("mkdir -m 700 '%s'"):format(folder))
    os.execute(("mkfifo '%s/b.stats'"):format(folder))
    io.open(folder .. "/b.lock", "wb"):close()
    for _, name in ipairs { "a", "b" } do       -- a is looked for in all files
      local status, _, errors = command.run("health", name)
      assert.equal(1, status)
      assert.matches("^perigee health: " .. name .. " has no stats here: "
        .. "[^\n]+\n$", errors)
    end
  end)

  it("is misuse of what is no name, and no time", function()
    for _, words in ipairs { { "../a" }, { "tcp://127.0.0.1:1" }, { "a",
                               "--busy", "0" }, { "a", "--busy", "soon" } } do
      local status, text, errors = command.run("health", unpack(words))
      assert.equal(2, status)
      assert.equal("", text)
      assert.matches("^perigee health: [^\n]+\n$", errors)
    end
  end)
end)
