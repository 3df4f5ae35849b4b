-- SPDX-License-Identifier: Apache-2.0
-- Calls of a C program beside the same from Lua: both find the same Lua agent
-- by its name, call its methods one after the other, and take turns on one
-- core.
-- See bench/running.md.

local here = arg[0]:match ".*/" or "./"
local tree = dofile(here .. "tree.lua")
local calls = require "bench.lib.calls"
local cjson = require "cjson"
local driver = require "bench.lib.driver"
local floor = require "bench.lib.floor"
local histogram = require "perigee.bench.histogram"
local machine = require "bench.lib.machine"
local options = require "bench.lib.options"
local process = require "bench.lib.process"
local rounds = require "bench.lib.rounds"
local text = require "perigee.bench.table"
local verdict = require "bench.lib.verdict"

local SIZE = 64
local SETTLE = 0.03                     -- until both sides sleep

local function command_line()
  local parser = require "argparse"("luajit bench/c_calls.lua",
    "Calls of a C program beside the same from Lua, in turns.")
  parser:option("--turns", "Turns that each caller takes.")
    :convert(options.whole):default "16"
  parser:option("--seconds", "Time of each caller, in all turns together.")
    :convert(tonumber):default "4"
  parser:option("--pin", "Cores of caller and server.")
    :convert(options.cores):default(process.cores() > 1 and "0,1" or "0,0")
  parser:flag("--json", "Print one JSON document in place of the table.")
  return parser:parse()
end

local given = command_line()
given.mode, given.transport = { "raw" }, "shm"

-- Returns what takes a turn of the C program, and of Lua.
local function from_c(side, how)
  local at = side.scope .. "/worker"
  return function(seconds)
    process.sleep(SETTLE)
    local words = { "--at", at, "--how", how }
    return floor.burst("c_caller", given, words, seconds, SIZE)[how]
  end
end

local function from_lua(step)
  return function(seconds)
    process.sleep(SETTLE)
    return rounds.round(step, seconds).histogram
  end
end

local function measure(side)
  local callers = {
    c_raw = from_c(side, "raw"), c_typed = from_c(side, "typed"),
    lua_raw = from_lua(calls.raw(side.proxy, SIZE, side.engine)),
    lua_typed = from_lua(calls.typed(side.proxy)),
  }
  local order = { "c_raw", "lua_raw", "c_typed", "lua_typed" }
  local all = {}
  for _, name in ipairs(order) do all[name] = histogram.new() end
  for _ = 1, given.turns do
    for _, name in ipairs(order) do
      all[name]:merge(callers[name](given.seconds / given.turns))
    end
  end
  local p50 = {}
  for name, pool in pairs(all) do p50[name] = pool:quantile(0.5) / 1e3 end
  return p50
end

local ROWS = {
  { what = "raw echo of 64 B: from C / from Lua", "c_raw", "lua_raw",
    reach = 0.85, beyond = 0.75 },
  { what = "typed add(a, b): from C / from Lua", "c_typed", "lua_typed" },
  { what = "from C: typed add(a, b) / raw echo of 64 B", "c_typed", "c_raw",
    reach = 1.3 },
}

local function line(row)
  return ("| %s | %s | %s | %s | %.2f x | %s |"):format(
    row.what, text.number(row.p50_us), text.number(row.floor_p50_us),
    row.reach and verdict.wanted(row) or "", row.value,
    row.verdict or "")
end

local side = driver.start(given, tree.worker, 0)
local fine, p50 = pcall(measure, side)
side:stop()
if not fine then
  io.stderr:write("c_calls: ", tostring(p50), "\n")
  os.exit(1)
end
for _, row in ipairs(ROWS) do
  row.p50_us, row.floor_p50_us = p50[row[1]], p50[row[2]]
  row.value, row.unit = row.p50_us / row.floor_p50_us, "x"
  if row.reach then row.verdict = verdict.of(row, row.value) end
  row[1], row[2] = nil, nil
end
if given.json then
  print(cjson.encode { bench = "c_calls", rows = ROWS,
                       machine = machine.describe(given) })
else
  print "| what | p50, us | beside, us | to reach | measured | |"
  print "|---|---|---|---|---|---|"
  for _, row in ipairs(ROWS) do print(line(row)) end
end
