-- SPDX-License-Identifier: Apache-2.0
-- Calls over shared memory next to UCX's tagged messages, in turns, on the
-- same two cores: from C (echo.c and ucx_echo.c, which do the same work) and
-- from Lua (rpc.lua with --floor ucx). See bench/running.md.
--
--   pip install --target build/libucx-cu12 libucx-cu12
--   luajit bench/ucx.lua

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local cjson = require "cjson"
local floor = require "bench.lib.floor"
local machine = require "bench.lib.machine"
local options = require "bench.lib.options"
local process = require "bench.lib.process"
local statistics = require "bench.lib.statistics"
local text = require "perigee.bench.table"
local verdict = require "bench.lib.verdict"

local ROOT = here .. "../"
local WINDOW, TYPED_TURNS = 64, 5
-- The goals: ratios of p50 to UCX's, by size, from C and from Lua; ratios of
-- calls/s; and of a typed call to an inplace one.
local SMALL = { C = { 1.1, 0.9 }, Lua = { 1.25, 1.0 } }
local KIB, LARGE = { 0.75, 0.6 }, { 0.95, 0.8 }
local RATE, TYPED = { 1.0, 1.5 }, { 1.15, 1.05 }

local function command_line()
  local parser = require "argparse"("luajit bench/ucx.lua",
    "Calls over shared memory beside UCX, in turns.")
  parser:option("--ucx", "A folder with UCX's include and lib (as PyPI's "
                .. "libucx-cu12 has them; build/libucx-cu12/libucx or /usr).")
    :argname "FOLDER"
  parser:option("--sizes", "Payload sizes, comma-separated.")
    :convert(options.sizes):default "64,1K,64K,1M,16M"
  parser:option("--turns", "Turns that each row's two programs take.")
    :convert(options.whole):default "8"
  parser:option("--seconds", "Time of each program in each row.")
    :convert(tonumber):default "1"
  parser:option("--pin", "Cores of caller and server.")
    :convert(options.cores):default(process.cores() > 1 and "0,1" or "0,0")
  parser:option("--only", "Only rows whose line has that in it.")
  parser:flag("--json", "Print one JSON document in place of the table.")
  return parser:parse()
end

local given = command_line()

local function stop(message)
  io.stderr:write("ucx: ", message, "\n")
  os.exit(1)
end

-- ---- UCX -------------------------------------------------------------------

local function has_headers(folder)
  local file = io.open(folder .. "/include/ucp/api/ucp.h")
  return file and file:close()
end

local function ucx_folder()
  for _, folder in ipairs { given.ucx or ROOT .. "build/libucx-cu12/libucx",
                            not given.ucx and "/usr" or nil } do
    if has_headers(folder) then return folder end
  end
  stop "UCX's headers are not there; pip install --target build/libucx-cu12 \z
        libucx-cu12 brings them, or name their folder by --ucx."
end

local function build(folder)
  local make = assert(process.spawn {
    "make", "-s", "-C", ROOT, "UCX=" .. folder, "build/bench/ucx_echo" })
  io.stderr:write(make:rest())
  if make:wait() ~= 0 then stop "bench/ucx_echo.c cannot be built" end
end

-- ---- Rows ------------------------------------------------------------------

-- Returns one program's burst as a round of statistics.row.
local function round(program, words, seconds, size, window)
  local _, pool = next(floor.burst(program, given, words, seconds, size))
  return { histogram = pool, calls = pool.count,
           seconds = pool.sum / 1e9 / window }
end

local function from_c(one)
  local words = { "--how", one.mode, "--window", one.window }
  local seconds, rounds, bursts = given.seconds / given.turns, {}, {}
  local function ucx()
    return round("ucx_echo", words, seconds, one.size, one.window).histogram
  end
  bursts[1] = ucx()
  for turn = 1, given.turns do
    rounds[turn] = round("echo", words, seconds, one.size, one.window)
    bursts[turn + 1] = ucx()
  end
  return statistics.row({ mode = one.mode, size = one.size, floor = "ucx",
                          window = one.window }, rounds, bursts)
end

