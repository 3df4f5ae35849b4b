-- SPDX-License-Identifier: Apache-2.0
-- All figures over TCP as one table: over loopback, and (as root) between two
-- network namespaces with a veth pair. Options that it does not know are
-- passed on to rpc.lua and transfer.lua. See bench/running.md.
--
--   luajit bench/tcp.lua [--only TEXT] [--loopback | --netns] [--json]
--                        [OPTION...]

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
require "bench.lib.help".asked()
local cables = require "bench.lib.cable"
local cjson = require "cjson"
local machine = require "bench.lib.machine"
local process = require "bench.lib.process"
local text = require "perigee.bench.table"
local verdict = require "bench.lib.verdict"

local TRANSPORT = os.getenv "PERIGEE_TRANSPORT" or "tcp"

-- The values that are read from a bench's document: the ratio of the first
-- row's time to its floor's, or of the rates (more is better); its p99 over the
-- unloaded p50; or a figure.
local function row_of(document) return document.rows[1] or {} end
local function times(document) return row_of(document).ratio end
local function rates(document)
  local ratio = row_of(document).ratio
  return ratio and ratio ~= cjson.null and 1 / ratio or nil
end
local function p99(document) return row_of(document).p99_ratio end
local function figure(name)
  return function(document) return document.figures[name] end
end

