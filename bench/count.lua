-- SPDX-License-Identifier: Apache-2.0
-- Counts the instructions of one operation. Over verbs (steps.c): from the Lua
-- call to the post, in the device's library, and from the completion to the
-- result in Lua. Over shared memory and TCP (counted.c, by callgrind): of both
-- sides of the core, from C, which --check compares with bench/counts.json.
-- The counts are exact, whatever else the machine does. See bench/running.md.

local tree = dofile((arg[0]:match ".*/" or "./") .. "tree.lua")
local callgrind = require "bench.lib.callgrind"
local counts = require "bench.lib.counts"
local driver = require "bench.lib.driver"
local ffi = require "ffi"
local floor = require "bench.lib.floor"
local folders = require "bench.lib.folders"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"
local steps = require "bench.lib.steps"

ffi.cdef "int raise(int signal);"
local C = ffi.C
local SIGUSR1 = 10
local WARM, COUNTED, STEPPED = 400, 400, 15 -- operations

-- ---- Operations -------------------------------------------------------------

local STEPS = {}
local MODES = { "inplace", "typed", "write", "prepared_write", "read",
                "prepared_read" }

local function cores() return { 0, process.cores() > 1 and 1 or 0 } end

function STEPS.inplace(side)
  local buffer = payload.private(64)
  local fast = side.proxy:with {
    capacity = 64,
    reader = function(reply) return reply.pointer[0] end,
  }
  local function writer(loan)
    ffi.copy(loan.pointer, buffer, 64)
    return 64
  end
  return function() return fast:copy(writer) end
end

function STEPS.typed(side)
  local proxy = side.proxy
  return function() return proxy:add(1, 2) end
end

local function ends(side)
  local session = side:connect "transfer.sock"
  local here = assert(side.engine:alloc(8, { access = "" })):slice()
  return session, here:fill(1), assert(session:region "bench"):slice(0, 8)
end

function STEPS.write(side)
  local session, here, there = ends(side)
  return function() return session:write { from = here, to = there }:wait() end
end

function STEPS.read(side)
  local session, here, there = ends(side)
  return function() return session:read { from = there, to = here }:wait() end
end

function STEPS.prepared_write(side)
  local session, here, there = ends(side)
  local transfer = session:prepare_write { from = here, to = there }
  return function() return transfer:post():wait() end
end

function STEPS.prepared_read(side)
  local session, here, there = ends(side)
  local transfer = session:prepare_read { from = there, to = here }
  return function() return transfer:post():wait() end
end

-- Runs each step between two system calls that do nothing, in a compiled loop.
local function operate(step, count)
  for _ = 1, count do
    C.getppid()
    local fine, err = step()
    C.getppid()
    if fine == nil then error(tostring(err), 0) end
  end
end

-- Returns the posts, and the polls that found something, of this side and the
-- worker's.
local function verbs(side)
  local posts, found = 0, 0
  for _, session in pairs(side.engine.sessions) do
    local told = session:explain().facts
    posts, found = posts + (told.posts or 0), told.polls_that_found or 0
  end
  local there = assert(side.proxy:posts())
  return { posts, found, unpack(there) }
end

local function child(mode, transport)
  local side = driver.start({ mode = { mode }, transport = transport,
                              pin = cores() }, tree.worker, 4096)
  local step = STEPS[mode](side)
  operate(step, WARM)
  local before = verbs(side)
  operate(step, COUNTED)
  for i, after in ipairs(verbs(side)) do
    io.write(("%.2f "):format((after - before[i]) / COUNTED))
  end
  io.write "\n"
  io.flush()
  C.raise(SIGUSR1)
  operate(step, STEPPED)
  os.exit(0) -- the worker ends with us
end

-- ---- Tables ----------------------------------------------------------------

