-- SPDX-License-Identifier: Apache-2.0
-- Writes the reference table, bench/figures.md, of one run on one machine: each
-- of Perigee's figures beside the floor of the same run, and beside the best of
-- the other systems that are here (bench/compare.lua --list).
--
--   luajit bench/figures.lua [--seconds S] [--peers NAMES] [--out FILE]
local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
require "bench.lib.help".asked()
local argparse = require "argparse"
local cjson = require "cjson"
local text = require "perigee.bench.table"

local SMALL, SIZES = "64", "64,64K,1M,16M"
local KIB, MIB = 1024, 2 ^ 20

-- ---- What is run -----------------------------------------------------------

-- The documents of a run by name. Each is a bench with its arguments.
local RUNS = {
  { "calls", "rpc.lua", "--mode inplace,raw --sizes " .. SIZES },
  { "small", "rpc.lua", "--mode typed,pipelined,connect,sleeping --sizes "
    .. SMALL },
  { "transfers", "transfer.lua",
    "--mode write,read,prepared_write,prepared_read --sizes 8,16M" },
  { "tcp", "rpc.lua", "--transport tcp --at tcp://127.0.0.1:0 --mode inplace "
    .. "--floor spin --sizes " .. SIZES },
}
local OTHERS = "--modes echo --sizes " .. SIZES .. " --rounds 4 --attempts 2"

local function run(bench, arguments, options)
  local command = ("luajit %s%s %s --json"):format(here, bench, arguments)
  io.stderr:write(command, "\n")
  local pipe = io.popen(command)
  local told = pipe:read "*a"
  pipe:close()
  local fine, document = pcall(cjson.decode, told)
  if fine then return document end
  io.stderr:write("no figures: ", bench, " failed\n")
  if options.strict then os.exit(1) end
  return { rows = {} }
end

local function run_all(options)
  local documents = {}
  local seconds = (" --seconds %g"):format(options.seconds)
  for _, each in ipairs(RUNS) do
    documents[each[1]] = run(each[2], each[3] .. seconds, { strict = true })
  end
  documents.others = run("compare.lua", OTHERS .. seconds
    .. " --peers " .. options.peers .. " --results " .. options.results, {})
  return documents
end

-- ---- The table -------------------------------------------------------------

-- Perigee's mean by compare.lua, and the quickest of the others whose bytes go
-- by one of these paths; nil where there is none.
local function rival(documents, peer, size, paths)
  local own, best
  for _, row in ipairs(documents.others.rows) do
    local mean = row.size == size and tonumber(row.mean_us)
    if mean and row.peer == peer then
      own = mean
    elseif mean and paths[row.path] and not row.peer:find "^perigee"
      and (not best or mean < best.mean) then
      best = { mean = mean, name = row.peer }
    end
  end
  return own and best and { ratio = own / best.mean, name = best.name,
                            mean = best.mean }
end

local function find(documents, run_name, mode, size)
  for _, row in ipairs(documents[run_name].rows) do
    if (row.mode or row.operation) == mode and (not size or row.size == size)
    then
      return row
    end
  end
end

local LOCAL = { shm = true, unix = true }
local TCP = { tcp = true }

-- The rows of the table, in order: words, run, mode, size, and the peers beside
-- it.
local LINES = {}
local function line(...) LINES[#LINES + 1] = { ... } end
for _, size in ipairs { 64, 64 * KIB, MIB, 16 * MIB } do
  line("inplace echo, shared memory", "calls", "inplace", size)
end
for _, size in ipairs { 64, 64 * KIB, MIB, 16 * MIB } do
  line("raw echo, shared memory", "calls", "raw", size, "perigee", LOCAL)
end
line("typed add(a, b)", "small", "typed")
line("64 calls under way, each", "small", "pipelined")
line("call to a server that sleeps", "small", "sleeping")
line("connect, until a call can be made", "small", "connect")
for _, size in ipairs { 8, 16 * MIB } do
  line("one-sided write", "transfers", "write", size)
  line("one-sided read", "transfers", "read", size)
end
line("one-sided write, prepared", "transfers", "prepared_write", 8)
line("one-sided read, prepared", "transfers", "prepared_read", 8)
for _, size in ipairs { 64, 64 * KIB, MIB, 16 * MIB } do
  line("inplace echo, TCP over loopback", "tcp", "inplace", size,
       "perigee-tcp", TCP)
end

local function number(value) return text.number(tonumber(value)) end

local function times(value)
  value = tonumber(value)
  return value and ("%.2f x"):format(value) or ""
end

local function shown(documents, each)
  local row = find(documents, each[2], each[3], each[4])
  if not row then return nil end
  local beside = each[5] and rival(documents, each[5], each[4], each[6])
  return ("| %s | %s | %s | %s | %s | %s | %s | %s |"):format(each[1],
    each[4] and text.size(each[4]) or "", number(row.p50_us),
    number(row.p99_us), number(row.floor_p50_us), times(row.ratio),
    beside and beside.name or "", beside and times(beside.ratio) or "")
end

local HEAD = [[
# Figures

`make figures` writes this file. It is of one run, on %s (%d cores, Linux %s,
%s), on %s.

Times are in microseconds, of one call or transfer. The floor is a bare C
program that took turns with Perigee on the same cores; [running.md](running.md)
tells which. The last two columns are of another run (`compare.lua`): the
quickest of the other systems that were here, and Perigee's mean over its mean.
Below 1 Perigee wins.

| what | size | p50 | p99 | floor's p50 | ratio | best rival | ratio |
|---|---|---|---|---|---|---|---|
]]

local function write(documents, path)
  local machine = documents.calls.machine
  local lines = { HEAD:format(machine.cpu, machine.cores, machine.kernel,
                              machine.luajit, machine.date:sub(1, 10)) }
  for _, each in ipairs(LINES) do
    local told = shown(documents, each)
    if told then lines[#lines + 1] = told .. "\n" end
  end
  local file = assert(io.open(path, "w"))
  assert(file:write(table.concat(lines)))
  file:close()
end

local parser = argparse("luajit bench/figures.lua",
                        "Writes the reference table of this machine.")
parser:option("--seconds", "Time of each row."):convert(tonumber):default(0.5)
parser:option("--peers", "Other systems (compare.lua).")
  :default("perigee,perigee-tcp,unix-busy,tcp-busy,ucx-*,libfabric-*,openmpi,"
           .. "mpich")
parser:option("--results", "Where compare.lua's files go.")
  :default(here .. "results/figures")
parser:option("--out", "The file."):default(here .. "figures.md")
local options = parser:parse()
write(run_all(options), options.out)
