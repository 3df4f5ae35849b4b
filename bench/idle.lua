-- SPDX-License-Identifier: Apache-2.0
-- What idle sessions cost a busy one: the p50 and p99 of a 64 B inplace echo
-- with a server that has COUNT idle sessions besides, and with one that has
-- none. The two take turns. Idle sessions are held by processes of their own;
-- with --cable (as root) those are on another host, by network namespaces, so
-- that both sides of each say every second that they are there.
--
--   luajit bench/idle.lua [--idle 950,5000] [--over tcp] [--busy shm,tcp]
--                         [--cable] [--json]      (--help tells all)

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local argparse = require "argparse"
local cables = require "perigee.bench.cable"
local calls = require "perigee.bench.calls"
local ffi = require "ffi"
local histogram = require "perigee.bench.histogram"
local json = require "perigee.bench.json"
local machine = require "perigee.bench.machine"
local perigee = require "perigee"
local process = require "perigee.bench.process"
local text = require "perigee.bench.table"

local A_CROWD, SIZE, SAMPLES = 2500, 64, 1e6
local SCOPE = "bench-idle"
local TARGETS = { p50_ratio = 1.1, p99_ratio = 5 }

local function words(list)
  local all = {}
  for word in list:gmatch "[^,%s]+" do all[#all + 1] = word end
  return all
end

local parser = argparse("idle.lua", "What idle sessions cost a busy one.")
parser:option("--idle", "Numbers of idle sessions."):convert(words)
  :default "950,5000"
parser:option("--over", "What they are over: tcp, shm."):convert(words)
  :default "tcp"
parser:option("--busy", "What the busy one is over: shm, tcp."):convert(words)
  :default "shm,tcp"
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
  return assert(perigee.engine { sessions = sessions, hellos = 256,
                                 hello_timeout = 20,
                                 insecure = true, scope = SCOPE })
end

local function copy(request, reply)
  ffi.copy(reply.pointer, request.pointer, SIZE)
  return SIZE
end

local ROLES = {}

local function tell(line)
  io.write(line, "\n")
  io.flush()
end

function ROLES.server()
  process.pin(0, process.cores() - 1)
  local agent = assert(perigee.agent {
    scope = SCOPE,
    listen = { given.at, "unix:@perigee-idle-" .. process.pid() },
    engine = { sessions = given.count + 16, insecure = true, hellos = 256,
               hello_timeout = 20 },
    services = { { name = "bench", version = 1, methods = {
      copy = { raw = true, inplace = true, copy },
    } } },
  })
  tell(table.concat(agent.addresses, " "))
  perigee.run()
end

-- Holds sessions, and does nothing.
function ROLES.crowd()
  local engine = engine_of(given.count + 16)
  for _ = 1, given.count do
    assert(engine:connect(given.at, { transport = given.transport,
                                      timeout = 60 }))
  end
  tell "there"
  perigee.run()
end

-- For each line that comes a turn of so many seconds.
function ROLES.client()
  process.pin(0, 0)
  local agent = assert(perigee.agent { scope = SCOPE, insecure = true,
                                       transport = given.transport })
  local proxy = assert(agent:proxy(given.at, "bench"))
  local step = calls.inplace(proxy, SIZE)
  local samples = ffi.new("double[?]", SAMPLES)
  step(samples, SAMPLES, process.now() + 2e8)
  tell "there"
  for line in io.lines() do
    local seconds = tonumber(line)
    step(samples, SAMPLES, process.now() + seconds * 1e8)
    local taken = histogram.new()
    taken:add_all(samples, step(samples, SAMPLES,
                                process.now() + seconds * 1e9))
    tell(("%.0f %.0f %d"):format(taken:quantile(0.5), taken:quantile(0.99),
                                 taken.count))
  end
end

if given.role then
  process.die_with_parent(given.parent)
  return ROLES[given.role]()
end

-- ---- The driver -------------------------------------------------------------

local children = {}

local function start(namespace, role, options)
  local command = namespace and { "nsenter", "--net=" .. namespace } or {}
  for _, word in ipairs(process.interpreter()) do
    command[#command + 1] = word
  end
  for _, word in ipairs { arg[0], "--role", role, "--parent", process.pid() } do
    command[#command + 1] = word
  end
  for name, value in pairs(options) do
    command[#command + 1] = "--" .. name
    command[#command + 1] = value
  end
  local child = assert(process.spawn(command))
  children[#children + 1] = child
  return child, child:line() or error("a " .. role .. " did not start", 0)
end

local function end_children()
  while #children > 0 do table.remove(children):stop() end
end

local function server(cable, count)
  local _, line = start(cable and cable.far, "server", {
    at = ("tcp://%s:0"):format(cable and cable.at or "127.0.0.1"),
    count = count })
  local tcp, unix = line:match "^(%S+) (%S+)$"
  return { tcp = tcp, shm = unix }
end

local function crowd(cable, address, transport, count)
  while count > 0 do
    local some = math.min(count, A_CROWD)
    start(cable and cable.near, "crowd", { at = address, count = some,
                                           transport = transport })
    count = count - some
  end
end

local function turn(client, seconds)
  client:tell(seconds .. "\n")
  local p50, p99, count = (client:line() or ""):match "^(%d+) (%d+) (%d+)$"
  return { p50 = tonumber(p50), p99 = tonumber(p99), count = tonumber(count) }
end

local function middle(turns, name)
  local values = {}
  for i, one in ipairs(turns) do values[i] = one[name] end
  table.sort(values)
  return values[math.ceil(#values / 2)] / 1e3
end

-- The same busy session at both servers, by turns: a row.
local function compare(cable, servers, busy)
  local clients, turns = {}, { {}, {} }
  for i = 1, 2 do
    clients[i] = start(cable and cable.far, "client", {
      at = servers[i][busy], transport = busy })
  end
  for k = 1, given.turns do
    for i = 1, 2 do turns[i][k] = turn(clients[i], given.seconds) end
  end
  for _, client in ipairs(clients) do client:stop() end
  local row = { busy = busy, size = SIZE }
  row.calls_per_s = middle(turns[2], "count") * 1e3 / given.seconds
  row.rate_ratio = middle(turns[2], "count") / middle(turns[1], "count")
  for _, name in ipairs { "p50", "p99" } do
    local alone, beside = middle(turns[1], name), middle(turns[2], name)
    row[name .. "_alone_us"], row[name .. "_us"] = alone, beside
    row[name .. "_ratio"] = beside / alone
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
  end_children()
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
end_children()
if cable then cable:remove() end
if not fine then error(message, 0) end
if given.json then
  print(json.document({ bench = "idle",
                        transport = table.concat(given.over, ","),
                        machine = machine.describe {
                          pin = { 0, process.cores() - 1 } },
                        figures = TARGETS, rows = rows }, "idle"))
end