-- Returns the first row of rpc.lua.
local function rpc(mode, size, window, turns, ...)
  local command = process.interpreter()
  for _, list in ipairs { {
    here .. "rpc.lua", "--mode", mode, "--sizes", ("%d"):format(size),
    "--window", window, "--turns", turns, "--seconds", given.seconds, "--pin",
    given.pin[1] .. "," .. given.pin[2], "--transport", "shm", "--json",
  }, { ... } } do
    for _, word in ipairs(list) do command[#command + 1] = word end
  end
  local child = assert(process.spawn(command))
  local told = child:rest()
  if child:wait() ~= 0 then error("rpc.lua has failed", 0) end
  return cjson.decode(told).rows[1]
end

local function from_lua(one)
  return rpc(one.mode, one.size, one.window, given.turns, "--floor", "ucx")
end

local function median(values)
  table.sort(values)
  return values[math.ceil(#values / 2)]
end

-- Measures each of the two in processes, and on traces, of its own.
local function typed_by_inplace()
  local typed, inplace = {}, {}
  for turn = 1, TYPED_TURNS do
    typed[turn] = rpc("typed", 16, 1, 1, "--no-floor").p50_us
    inplace[turn] = rpc("inplace", 64, 1, 1, "--no-floor").p50_us
  end
  local p50, floor_p50 = median(typed), median(inplace)
  return { mode = "typed", size = 16, window = 1, p50_us = p50,
           floor = "inplace", floor_p50_us = floor_p50,
           ratio = p50 / floor_p50 }
end

local FROM = { C = from_c, Lua = from_lua, typed = typed_by_inplace }

local function echo_rows(list, size)
  local large = size > 4096
  for _, from in ipairs { "C", "Lua" } do
    for _, mode in ipairs { "inplace", "raw" } do
      local wanted = size < 1024 and SMALL[from] or large and LARGE or KIB
      list[#list + 1] = { from = from, mode = mode, size = size, window = 1,
                          reach = wanted[1], beyond = wanted[2] }
    end
  end
end

-- Returns the rows, in the order of the table.
local function all_rows()
  local list = {}
  for _, size in ipairs(given.sizes) do echo_rows(list, size) end
  list[#list + 1] = { from = "typed", window = 1, reach = TYPED[1],
                      beyond = TYPED[2] }
  for _, row in ipairs { { "C", "inplace" }, { "C", "raw" },
                         { "Lua", "inplace" }, { "Lua", "raw" },
                         { "Lua", "pipelined" } } do
    list[#list + 1] = { from = row[1], mode = row[2], size = 64,
                        window = WINDOW, reach = RATE[1], beyond = RATE[2],
                        more_is_better = true }
  end
  return list
end

local function name_of(one)
  if one.from == "typed" then
    return "typed add(a, b) from Lua / inplace, 64 B"
  end
  local under = one.window > 1 and (", %d under way"):format(one.window) or ""
  return ("%s, %s%s, from %s"):format(one.mode, text.size(one.size), under,
                                      one.from)
end

local function measure(one)
  one.unit, one.what = "x", name_of(one)
  local row = FROM[one.from](one)
  one.row, one.value = row, row.ratio
  if one.more_is_better then
    one.value = row.calls_per_s / row.floor_calls_per_s
  end
  one.verdict = verdict.of(one, one.value)
end

local function line(one)
  local row, number = one.row, text.number
  local mine, theirs = number(row.p50_us), number(row.floor_p50_us)
  if one.more_is_better then
    mine = ("%.2f M/s"):format(row.calls_per_s / 1e6)
    theirs = ("%.2f M/s"):format(row.floor_calls_per_s / 1e6)
  end
  return ("| %s | %s | %s | %s | %.2f x | %s |"):format(
    one.what, mine, theirs, verdict.wanted(one), one.value, one.verdict)
end

-- ---- The table -------------------------------------------------------------

local folder = ucx_folder()
build(folder)
process.setenv("LD_LIBRARY_PATH", folder .. "/lib")
if not given.json then
  print "| what | p50, us | UCX, us | to reach | measured | |"
  print "|---|---|---|---|---|---|"
end
local rows = {}
for _, one in ipairs(all_rows()) do
  if not given.only or name_of(one):find(given.only, 1, true) then
    local fine, message = pcall(measure, one)
    if not fine then stop(tostring(message)) end
    rows[#rows + 1] = one
    if not given.json then print(line(one)) end
    io.flush()
  end
end
if not rows[1] then
  stop(("no row has %q in its line"):format(given.only or ""))
end
if given.json then
  print(cjson.encode { bench = "ucx", ucx = folder, rows = rows,
                       machine = machine.describe(given) })
end
