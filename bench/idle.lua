-- SPDX-License-Identifier: Apache-2.0
-- The costs of idle sessions for a busy one: the p50 and p99 of a 64 B inplace
-- echo with a server that also has COUNT idle sessions, and with a server that
-- has none. The two take turns. Processes of their own hold the idle sessions.
-- With --cable (as root) these are on another host, made by network namespaces,
-- so that both sides of each session send heartbeats every second.
--
--   luajit bench/idle.lua [--idle 950,5000] [--over tcp] [--busy shm,tcp]
--                         [--cable] [--json]      (--help tells all)

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local argparse = require "argparse"
local cables = require "bench.lib.cable"
local calls = require "bench.lib.calls"
local ffi = require "ffi"
local json = require "perigee.bench.json"
local machine = require "bench.lib.machine"
local perigee = require "perigee"
local process = require "bench.lib.process"
local text = require "perigee.bench.table"
local turns = require "bench.lib.turns"

local A_CROWD, SIZE = 2500, 64
local SCOPE = "bench-idle"
local TARGETS = { p50_ratio = 1.1, p99_ratio = 5 }

local parser = argparse("luajit bench/idle.lua",
                        "What idle sessions cost a busy one.")
parser:option("--idle", "Numbers of idle sessions."):convert(turns.words)
  :default "950,5000"
parser:option("--over", "What they are over: tcp, shm."):convert(turns.words)
  :default "tcp"
parser:option("--busy", "What the busy one is over: shm, tcp.")
  :convert(turns.words):default "shm,tcp"
parser:option("--turns", "Turns of each of the two servers."):convert(tonumber)
  :default "8"
parser:option("--seconds", "Time of one turn."):convert(tonumber):default "0.5"
parser:flag("--cable", "Idle sessions are from another network namespace.")
parser:flag("--json", "One JSON document instead of the table.")
parser:option("--role"):hidden(true)
parser:option("--at"):hidden(true)
parser:option("--transport"):hidden(true)
parser:option("--count"):convert(tonumber):hidden(true)
parser:option("--parent"):convert(tonumber):hidden(true)
local given = parser:parse()

-- ---- The other processes ----------------------------------------------------

local function engine_of(sessions)
  return assert(perigee.engine { sessions = sessions,
                                 advanced = { hellos = 256,
                                              hello_timeout = 20 },
                                 insecure = true, scope = SCOPE })
end

local function copy(request, reply)
  ffi.copy(reply.pointer, request.pointer, SIZE)
  return SIZE
end

local ROLES = {}

function ROLES.server()
  process.pin(0, process.cores() - 1)
  local agent = assert(perigee.agent {
    scope = SCOPE,
    listen = { given.at, "unix:@perigee-idle-" .. process.pid() },
    engine = { sessions = 2 * given.count + 64, insecure = true,
               advanced = { hellos = 256, hello_timeout = 20 } },
    services = { { name = "bench", version = 1, methods = {
      copy = { raw = true, inplace = true, copy },
    } } },
  })
  turns.tell(table.concat(agent.addresses, " "))
  perigee.run()
end

-- Holds sessions and does nothing else.
function ROLES.crowd()
  local engine = engine_of(given.count + 16)
  for _ = 1, given.count do
    assert(engine:connect(given.at, { transport = given.transport,
                                      timeout = 60 }))
  end
  turns.tell "there"
  perigee.run()
end

-- Takes a turn of that many seconds for each line that it reads.
function ROLES.client()
  process.pin(0, 0)
  local agent = assert(perigee.agent { scope = SCOPE, insecure = true,
                                       transport = given.transport })
  local proxy = assert(agent:proxy(given.at, "bench"))
  local step = calls.inplace(proxy, SIZE)
  turns.take(step)
end

if given.role then
  process.die_with_parent(given.parent)
  return ROLES[given.role]()
end

-- ---- The driver -------------------------------------------------------------

local function server(cable, count)
  local _, line = turns.start("server", {
    at = ("tcp://%s:0"):format(cable and cable.at or "127.0.0.1"),
    count = count }, cable and cable.far)
  local tcp, unix = line:match "^(%S+) (%S+)$"
  return { tcp = tcp, shm = unix }
end

local function crowd(cable, address, transport, count)
  while count > 0 do
    local some = math.min(count, A_CROWD)
    turns.start("crowd", { at = address, count = some,
                           transport = transport }, cable and cable.near)
    count = count - some
  end
end

-- Measures the same busy session at both servers in turns; returns a row.
local function compare(cable, servers, busy)
  local clients, alone, beside = {}, {}, {}
  for i = 1, 2 do
    clients[i] = turns.start("client", {
      at = servers[i][busy], transport = busy }, cable and cable.far)
  end
  for k = 1, given.turns do
    alone[k] = turns.turn(clients[1], given.seconds)
    beside[k] = turns.turn(clients[2], given.seconds)
  end
  for _, client in ipairs(clients) do client:stop() end
  local row = { busy = busy, size = SIZE }
  local calls_alone = turns.middle(alone, "count") * 1e3
  local calls_beside = turns.middle(beside, "count") * 1e3
  row.calls_per_s = calls_beside / given.seconds
  row.rate_ratio = calls_beside / calls_alone
  for _, name in ipairs { "p50", "p99" } do
    local before, after = turns.middle(alone, name), turns.middle(beside, name)
    row[name .. "_alone_us"], row[name .. "_us"] = before, after
    row[name .. "_ratio"] = after / before
  end
  return row
end

local LINE = "%6s %-5s %-5s %9s %9s %6s   %9s %9s %6s   %6s"

local function show(row)
  if given.json then return end
  local n = text.number
  print(LINE:format(row.idle, row.over, row.busy, n(row.p50_alone_us),
                    n(row.p50_us), n(row.p50_ratio, 2), n(row.p99_alone_us),
                    n(row.p99_us), n(row.p99_ratio, 2),
                    n(row.rate_ratio, 2)))
  io.flush()
end

local rows = {}

local function measure(cable, count, over)
  local servers = { server(cable, 0), server(cable, count) }
  crowd(cable, servers[2][over], over, count)
  process.sleep(1)
  for _, busy in ipairs(given.busy) do
    local row = compare(cable, servers, busy)
    row.idle, row.over = count, over
    rows[#rows + 1] = row
    show(row)
  end
  turns.stop()
end

local function run(cable)
  if not given.json then
    print(LINE:format("idle", "over", "busy", "p50 alone", "beside", "times",
                      "p99 alone", "beside", "times", "calls")
          .. "   (us)")
  end
  for _, over in ipairs(given.over) do
    for _, count in ipairs(given.idle) do
      measure(cable, tonumber(count), over)
    end
  end
end

local cable, why
if given.cable then
  process.setenv("PERIGEE_SECRET", ("%x-%.0f"):format(process.pid(),
                                                      process.now()))
  cable, why = cables.new()
  if not cable then error(why, 0) end
end
local fine, message = pcall(run, cable)
turns.stop()
if cable then cable:remove() end
if not fine then error(message, 0) end
if given.json then
  print(json.document({ bench = "idle",
                        transport = table.concat(given.over, ","),
                        machine = machine.describe {
                          pin = { 0, process.cores() - 1 } },
                        figures = TARGETS, rows = rows }, "idle"))
end
