-- SPDX-License-Identifier: Apache-2.0
-- The log of processes, on their stderr: PERIGEE_LOG, `perigee log`, floods,
-- and a stderr that takes nothing.
local cjson = require "cjson"
local command = require "spec.support.command"
local printable = require "perigee.runtime.printable"
local process = require "spec.support.process"
require "perigee.stats"                 -- declares what the file has

-- An agent that serves itself. It does what each line of its input says, and
-- answers "done".
local WORKER = [[
local perigee = require "perigee"
local log = require "perigee.runtime.log"
local own = setmetatable({}, { __index = _G })
own.perigee, own.log = perigee, log
own.agent = assert(perigee.agent { name = "a" })
own.agent:serve { name = "s", methods = {
  fail = function() error("told to", 0) end,
  say = function(text) perigee.log("warning", text) end,
  raw = { raw = true, function() error("raw", 0) end },
  short = { raw = true, inplace = true, function() return -1 end },
} }
own.s = assert(own.agent:proxy("a", "s"))
for line in io.lines() do
  if line == "end" then break end
  setfenv(assert(loadstring(line)), own)()
  print "done"
  io.stdout:flush()
end
own.agent:close()
]]

local ID = "4bf92f3577b34da6a3ce929d0e0e4736"
local TRACED = ('s:with { trace = "00-%s-00f067aa0ba902b7-01" }'):format(ID)

-- Starts a worker; setting: PERIGEE_LOG. Its stderr is a file, or what the
-- shell is told by `to`.
local function start(setting, to)
  local path = command.file("worker.lua", WORKER)
  local errors = command.folder() .. "/errors"
  return process.spawn { "sh", "-c", ("PERIGEE_SCOPE=cli PERIGEE_LOG='%s' "
    .. "XDG_RUNTIME_DIR='%s' exec luajit '%s' 2>%s"):format(setting or "",
    command.folder(), path, to or "'" .. errors .. "'") }
end

local function does(worker, line)
  worker:write(line .. "\n")
  assert.equal("done", worker:read(30 * process.slow))
end

local function ends(worker)
  worker:write "end\n"
  assert.same({ "exit", 0 }, { worker:wait(30 * process.slow) })
end

-- What it has written, after it has ended in order.
local function said(worker)
  ends(worker)
  return command.content(command.folder() .. "/errors")
end

