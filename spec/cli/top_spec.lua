-- SPDX-License-Identifier: Apache-2.0
-- `perigee top` in terminals of several sizes, and where there is none, over
-- agents that call each other, are stopped and killed.
local cjson = require "cjson"
local command = require "spec.support.command"
local terminals = require "spec.support.terminal"

-- Two agents in a process: "b" calls "a" some hundred times a second, each
-- time with 1000 bytes, and every tenth call fails; or it does not, if the
-- process is told to be idle.
local WORKER = [[
local perigee = require "perigee"
local a, b, fate = ...
perigee.log = function() end
local agent = assert(perigee.agent { name = a })
agent:serve { name = "calc", methods = {
  add = function(text) return #text end,
  fail = function() error("told to", 0) end,
} }
local caller = assert(perigee.agent { name = b })
local calc = assert(caller:proxy(a, "calc"))
print "ready"
io.stdout:flush()
perigee.run(function()
  while fate ~= "idle" do
    perigee.sleep(0.01)
    for _ = 1, 9 do assert(calc:add(("x"):rep(1000))) end
    calc:fail()
  end
  perigee.sleep(3600)
end)
]]

local function start(a, b, fate)
  return command.run_script("worker.lua", WORKER, a, b, fate)
end

-- `perigee top` in a terminal. environment: words for the shell before it.
local function top(columns, rows, environment, ...)
  return terminals.start(columns, rows, { "sh", "-c",
    (environment or "") .. " TERM=xterm; export TERM; "
      .. command.line("top", "-d", "100ms", ...) })
end

-- The process of an agent.
local function pid_of(name)
  local _, text = command.run("sessions", name, "--json")
  return cjson.decode(text) and tonumber((select(2, command.run("stats", name,
    "--json"))):match '"pid":(%d+)')
end

local function ends(terminal)
  terminal:press "q"
  assert.same({ "exit", 0 }, { terminal:wait() })
end

after_each(function()
  terminals.cleanup()
  command.clean()
end)

