-- SPDX-License-Identifier: Apache-2.0
-- Measures how long a wait should poll before it sleeps: calls of engines that
-- learn that time (the default), next to the same calls with fixed times. Each
-- variant has processes of its own, and all of them take turns.
--
--   shared   a client and a server on one core: a typed call
--   crowd    a client and eight servers on two cores: a typed call to each at
--            once, till all have answered
--   pinned   a client and a server, each on a core of its own: a typed call
--   beside   the same, while somebody else computes on each of the two cores
--
--   luajit bench/spin.lua [--mode shared,crowd,pinned,beside]
--                         [--fixed 0,10,50,200] [--turns 8] [--seconds 0.3]
--                         [--json]                      (--help tells all)

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local argparse = require "argparse"
local calls = require "bench.lib.calls"
local json = require "perigee.bench.json"
local machine = require "bench.lib.machine"
local perigee = require "perigee"
local process = require "bench.lib.process"
local text = require "perigee.bench.table"
local turns = require "bench.lib.turns"

local SCOPE = "bench-spin"
-- A mode's servers, the cores of its client and its servers, and its goal: a
-- multiple of the best fixed time's figure, or of that of one fixed time.
local MODES = {
  shared = { servers = 1, client = "0", server = "0", reach = 1.1, of = "0" },
  crowd = { servers = 8, client = "0,1", server = "0,1", reach = 1.15 },
  pinned = { servers = 1, client = "0", server = "1", reach = 1, of = "50" },
  beside = { servers = 1, client = "0", server = "1", hogs = true },
}

local function modes(list)
  local all = turns.words(list)
  for _, mode in ipairs(all) do
    if not MODES[mode] then return nil, "there is no mode " .. mode end
  end
  return all
end

local parser = argparse("luajit bench/spin.lua", "How long a wait should poll.")
parser:option("--mode", "What is measured: shared, crowd, pinned, beside.")
  :convert(modes):default "shared,crowd,pinned,beside"
parser:option("--fixed", "Fixed times of polling to compare with, in us.")
  :convert(turns.words):default "0,10,50,200"
parser:option("--turns", "Turns of each."):convert(tonumber):default "8"
parser:option("--seconds", "Time of one turn."):convert(tonumber):default "0.3"
parser:flag("--json", "One JSON document instead of the table.")
parser:option("--role"):hidden(true)
parser:option("--cores"):convert(turns.words):hidden(true)
parser:option("--spin"):hidden(true)
parser:option("--at"):convert(turns.words):hidden(true)
parser:option("--parent"):convert(tonumber):hidden(true)
local given = parser:parse()

-- ---- The other processes ----------------------------------------------------

local function engine_options()
  if given.spin == "own" then return {} end
  return { spin = tonumber(given.spin) * 1e-6,
           advanced = { spin_always = true } }
end

local ROLES = {}

function ROLES.server()
  local agent = assert(perigee.agent {
    scope = SCOPE, listen = "unix:@perigee-spin-" .. process.pid(),
    engine = engine_options(),
    services = { { name = "bench", version = 1, methods = {
      add = function(a, b) return a + b end,
    } } },
  })
  turns.tell(agent.addresses[1])
  perigee.run()
end

-- Keeps its core busy.
function ROLES.hog()
  turns.tell "there"
  local x = 0
  while true do x = (x + 1) % 1000 end
end

-- Makes a typed call to each server at once and waits for all answers.
local function broadcast(proxies)
  local a, futures = 0, {}
  return function(samples, capacity, until_ns)
    local n, ended = 0
    repeat
      a = a + 1
      local begin = process.now()
      for i, proxy in ipairs(proxies) do futures[i] = proxy.async:add(a, i) end
      for i, future in ipairs(futures) do
        if assert(future:wait()) ~= a + i then error "a wrong sum" end
      end
      ended = process.now()
      samples[n] = ended - begin
      n = n + 1
    until n >= capacity or ended >= until_ns
    return n
  end
end

-- Takes a turn of that many seconds for each line that it reads.
function ROLES.client()
  local agent = assert(perigee.agent { scope = SCOPE,
                                       engine = engine_options() })
  local proxies = {}
  for i, address in ipairs(given.at) do
    proxies[i] = assert(agent:proxy(address, "bench"))
  end
  local step = #proxies == 1 and calls.typed(proxies[1]) or broadcast(proxies)
  turns.take(step)
end

if given.role then
  process.die_with_parent(given.parent)
  assert(process.pin(0, unpack(given.cores)))
  return ROLES[given.role]()
end

-- ---- The driver -------------------------------------------------------------

local function ready(mode, spin)
  local addresses = {}
  for i = 1, mode.servers do
    local _, address = turns.start("server", { cores = mode.server,
                                               spin = spin })
    addresses[i] = address
  end
  return (turns.start("client", { cores = mode.client, spin = spin,
                                  at = table.concat(addresses, ",") }))
end

local function row_of(name, spin, taken)
  local row = { mode = name, spin = spin, calls = 0 }
  for _, one in ipairs(taken) do row.calls = row.calls + one.count end
  for _, value in ipairs { "mean", "p50", "p99" } do
    row[value .. "_us"] = turns.middle(taken, value)
  end
  return row
end

-- Returns the row that the default is compared with: the best of the fixed
-- times, or a given one.
local function rival(rows, of)
  local best
  for _, row in ipairs(rows) do
    if row.spin ~= "own" and (not of or row.spin == of)
      and (not best or row.mean_us < best.mean_us) then
      best = row
    end
  end
  return best
end

local LINE = "%-8s %6s %10s %10s %10s   %s"

local function show(row)
  if given.json then return end
  local n = text.number
  local ratio = row.ratio and ("%s of spin = %s"):format(n(row.ratio, 2),
                                                         row.rival) or ""
  print(LINE:format(row.mode, row.spin, n(row.mean_us), n(row.p50_us),
                    n(row.p99_us), ratio))
  io.flush()
end

local rows = {}

local function measure(name)
  local mode, spins, clients, taken = MODES[name], { "own" }, {}, {}
  for _, spin in ipairs(given.fixed) do spins[#spins + 1] = spin end
  for i, spin in ipairs(spins) do
    clients[i], taken[i] = ready(mode, spin), {}
  end
  if mode.hogs then
    turns.start("hog", { cores = mode.client })
    turns.start("hog", { cores = mode.server })
  end
  for k = 1, given.turns do
    for i = 1, #spins do
      taken[i][k] = turns.turn(clients[i], given.seconds)
    end
  end
  turns.stop()
  local found = {}
  for i, spin in ipairs(spins) do found[i] = row_of(name, spin, taken[i]) end
  local other = rival(found, mode.of)
  if other then
    found[1].ratio = found[1].mean_us / other.mean_us
    found[1].rival, found[1].reach = other.spin, mode.reach
  end
  for _, row in ipairs(found) do
    rows[#rows + 1] = row
    show(row)
  end
end

local function run()
  if not given.json then
    print(LINE:format("mode", "spin", "mean", "p50", "p99",
                      "ratio of means (us)"))
  end
  for _, name in ipairs(given.mode) do measure(name) end
end

local fine, message = pcall(run)
turns.stop()
if not fine then error(message, 0) end
if given.json then
  print(json.document({ bench = "spin", transport = "shm",
                        machine = machine.describe { pin = { 0, 1 } },
                        figures = {}, rows = rows }, "mode"))
end