local function lines(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
  return list
end

after_each(command.clean)

describe("the log", function()
  it("has warnings and errors as text, and nothing of what goes on", function()
    local worker = start()
    does(worker, 's:say "x\\nperigee: error: forged \27[2J\226\128\174"')
    does(worker, 'log.write("info", "quiet")')
    assert.equal("perigee: warning: x\n  perigee: error: forged \\x1b[2J"
      .. "\\xe2\\x80\\xae\n", said(worker))
  end)

  it("has JSON with time, agent and process", function()
    local worker = start "json,warn"
    does(worker, 's:say "x\\n\\\\ \\"quoted\\" \27[2J\226\128\174\255"')
    local pid, text = worker.pid, said(worker)
    assert.equal(1, #lines(text))
    local one = cjson.decode(text)
    assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$", one.time)
    assert.equal(pid, one.pid)
    one.time, one.pid = nil, nil
    assert.same({ level = "warning", agent = "a", scope = "cli", message =
      'x\n\\ "quoted" \\x1b[2J\\xe2\\x80\\xae\\xff' }, one)
  end)

  it("has the trace of a call on each of its lines", function()
    local worker = start "json"
    for _, call in ipairs { ':say "x"', ":fail()", ":raw()", ":short()" } do
      does(worker, TRACED .. call)
    end
    does(worker, "s:fail()")
    local list = lines(said(worker))
    local last = cjson.decode(table.remove(list))
    assert.matches("^1 more like this in the last .* seconds: s.fail failed: ",
                   last.message)        -- told at the end of the process
    assert.is_nil(last.trace)
    assert.equal(4, #list)
    for _, line in ipairs(list) do
      local one = cjson.decode(line)
      assert.equal(ID, one.trace)
      assert.equal("00f067aa0ba902b7", one.span)
    end
    worker = start()
    does(worker, TRACED .. ':say "x"')
    assert.equal(("perigee: warning: [trace %s] x\n"):format(ID), said(worker))
  end)

  it("says once that its setting is none, and goes on without", function()
    local worker = start "loud"
    does(worker, 's:say "x"')
    local list = lines(said(worker))
    assert.equal(2, #list)
    assert.matches('^perigee: warning: PERIGEE_LOG is ignored: "loud" has to '
      .. "be text or json", list[1])
    assert.equal("perigee: warning: x", list[2])
  end)

  it("tells 20 messages of a place in a second, and how many more there were",
     function()
    local worker = start()
    local flood = 'for i = 1, 1000 do log.write("warning", "n" .. i) end '
    does(worker, flood .. 'log.write("error", "another")')
    assert.is_true(command.eventually(function() -- the loop tells, by its clock
      does(worker, "perigee.sleep(0.1)")
      return command.content(command.folder() .. "/errors"):find "more like"
    end))
    does(worker, flood)
    local list = lines(said(worker))              -- the end tells
    assert.equal(20 + 1 + 1 + 20 + 1, #list)
    assert.equal("perigee: error: another", list[21])
    for _, i in ipairs { 22, 43 } do
      assert.matches("^perigee: warning: 980 more like this in the last "
        .. "[%d.e+-]+ seconds: n1000$", list[i])
    end
  end)

  it("cuts what it counts, and no character of it in JSON", function()
    local worker = start "json"
    does(worker, 'for i = 1, 30 do log.write("error", "x" .. '
      .. '("\195\169"):rep(200)) end')
    local list = lines(said(worker))
    local message = cjson.decode(list[21]).message
    assert.equal(message, printable.utf8(message))
    assert.matches(("seconds: x" .. ("\195\169"):rep(99) .. "\\xc3$"), message)
  end)

  it("gives a program's own function all of them", function()
    local worker = start()
    does(worker, 'n = 0 perigee.log = function() n = n + 1 end '
      .. 'for i = 1, 1000 do log.write("info", "n" .. i) end '
      .. 'assert(n == 1000)')
    assert.equal("", said(worker))
    worker = start "warning"
    does(worker, 'n = 0 perigee.log = function() n = n + 1 end '
      .. 'log.write("info", "n") log.write("error", "n") assert(n == 1)')
    assert.equal("", said(worker))
  end)
end)

describe("perigee log", function()
  local function level(...)
    local status, text, errors = command.run("log", "a", ...)
    assert.equal(0, status, errors)
    return text
  end

  it("changes what a process tells while it runs", function()
    local worker = start()
    does(worker, "")
    assert.equal("a logs at level warning\n", level())
    assert.equal("a logs at level debug; its own is warning\n", level "debug")
    does(worker, 'log.note("debug", agent, "now %d", 1)')
    assert.same({ name = "a", level = "error", asked = "error",
                  own = "warning" }, cjson.decode(level("error", "--json")))
    does(worker, 'log.write("warning", "not now", agent)')
    assert.equal("a logs at level warning\n", level "default")
    does(worker, 'log.note("debug", agent, "nor now")')
    does(worker, 'log.write("warning", "again")')
    assert.equal("perigee: debug: now 1\nperigee: warning: again\n",
                 said(worker))
  end)

  it("is not misled by what others write into the file", function()
    local worker = start "info"
    does(worker, "")
    local path = command.folder() .. "/perigee/cli/a.stats"
    local at = require "ffi".offsetof("struct perigee_stats_head", "log_asked")
    for _, word in ipairs { ("\255"):rep(8), "\5" .. ("\0"):rep(7),
                            "\4\0\0\0\1\0\0\0" } do
      local file = assert(io.open(path, "r+b"))
      file:seek("set", at)
      file:write(word)
      file:close()
      does(worker, 'log.note("info", agent, "told") '
        .. 'log.note("debug", agent, "not told")')
      assert.equal("a logs at level info\n", level())
    end
    assert.equal(0, os.execute(("truncate -s 0 '%s'"):format(path)))
    does(worker, 'log.note("info", agent, "cut")')
    local text = said(worker)
    assert.equal(("perigee: info: told\n"):rep(3) .. "perigee: info: cut\n",
                 text:gsub("perigee: info: [^tc][^\n]*\n", ""), text)
  end)

  it("says of whom there is none, and of the dead", function()
    local status, _, errors = command.run("log", "nobody", "debug")
    assert.equal(1, status)
    assert.matches("^perigee log: nobody has no stats here: ", errors)
    local worker = start()
    does(worker, "")
    worker:kill()
    status, _, errors = command.run("log", "a", "debug")
    assert.equal(1, status)
    assert.matches("^perigee log: a is dead: ", errors)
    for _, words in ipairs { { "a", "loud" }, { "a/b" } } do
      status, _, errors = command.run("log", unpack(words))
      assert.equal(2, status)
      assert.matches("^perigee log: [^\n]+\n$", errors)
    end
  end)
end)

describe("a stderr", function()
  it("that is closed, full, or read by nobody ends and stops nothing",
     function()
    local fifo = command.folder() .. "/fifo"
    assert.equal(0, os.execute("mkfifo '" .. fifo .. "'"))
    for _, to in ipairs { "&-", "/dev/full", "'" .. fifo .. "'" } do
      process.spawn { "sh", "-c", (": <'%s'"):format(fifo) } -- and is gone
      local worker = start(nil, to)
      does(worker, 's:say "x" s:say "y"')
      ends(worker)
    end
  end)

  it("that the program has replaced gets the messages", function()
    local script = command.file("replaced.lua", [[
      io.stderr = assert(io.open(..., "w"))
      require "perigee".log("error", "x")
      io.stderr:close()
    ]])
    local path = command.folder() .. "/file"
    local worker = process.spawn { "luajit", script, path }
    assert.same({ "exit", 0 }, { worker:wait(30 * process.slow) })
    assert.equal("perigee: error: x\n", command.content(path))
  end)

  it("that the program has closed, in place of its own, raises nothing",
     function()
    local script = command.file("shut.lua", [[
      local perigee, path = require "perigee", ...
      local log = require "perigee.runtime.log"
      local engine = assert(perigee.engine {})
      io.stderr = assert(io.open(path, "w"))
      perigee.run(function()
        for i = 1, 30 do log.write("error", "n" .. i) end
        io.stderr:close()
        perigee.log("error", "x")
        perigee.sleep(1.1)              -- the loop tells how many more
      end)
      print "done"
    ]])
    local worker = process.spawn { "luajit", script, command.folder()
                                   .. "/file" }
    assert.equal("done", worker:read(30 * process.slow))
  end)

  it("that is closed is not the file that comes after it", function()
    local script = command.file("closed.lua", [[
      local perigee, path = require "perigee", ...
      local file = assert(io.open(path, "w+"))
      perigee.log("error", "x")
      print(require "perigee.native".link "/proc/self/fd/2", #file:read "*a")
    ]])
    local path = command.folder() .. "/file"
    local worker = process.spawn { "sh", "-c", "exec luajit '" .. script
                                   .. "' '" .. path .. "' 2>&-" }
    assert.equal(path .. "\t0", worker:read(30 * process.slow))
  end)

  it("that is a full pipe is not waited for, and what it lost is told",
     function()
    local fifo = command.folder() .. "/fifo"
    assert.equal(0, os.execute("mkfifo '" .. fifo .. "'"))
    -- The shell opens it for both, so that it needs no reader.
    local worker = start("debug", ("/dev/null 2<>'%s'"):format(fifo))
    does(worker, 'for i = 1, 40 do perigee.log("error", ("x"):rep(8000)) end')
    local path = command.folder() .. "/read"
    process.spawn { "sh", "-c", ("exec cat '%s' >'%s'"):format(fifo, path) }
    local function text() return command.content(path) or "" end
    assert.is_true(command.eventually(function() return #text() > 60000 end))
    does(worker, 'perigee.log("error", "end")')
    assert.is_true(command.eventually(function()
      return text():find "\nperigee: error: end\n$"
    end))
    assert.matches("\nperigee: warning: %d+ messages were lost, as they could "
      .. "not be written\nperigee: error: end\n$", text())
    ends(worker)
  end)
end)
