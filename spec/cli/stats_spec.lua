-- SPDX-License-Identifier: Apache-2.0
-- `perigee stats`, `sessions` and `autopsy` of agents that live, are busy,
-- stopped or were killed, as somebody sees them who asks none of these.
local cjson = require "cjson"
local command = require "spec.support.command"
local process = require "spec.support.process"
local units = require "perigee.runtime.units"

-- An agent that serves and calls itself: 300 calls of add, 3 that fail, one
-- that does not end. Then it does what it was told by its name.
local WORKER = [[
local perigee = require "perigee"
local name, fate = ...
local agent = assert(perigee.agent { name = name })
agent:serve { name = "calc", methods = {
  add = function(a, b) return a + b end,
  fail = function() error("told to", 0) end,
  never = function() perigee.sleep(3600) end,
} }
local caller = assert(perigee.agent { name = name .. ":caller" })
local calc = assert(caller:proxy(name, "calc"))
for i = 1, 300 do assert(calc:add(i, 1)) end
for i = 1, 3 do calc:fail() end
local future = calc.async:never()
perigee.sleep(0.05)
print "ready"
io.stdout:flush()
while fate == "busy" do end
perigee.run()
agent:close()
caller:close()
]]

local function start(name, fate)
  return command.run_script("worker.lua", WORKER, name, fate or "waits")
end

local function told(what, ...)
  local status, text, errors = command.run(what, ...)
  assert.equal(0, status, errors)
  return text, errors
end

local function document(...) return cjson.decode((told(...))) end

local function method(all, whose, name)
  for _, each in ipairs(all.methods) do
    if each.whose == whose and each.method == name then return each end
  end
  error("no method " .. name)
end

local function files()
  local pipe = io.popen(("find '%s' -name '*.stats*'"):format(command.folder()))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

after_each(command.clean)

describe("a command that reads stats files", function()
  it("refuses a registry that is none, and reads no folder in its place",
     function()
    for _, line in ipairs { "top --once", "stats a", "sessions a", "autopsy a",
                            "health a", "log a", "nics", "trace", "metrics" } do
      local status, text, errors = command.shell("perigee " .. line
        .. " --registry bogus://")
      assert.equal(2, status, line)
      assert.equal("", text)
      assert.matches("^perigee %w+: %-%-registry must be a registry, by its "
        .. "address: folder:/PATH, [^\n]+\n$", errors)
    end
    local status, _, errors = command.shell(
      "PERIGEE_REGISTRY=nonsense " .. command.path .. " top --once")
    assert.equal(2, status)
    assert.matches("^perigee top: the environment's PERIGEE_REGISTRY must be ",
                   errors)
  end)

  it("refuses a scope that is none, and reads no folder in its place",
     function()
    for _, line in ipairs { "stats a", "sessions a", "autopsy a", "health a",
                            "log a debug", "trace" } do
      for _, scope in ipairs { "../..", "''", ".hidden" } do
        local status, text, errors = command.shell(("perigee %s --scope %s")
          :format(line, scope))
        assert.equal(2, status, line)
        assert.equal("", text)
        assert.matches("^perigee %w+: %-%-scope must be 1 to 64 of letters, "
          .. "digits and . _ : %- without a leading dot[^\n]*\n$", errors)
      end
    end
    local status, _, errors = command.shell(
      "PERIGEE_SCOPE=../x " .. command.path .. " stats a")
    assert.equal(2, status)
    assert.matches("^perigee stats: the environment's PERIGEE_SCOPE must be ",
                   errors)
  end)

  it("tells of an output that cannot be written", function()
    local worker = start "a"
    for _, what in ipairs { "stats a", "sessions a", "autopsy a", "doctor" } do
      local status, _, errors = command.shell("perigee " .. what
        .. " >/dev/full")
      assert.equal(1, status, what)
      assert.matches("^perigee %w+: writing the output: No space left on "
        .. "device\n$", errors)
    end
    worker:kill()
  end)
end)

