-- SPDX-License-Identifier: Apache-2.0
-- All figures over RDMA as one table: calls and transfers next to perftest on
-- the same device in the same run, and counts of their work. Options are
-- passed on to rpc.lua and transfer.lua. See bench/running.md.
--
--   luajit bench/rdma.lua [--only TEXT] [--no-counts] [OPTION...]

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
require "bench.lib.help".asked()
local cjson = require "cjson"
local process = require "bench.lib.process"
local text = require "perigee.bench.table"

-- What is measured, the ratio to reach and the one beyond, the bench and its
-- options. In a virtual machine it takes a second to start a burst of the
-- floor, so the turns are few and long.
local SHORT, LONG = " --turns 3 --seconds 1", " --turns 2 --seconds 4"
local FIGURES = {
  { "inplace echo, 64 B, / 2 x ib_write_lat", 1.35, 1.15,
    "rpc.lua", "--mode inplace --sizes 64" .. SHORT },
  { "write, 8 B, / ib_write_lat", 1.15, 1.05,
    "transfer.lua", "--mode write --sizes 8" .. SHORT },
  { "write, 8 B, / ib_write_bw -t 1 (which waits for it, too)", nil, nil,
    "transfer.lua", "--mode write --sizes 8 --floor ib_write_bw" .. SHORT },
  { "prepared write, 8 B, / ib_write_lat", 1.15, 1.05,
    "transfer.lua", "--mode prepared_write --sizes 8" .. SHORT },
  { "prepared write, 8 B, / ib_write_bw -t 1", nil, nil,
    "transfer.lua",
    "--mode prepared_write --sizes 8 --floor ib_write_bw" .. SHORT },
  { "read, 8 B, / ib_read_lat", 1.15, 1.05,
    "transfer.lua", "--mode read --sizes 8" .. SHORT },
  { "prepared read, 8 B, / ib_read_lat", 1.15, 1.05,
    "transfer.lua", "--mode prepared_read --sizes 8" .. SHORT },
  { "write_imm, 8 B, / ib_write_lat", nil, nil,
    "transfer.lua", "--mode write_imm --sizes 8" .. SHORT },
  { "send, 8 B, / ib_send_lat", nil, nil,
    "transfer.lua", "--mode send --sizes 8" .. SHORT },
  { "1 MiB writes, 4 under way, / ib_write_bw -t 4", 0.95, 1,
    "transfer.lua", "--mode write --sizes 1M --window 4" .. LONG },
  { "1 MiB reads, 4 under way, / ib_read_bw -t 4", 0.95, 1,
    "transfer.lua", "--mode read --sizes 1M --window 4" .. LONG },
  { "inplace echo, 64 KiB, / both ways at ib_write_bw", 1.15, 1,
    "rpc.lua", "--mode inplace --sizes 64K" .. LONG },
  { "inplace echo, 1 MiB, / both ways at ib_write_bw", 1.15, 1,
    "rpc.lua", "--mode inplace --sizes 1M" .. LONG },
  { "inplace echo, 16 MiB, / both ways at ib_write_bw", 1.15, 1,
    "rpc.lua", "--mode inplace --sizes 16M" .. LONG },
}

local only, counts, rest = nil, true, {}
do
  local i = 1
  while arg[i] do
    if arg[i] == "--only" then
      i, only = i + 1, arg[i + 1]
    elseif arg[i] == "--no-counts" then
      counts = false
    else
      rest[#rest + 1] = arg[i]
    end
    i = i + 1
  end
end

local function command(script, ...)
  local words = process.interpreter()
  words[#words + 1] = here .. script
  for _, part in ipairs { ... } do
    for word in part:gmatch "%S+" do words[#words + 1] = word end
  end
  for _, word in ipairs(rest) do words[#words + 1] = word end
  return words
end

-- Returns the row that a bench measured, or nil.
local function measured(script, options)
  local child = assert(process.spawn(
    command(script, "--transport verbs --json", options)))
  local told = child:rest()
  if child:wait() ~= 0 then return nil end
  return cjson.decode(told).rows[1]
end

-- Returns the figure's ratio; for a rate, the inverse of the ratio of times.
local function reached(figure, row)
  local ratio = row.ratio
  if not ratio or ratio == cjson.null then return "-" end
  if figure[2] and figure[2] < 1 then ratio = 1 / ratio end
  return ("%.2f x"):format(ratio)
end

local function wanted(figure)
  if not figure[2] then return "-" end
  return ("%.2f x, beyond %.2f x"):format(figure[2], figure[3])
end

local function us(value)
  return value and value ~= cjson.null and text.number(value) or "-"
end

print "| what | to reach | ratio | p50, us | p99, us | floor p50, us |"
print "|---|---|---|---|---|---|"
for _, figure in ipairs(FIGURES) do
  if not only or figure[1]:find(only, 1, true) then
    local row = measured(figure[4], figure[5])
    if not row then
      io.stderr:write("rdma: ", figure[1], " has failed\n")
      os.exit(1)
    end
    if row.no_floor then
      io.stderr:write("rdma: no floor: ", row.no_floor, "\n")
    end
    print(("| %s | %s | %s | %s | %s | %s |"):format(
      figure[1], wanted(figure), reached(figure, row), us(row.p50_us),
      us(row.p99_us), us(row.floor_p50_us)))
    io.flush()
  end
end

if counts and not only then
  rest = {}
  local child = assert(process.spawn(command "count.lua"))
  io.write("\n", child:rest())
  if child:wait() ~= 0 then os.exit(1) end
end