local function row(cells) return "| " .. table.concat(cells, " | ") .. " |" end
local function head(cells)
  return row(cells) .. "\n|" .. ("---|"):rep(#cells)
end

local HEAD = head { "operation", "Lua, to the post", "core, to the post",
                    "library: post", "library: poll", "between",
                    "core, to the result", "Lua, to the result",
                    "system calls: library", "ours" }
local CALLS = head { "operation", "posts, driver", "polls that found",
                     "posts, worker", "polls that found" }

local function line(mode, runs)
  local a, b, n = runs.first, runs.last, #runs
  local function sum(...) return steps.sum(runs, ...) end
  if not a then -- no device: all instructions
    return row { mode, sum(1, n, "lua"), sum(1, n, "core") }
  end
  return row {
    mode, sum(1, a, "lua"), sum(1, a, "core"), runs[a].count,
    sum(a + 1, b, "device"), sum(a + 1, b, "core") + sum(a + 1, b, "lua"),
    sum(b + 1, n, "core"), sum(b + 1, n, "lua"),
    sum(1, n, "device", "systems"),
    sum(1, n, "lua", "systems") + sum(1, n, "core", "systems"),
  }
end

local function tell_functions(what, runs, from, to)
  print("  " .. what)
  for _, one in ipairs(steps.functions(runs, from, to)) do
    print(("%8d %s"):format(one[2], one[1]))
  end
end

local function functions(runs)
  local a, b = runs.first or #runs, runs.last or #runs
  tell_functions("to the post", runs, 1, a)
  tell_functions("between", runs, a + 1, b)
  tell_functions("to the result", runs, b + 1, #runs)
end

-- ---- By callgrind -----------------------------------------------------------

local RECORDED = (arg[0]:match ".*/" or "./") .. "counts.json"

local function core()
  return package.searchpath("perigee.core", package.cpath)
end

-- Returns the operations over the transports in `text` (both: "shm,tcp") whose
-- names have `only` in them.
local function chosen(text, only)
  local list = {}
  for _, one in ipairs(callgrind.OPERATIONS) do
    if text:find(one.transport, 1, true) and one.name:find(only, 1, true) then
      list[#list + 1] = one
    end
  end
  return list
end

local function count_them(list)
  local folder = folders.new()
  local fine, found = pcall(callgrind.run, list, folder)
  folders.remove(folder)
  if not fine then error(found, 0) end
  return found
end

local function show(list, with_functions)
  local found = count_them(list)
  print(head { "operation", "caller", "server", "both" })
  for _, one in ipairs(list) do
    local each = found[one.name]
    print(row { one.name, each.caller, each.server, counts.total(each) })
    if with_functions then
      for _, f in ipairs(counts.grown({}, each.functions)) do
        print(("%8d %s"):format(f[3], f[1]))
      end
    end
  end
end

local function totals(fine, failed, skipped)
  print(("%d passed, %d failed, %d skipped"):format(fine, failed, skipped))
  return failed == 0 and 0 or 1
end

-- Returns the exit status. Counts of another compiler or library are not
-- comparable, so they are skipped.
local function check(list, path)
  local recorded = assert(counts.read(path))
  local setting, missing = callgrind.setting(core())
  local why = missing or counts.differs(recorded.setting, setting)
  if why then
    print("not comparable with " .. path .. ": " .. why)
    return totals(0, 0, #list)
  end
  local fine, failed = counts.compare(recorded.operations, count_them(list),
                                      print)
  return totals(fine, failed, 0)
end

-- Others that are recorded stay, if they are of the same setting.
local function update(list, path)
  local setting = assert(callgrind.setting(core()))
  local recorded = counts.read(path)
  if not recorded or counts.differs(recorded.setting, setting) then
    recorded = { operations = {} }
  end
  recorded.setting = setting
  for name, one in pairs(count_them(list)) do
    recorded.operations[name] = one
  end
  counts.write(path, recorded)
end

-- ---- The command line -------------------------------------------------------

local function counted(mode, transport)
  local path = os.tmpname()
  local command = { floor.folder .. "/steps", path }
  for _, word in ipairs(process.interpreter()) do
    command[#command + 1] = word
  end
  for _, word in ipairs { arg[0], "--mode", mode, "--transport", transport,
                          "--child" } do
    command[#command + 1] = word
  end
  local stepper = assert(process.spawn(command))
  local told = stepper:line()
  stepper:rest()
  local status, all = stepper:wait(), steps.read(path)
  os.remove(path)
  if status ~= 0 or #all == 0 then
    error(("%s was not counted (status %d)"):format(mode, status), 0)
  end
  return steps.typical(all), told
end

local function main(given)
  process.pin(0, cores()[1]) -- the stepper and its command inherit it
  local calls = {}
  print(HEAD)
  for _, mode in ipairs(given.mode) do
    local runs, told = counted(mode, given.transport)
    print(line(mode, runs))
    if given.functions then functions(runs) end
    calls[#calls + 1] = row { mode, told:match "(%S+) (%S+) (%S+) (%S+)" }
    io.flush()
  end
  print("\n" .. CALLS)
  print(table.concat(calls, "\n"))
end

local function modes(text)
  local list = {}
  for word in text:gmatch "[%w_]+" do
    if not STEPS[word] then return nil, "there is no mode " .. word end
    list[#list + 1] = word
  end
  return list
end

local parser = require "argparse"("luajit bench/count.lua",
                                  "Instructions of one operation.")
parser:option("--mode", "Which, comma-separated: "
              .. table.concat(MODES, ", ") .. ".")
  :default(table.concat(MODES, ",")):convert(modes)
parser:option("--transport", "verbs, or shm, tcp or both (shm,tcp).")
  :default "verbs"
parser:option("--only", "Of shm and tcp: those whose names have this.")
  :default ""
parser:option("--recorded", "The recorded counts."):default(RECORDED)
parser:flag("--functions", "Also by function.")
parser:flag("--check", "Compares those of shm and tcp with what is recorded; "
            .. "fails beyond + 3 %.")
parser:flag("--update", "Records those of shm and tcp.")
parser:flag("--child"):hidden(true)
local given = parser:parse()
if given.child then
  child(given.mode[1], given.transport)
elseif given.update then
  update(chosen("shm,tcp", given.only), given.recorded)
elseif given.check then
  os.exit(check(chosen("shm,tcp", given.only), given.recorded))
elseif given.transport:find "shm" or given.transport:find "tcp" then
  show(chosen(given.transport, given.only), given.functions)
else
  main(given)
end