describe("an agent's stats", function()
  it("have its methods, sessions and counters", function()
    local worker = start "a"
    local all = document("stats", "a", "--json")
    assert.equal("asleep", all.state)
    assert.equal(300, method(all, "own", "add").calls)
    assert.equal(3, method(all, "own", "fail").ends.remote)
    assert.equal(1, #all.sessions)
    assert.equal("a:caller", all.sessions[1].peer)
    local caller = document("stats", "a:caller", "--json")
    local add = method(caller, "peer", "add")
    assert.equal(300, add.calls)
    assert.is_true(add.p50 > 0 and add.p50 <= add.p99)
    assert.equal(all.sessions[1].counters.bytes_received,
                 caller.sessions[1].counters.bytes_sent)
    local sum = 0
    for _, each in ipairs(caller.methods) do sum = sum + each.calls end
    assert.equal(caller.counters.replies, sum)
    local text = told("stats", "a:caller")
    assert.matches("\npeer +calc%.add +300 +0 ", text)
    assert.matches("\npeer +calc%.fail +3 +3 ", text)
    assert.matches("\n1 +a +shm +open ", text)
    worker:signal "TERM"
    worker:wait(30 * process.slow)
    assert.equal("", files())
  end)

  it("tell who stopped, who is busy and who is dead", function()
    local worker = start("a", "busy")
    local pid = document("stats", "a", "--json").pid
    local function signal(name)
      os.execute(("kill -%s %d"):format(name, pid))
    end
    assert.is_true(command.eventually(function()
      return document("stats", "a", "--json").state == "busy"
    end))
    signal "STOP"
    assert.is_true(command.eventually(function()
      return document("stats", "a", "--json").state == "stopped"
    end))
    signal "KILL"
    worker:wait(30 * process.slow)
    assert.equal("dead", document("stats", "a", "--json").state)
    assert.matches("^a in scope cli: dead\n", (told("stats", "a")))
  end)

  it("are missed with a sentence", function()
    local status, _, errors = command.run("stats", "nobody")
    assert.equal(1, status)
    assert.matches("^perigee stats: nobody has no stats here: [^\n]+\n$",
                   errors)
  end)

  it("are not read from a file that is none", function()
    local worker = start "a"
    local path = files():match "[^\n]*/a%.stats\n":sub(1, -2)
    for _, text in ipairs { "", "x", ("x"):rep(10000), "perigee\1" .. ("\255")
                            :rep(5000) } do
      local file = assert(io.open(path .. ".last", "wb"))
      file:write(text)
      file:close()
      local status, _, errors = command.run("stats", "a", "--last")
      assert.equal(1, status)
      assert.matches("no stats here", errors)
    end
    worker:kill()
  end)
end)

describe("an agent's sessions", function()
  it("are told with what each counts, and the ended ones with why", function()
    local worker = start "a"
    assert.equal(0, (command.run("ping", "a", "-c", "2")))
    local function all() return document("sessions", "a", "--json").sessions end
    assert.is_true(command.eventually(function()
      local list = all()
      return list[2] and list[2].ended ~= nil
    end))
    local list = all()
    assert.equal(2, #list)
    assert.equal("a:caller", list[1].peer)
    assert.equal("shm", list[1].transport)
    assert.equal(305, list[1].counters.served)  -- with the description
    assert.is_true(#list[2].reason > 0)
    local text = told("sessions", "a")
    assert.matches("\n1 +a:caller +shm +open +%S+ %l+ +%d+ +305 ", text)
    local ended = text:match "\nended\n(.*)$"
    assert.matches("^id [^\n]+ status +reason\n2 ", ended)
    assert.matches((" %s +%s\n$"):format(list[2].status, list[2].reason), ended)
    assert.equal("the peer closed the session", list[2].reason)
    text = told("autopsy", "a")
    local lost = "lost +- +" .. list[2].peer
    assert.matches((lost:gsub("-", "%%-")), text)
    assert.is_nil(text:match("\nthe last failures among them\n.*"
      .. lost:gsub("-", "%%-")))
    worker:signal "TERM"
    worker:wait(30 * process.slow)
  end)

  it("may be none", function()
    local worker = command.run_script("alone.lua", [[
local perigee = require "perigee"
local agent = assert(perigee.agent { name = "alone" })
print "ready"
io.stdout:flush()
perigee.run()
agent:close()
]])
    assert.equal(0, #document("sessions", "alone", "--json").sessions)
    assert.matches("%[%]", (told("sessions", "alone", "--json")))
    assert.matches("\nno session is open\n$", (told("sessions", "alone")))
    assert.matches('"under_way":%s*%[%]', (told("stats", "alone", "--json")))
    worker:kill()
  end)
end)

describe("an autopsy of an agent that was killed", function()
  it("has what was under way and its last events", function()
    start("a"):kill()
    local all = document("autopsy", "a:caller", "--json")
    assert.equal("dead", all.state)
    assert.equal(1, #all.under_way)
    assert.equal("never", all.under_way[1].method)
    local last = all.events[#all.events]
    assert.equal("reply", last.kind)
    assert.equal("fail", last.method)
    assert.equal("remote", last.status)
    local text = told("autopsy", "a:caller", "-n", "4")
    assert.matches("\ncall +calc%.never +a +%d", text)
    assert.matches("\nthe last 4 events\n", text)
    assert.matches("reply +calc%.fail +a +remote", text)
    local lived = (all.looked - all.sessions[1].opened) / 1e9
    for _, what in ipairs { "autopsy", "stats", "sessions" } do
      assert.matches("\n1 +a +shm +open +" .. units.format_time(lived) .. " ",
                     (told(what, "a:caller")))
    end
  end)

  it("is that of the last life of a name, when the next has begun", function()
    start("a"):kill()
    local dead = document("autopsy", "a", "--json")
    local worker = start "a"
    local again = document("autopsy", "a", "--json", "--last")
    assert.equal(dead.pid, again.pid)
    assert.not_equal(dead.pid, document("autopsy", "a", "--json").pid)
    worker:signal "TERM"
    worker:wait(30 * process.slow)
    assert.equal("", files())           -- with the last name of its scope
  end)
end)