describe("top in a terminal", function()
  it("shows who calls whom, how fast, and with which failures", function()
    start("a", "b")
    local terminal = top(80, 24)
    terminal:expect "\na +%l+ +1 shm +[%d.]+k? +[%d.]+k? "
    terminal:expect "\nb +%l+ +1 shm +[%d.]+k? +[%d.]+k? +[%d.]+us +[%d.]+us "
    local screen = terminal:screen()
    assert.matches("^perigee top  scope cli  %d%d:%d%d:%d%d  agents 2: ",
                   screen)
    assert.matches("\nNAME +STATE +SESS VIA +CALLS +ERR +P50 +P99 +OUT +IN "
                   .. "STALL +MEM +PID\n", screen)
    assert.equal(24, #terminal.lines)
    assert.matches("^q quit  h help ", terminal.lines[24])
    ends(terminal)
  end)

  it("fits in terminals of all sizes, while they change", function()
    start("a:with:a:name:of:many:characters", "b")
    local terminal = top(20, 10)
    terminal:expect "\na:w~rs %l+ +[%d.]+k?\n"
    assert.is_nil(terminal:screen():find "P99")
    for _, size in ipairs { { 200, 60 }, { 7, 3 }, { 1, 1 }, { 80, 24 } } do
      terminal:resize(size[1], size[2])
      terminal:press "h"
      terminal:press "x"
      terminal:press "\r"
      terminal:expect(size[1] > 20 and "\nPEER" or size[2] > 1 and "\n." or ".")
      terminal:press "\r"
      terminal:expect(size[1] > 20 and "\nb +%l+ " or ".")
    end
    terminal:resize(200, 60)
    terminal:expect " PROGRAM +\n"
    terminal:expect "\na:with:a:name:of:many:characters +%l+ "
    ends(terminal)
  end)

  it("tells who is stopped and who was killed", function()
    local worker = start("a", "b")
    start("c", "d", "idle")
    local terminal = top(80, 24)
    terminal:expect "\nc +asleep "
    local pid = pid_of "a"
    os.execute("kill -STOP " .. pid)
    terminal:expect "\na +stopped .*\nb +stopped "
    os.execute("kill -KILL " .. pid)
    worker:wait()
    terminal:expect "\na +dead +0 +%- +0 +0 +%- +%- +0 +0 +0 +%- "
    assert.matches("agents 4: 2 dead, 2 asleep", terminal:screen())
    assert.is_true(terminal.styles["31"])
    ends(terminal)
  end)

  it("sorts, filters and scrolls", function()
    for _, name in ipairs { "k", "m" } do start(name .. "1", name .. "2") end
    start("z1", "z2", "idle")
    local terminal = top(80, 8)         -- four agents
    terminal:expect "\nz?"
    terminal:press "n"
    terminal:expect " +PID\nk1 .*\nk2 .*\nm1 .*\nm2 .*by name$"
    terminal:press "n"
    terminal:expect " +PID\nz2 .*\nz1 .*\nm2 .*\nm1 .*by name, reversed$"
    terminal:press "\27[6~\27[B\27[B\27[B\27[B\27[B"
    terminal:expect " +PID\nm2 .*\nm1 .*\nk2 .*\nk1 "
    terminal:press "c"                  -- those that call come first
    terminal:expect " +PID\n[km][12] .*\n[km][12] .*\n[km][12] .*\n[km][12] "
    terminal:press "/Z1q"               -- a word of their programs, too
    terminal:expect "filter: Z1q_"
    terminal:press "\127\r"
    terminal:expect " +PID\nz1 [^\n]+\nz2 [^\n]+\n\n+filter: Z1 "
    terminal:press "\27"
    terminal:expect " +PID\n[km][12] "
    ends(terminal)
  end)

  it("shows an agent's methods and sessions, and goes back", function()
    local worker = start("a", "b")
    local terminal = top(80, 24)
    terminal:expect "\na +%l+ "
    terminal:press "n\r"
    terminal:expect "^cli/a  %l+  process %d+  "
    terminal:expect "\nMETHOD +WHOSE .*\ncalc%.add +own +[%d.]+k? +0 +%d"
    terminal:expect "\ncalc%.fail +own +[%d.]+k? +[%d.]+k? "
    terminal:expect "\nPEER .*\nb +open +shm "
    terminal:press "\27"
    terminal:expect "\na +%l+ .*by name$"
    terminal:press "h"
    terminal:expect "^help\nKeys that sort: c calls, "
    terminal:press " "
    terminal:expect "\na +%l+ .*by name$"
    terminal:press "\r"
    terminal:expect "^cli/a  %l+  process "
    worker:signal "TERM"
    terminal:expect "^cli/a  gone, as it was:  process "
    terminal:press "\27"
    terminal:expect "agents none"
    ends(terminal)
  end)

  it("is given back however it ends", function()
    for _, ending in ipairs { "q", "\3", "TERM", "HUP", "\4" } do
      local terminal = top(80, 24)
      terminal:expect "agents none"
      assert.is_false(terminal:is_cooked())
      assert.is_false(terminal.modes["25"])
      assert.is_true(terminal.modes["1049"])
      if #ending == 1 then
        terminal:press(ending)
      else
        os.execute(("kill -%s %d"):format(ending, terminal.pid))
      end
      local how, code = terminal:wait()
      assert.same(({ TERM = { "signal", 15 }, HUP = { "signal", 1 },
                     ["\3"] = { "signal", 2 } })[ending] or { "exit", 0 },
                  { how, code })
      assert.is_true(terminal:is_cooked())
      assert.is_true(terminal.modes["25"])
      assert.is_false(terminal.modes["1049"])
      assert.equal("", terminal.rest)
    end
  end)

  it("is given back while it is stopped, and drawn anew then", function()
    local terminal = terminals.start(80, 24, { "sh", "-mc",
      ("TERM=xterm; export TERM; (%s); echo it stopped; read word; fg"):format(
        command.line "top") })
    terminal:expect "agents none"
    terminal:press "\26"
    terminal:expect(function() return terminal.rest:find "it stopped" end)
    assert.is_true(terminal:is_cooked())
    assert.is_false(terminal.modes["1049"])
    assert.equal("", (terminal:screen():gsub("\n", "")))
    terminal:press "word\n"
    terminal:expect "agents none"
    assert.is_false(terminal:is_cooked())
    assert.is_true(terminal.modes["1049"])
    ends(terminal)
  end)

  it("is not left to a stop after which nobody could go on", function()
    local terminal = top(80, 24)        -- has no shell that has it go on
    terminal:expect "agents none"
    terminal.lines[1] = ""
    os.execute("kill -TSTP " .. terminal.pid)
    terminal:expect "agents none"
    ends(terminal)
  end)

  it("has no colours where NO_COLOR says so, but a mark", function()
    start("a", "b", "idle")
    local terminal = top(80, 24, "NO_COLOR=1; export NO_COLOR;")
    terminal:expect "\n a +asleep "
    terminal:press "n\27[B"
    terminal:expect "\n>a +asleep .*\n b +asleep "
    ends(terminal)
    assert.same({ ["0"] = true }, terminal.styles)
  end)

  it("shows texts of others as escapes, in ASCII", function()
    start("aaaaaaaa", "b"):kill()
    local path = ("%s/perigee/cli/aaaaaaaa.stats"):format(command.folder())
    local bytes = command.content(path)
    local file = assert(io.open(path, "wb"))
    file:write((bytes:gsub("aaaaaaaa", "\27[2J\n\206\177!")
      :gsub("calc", "c\226\128\174"):gsub("shm", "\155\7x")))
    file:close()
    local terminal = top(80, 24)
    terminal:expect [[
\x1b%[2~e\xb1! +dead ]]
    terminal:press "n\r"
    terminal:expect [[^cli/\x1b%[2J\n\xce\xb1!  dead ]]
    terminal:expect [[
c\xe2\x80\xae%.add +own ]]
    terminal:expect [[
b +open +\x~7x ]]
    ends(terminal)
    assert.equal("", terminal.rest)
    local _, text = command.run("top", "--once", "-d", "100ms")
    assert.matches([[\x1b%[2J\nα! +cli +dead +%d+ +0 +]], text)
  end)

  it("writes tables without any sequence where TERM is dumb", function()
    start("a", "b", "idle")
    local terminal = terminals.start(80, 24, { "sh", "-c", "TERM=dumb; "
      .. "export TERM; " .. command.line("top", "-d", "100ms") })
    assert.is_true(command.eventually(function()
      terminal:read(0.05)
      return select(2, terminal.rest:gsub("\r\na +cli +asleep ", "")) >= 2
    end))
    assert.is_nil(terminal.rest:find "\27")
  end)
end)

describe("top where there is no terminal", function()
  it("prints one table", function()
    start("a", "b")
    local status, text, errors = command.run("top", "--once", "-d", "300ms")
    assert.equal(0, status, errors)
    assert.matches("^NAME +SCOPE +STATE +PID +SESSIONS +VIA +CALLS/s ", text)
    assert.matches("\na +cli +%l+ +%d+ +1 +shm +[%d.]+ +[%d.]+ ", text)
    assert.is_nil(text:find "\27")
    assert.equal(3, select(2, text:gsub("\n", "")))
  end)

  it("prints a document, or one after each interval", function()
    start("a", "b")
    local status, text = command.run("top", "--json", "--once", "-d", "300ms")
    assert.equal(0, status)
    local a, b = unpack(cjson.decode(text).agents)
    assert.same({ "a", "cli", 1, { "shm" } },
                { a.name, a.scope, a.sessions, a.transports })
    assert.is_true(a.served > 0 and b.called > 0 and a.called == 0)
    assert.is_true(a.failures > 0 and a.received > 9 * a.sent)
    assert.is_true(b.called_p50 > 0 and b.called_p50 <= b.called_p99)
    assert.is_true(a.memory > 2 ^ 20)
    local _, lines = command.shell "perigee top --json -d 100ms | head -n 3"
    assert.equal(3, select(2, lines:gsub('{"agents":%[{[^\n]*}\n', "")))
  end)

  it("tells of one scope, or of all", function()
    start("a", "b", "idle")
    local _, text, errors = command.run("top", "other", "--once", "-d", "100ms")
    assert.equal("", text)
    assert.equal("perigee top: scope other has no agent here\n", errors)
    _, text = command.run("top", "--all", "--once", "-d", "100ms")
    assert.matches("\na +cli ", text)
    assert.equal(2, (command.run("top", "-d", "1ms")))
    assert.equal(2, (command.run("top", "a b")))
  end)
end)