local SHORT, LONG = " --turns 8 --seconds 2", " --turns 4 --seconds 6"
local FIGURES = {
  { "inplace echo, 64 B, busy / bare sockets, busy", 1.25, 1.1, times, "x",
    "rpc.lua", "--mode inplace --sizes 64 --floor spin" .. SHORT },
}
local function add(...) FIGURES[#FIGURES + 1] = { ... } end

for _, size in ipairs { "64", "64K", "1M", "16M" } do
  local name = text.size(assert(require "bench.lib.options".size(size)))
  -- Like the rivals: from the caller's memory, and back into it.
  local mode = "--mode raw --sizes " .. size
  add("echo, " .. name .. " / the best rival", 1, 0.8, times, "x",
      "rpc.lua", mode .. " --floor rivals" .. LONG)
  add("echo, " .. name .. " / blocking sockets", nil, nil, times, "x",
      "rpc.lua", mode .. " --floor block" .. SHORT)
end
for _, size in ipairs { "1M", "16M" } do
  local name = text.size(assert(require "bench.lib.options".size(size)))
  add("inplace echo, " .. name .. " / bare sockets that copy as much", nil, nil,
      times, "x", "rpc.lua",
      "--mode inplace --sizes " .. size .. " --floor copy" .. SHORT)
end
add("inplace echo, 64 B, asleep, spin = 0 / epoll", 1.25, 1.1, times, "x",
    "rpc.lua", "--mode sleeping --spin 0" .. SHORT)
add("inplace echo, 64 B, again and again with spin = 0 / epoll", nil, nil,
    times, "x", "rpc.lua", "--mode inplace --sizes 64 --spin 0 --floor epoll"
    .. SHORT)
for _, streams in ipairs { 1, 2 } do
  add(("16 MiB writes, streams = %d, rate / iperf3 -P %d"):format(
        streams, streams), 0.9, 1, rates, "x", "transfer.lua",
      "--mode write --sizes 16M --window 4 --streams " .. streams .. LONG)
end
add("16 MiB writes, encrypted, rate / the cipher's", 0.8, 0.9, rates, "x",
    "transfer.lua", "--mode write --sizes 16M --window 4 --encrypt" .. LONG)
add("64 B calls beside 1 GiB, p99 / p50 unloaded", 10, 3, p99, "x",
    "rpc.lua", "--mode loaded --turns 4 --seconds 12")
add("a cut cable, dead_after = 1: the last operation ends", 1.2, nil,
    figure "cut_seconds", "s", "rpc.lua", "--mode cut --dead-after 1")
add("worker killed and restarted: first good call", 200, 50,
    figure "restart_ms", "ms", "rpc.lua", "--mode restart")
add("10 idle sessions, the server's processor", 0.2, nil,
    figure "idle_cpu_percent", "%", "rpc.lua", "--mode idle --seconds 8")
add("an idle session, both sides' memory", 2 * 64, nil, function(document)
  local bytes = document.figures.idle_session_bytes
  return bytes and bytes / 1024
end, "KiB", "rpc.lua", "--mode memory")

local MORE_IS_BETTER = { [rates] = true }

-- ---- The command line ------------------------------------------------------

local FLAGS = { ["--json"] = "json", ["--loopback"] = "loopback",
                ["--netns"] = "netns" }
local given, rest = {}, {}
do
  local i = 1
  while arg[i] do
    if FLAGS[arg[i]] then
      given[FLAGS[arg[i]]] = true
    elseif arg[i] == "--only" then
      i, given.only = i + 1, arg[i + 1]
    else
      rest[#rest + 1] = arg[i]
    end
    i = i + 1
  end
end

-- ---- Places ----------------------------------------------------------------

local function address(host)
  return TRANSPORT == "tcp" and ("tcp://%s:0"):format(host)
         or os.tmpname() .. ".sock"
end

local LOOPBACK = { name = "loopback", before = {}, words = {} }
function LOOPBACK.words()
  if TRANSPORT ~= "tcp" then return {} end
  return { "--at", address "127.0.0.1" }
end

local function cabled(cable)
  return { name = "veth", before = { "nsenter", "--net=" .. cable.near },
           words = function()
             return { "--at", address(cable.at), "--netns", cable.far,
                      "--cable", cable.device }
           end }
end

-- ---- Running ---------------------------------------------------------------

local function command(place, script, words)
  local all = {}
  for _, list in ipairs { place.before, process.interpreter(),
                          { here .. script, "--transport", TRANSPORT },
                          place.words(), words, rest, { "--json" } } do
    for _, word in ipairs(list) do all[#all + 1] = word end
  end
  return all
end

local function split(words)
  local list = {}
  for word in words:gmatch "%S+" do list[#list + 1] = word end
  return list
end

-- Returns the document that a bench printed, or nil and why there is none.
local function measured(place, one)
  if one[7]:find "mode cut" and place == LOOPBACK then
    return nil, "there is no cable"
  end
  local child = assert(process.spawn(command(place, one[6], split(one[7]))))
  local told = child:rest()
  if child:wait() ~= 0 then return nil, "failed", true end
  return cjson.decode(told)
end

local function result(place, one)
  local document, why, failed = measured(place, one)
  local value = document and one[4](document)
  if value == cjson.null then value = nil end
  local row = document and row_of(document) or {}
  local told = { what = one[1], place = place.name, unit = one[5],
                 reach = one[2], beyond = one[3], value = value, row = row,
                 more_is_better = MORE_IS_BETTER[one[4]], failed = failed,
                 why = why or not value and (row.no_floor or "not told")
                       or nil }
  told.verdict = value and verdict.of(told, value)
  return told
end

local function number(value)
  return value and value ~= cjson.null and text.number(value) or "-"
end

local function line(one)
  local row = one.row
  return ("| %s | %s | %s | %s | %s | %s | %s | %s |"):format(
    one.place, one.what, verdict.wanted(one),
    one.value and ("%.2f %s"):format(one.value, one.unit) or one.why,
    one.verdict or "", number(row.p50_us), number(row.p99_us),
    number(row.floor_p50_us) .. (row.floor and " " .. row.floor or ""))
end

-- ---- The table -------------------------------------------------------------

local function progress(format, ...)
  if not given.json and not process.is_terminal(2) then return end
  io.stderr:write(format:format(...), "\n")
end

local function chosen()
  local list = {}
  for _, one in ipairs(FIGURES) do
    if not given.only or one[1]:find(given.only, 1, true) then
      list[#list + 1] = one
    end
  end
  if not list[1] then
    io.stderr:write("tcp: no row has \"", given.only, "\" in its line\n")
    os.exit(1)
  end
  return list
end

local list = chosen()

local function measure_all(place, results)
  for i, one in ipairs(list) do
    progress("%s, %d of %d: %s ...", place.name, i, #list, one[1])
    local told = result(place, one)
    results[#results + 1] = told
    if not given.json then print(line(told)) end
    io.flush()
  end
end

if not given.json then
  print("| where | what | to reach | measured | | p50, us | p99, us "
        .. "| floor p50, us |")
  print "|---|---|---|---|---|---|---|---|"
end

local results, skipped, failed = {}, nil, false
if not given.netns then measure_all(LOOPBACK, results) end
if not given.loopback then
  local cable, why = cables.new()
  if cable then
    local fine, message = pcall(measure_all, cabled(cable), results)
    cable:remove()
    if not fine then error(message, 0) end
  else
    skipped = "no network namespaces: " .. why
    io.stderr:write("tcp: ", skipped, "\n")
  end
end
for _, one in ipairs(results) do failed = failed or one.failed end
if given.json then
  print(cjson.encode { bench = "tcp", transport = TRANSPORT, rows = results,
                       skipped = skipped,
                       machine = machine.describe { pin = { 0, 1 } } })
end
os.exit(failed and 1 or 0)
