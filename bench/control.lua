-- SPDX-License-Identifier: Apache-2.0
-- The costs of names at the control server, each row beside a floor where there
-- is one. The server is a process of its own, as `perigee ctrl serve` starts
-- it, with a file. See bench/README.md.
--
--   luajit bench/control.lua [--only look,ends] [--agents 10000] [--json]

local here = arg[0]:match ".*/" or "./"
dofile(here .. "tree.lua")
local argparse = require "argparse"
local json = require "perigee.bench.json"
local machine = require "bench.lib.machine"
local names = require "bench.lib.names"
local options = require "bench.lib.options"
local process = require "bench.lib.process"
local text = require "perigee.bench.table"
local turns = require "bench.lib.turns"
local verdict = require "bench.lib.verdict"
local wire = require "bench.lib.wire"

local MORE = 1000                       -- connections besides --agents

-- The measurings, and the rows that each returns: their names and goals.
local MEASURES = {
  { "watch", { "register to event at a watcher" } },
  { "connect", { "first call by name / by address" } },
  { "look", { "look-up / hello-world" } },
  { "rate", { "look-ups per second of --clients / hello-world" } },
  { "durable", { "registrations of --clients / SQLite x --clients",
                 0.5, 0.9 } },
  { "agents", { "renewals of --agents, of a core", 10, 5 },
    { "memory of a server with --agents", 64, 32 },
    { "memory that stays when they are gone", 16, 4 } },
  { "beside", { "look-up beside --agents connections / alone", 1.2, 1.05 } },
  { "ends", { "longest look-up while --names end", 50, 10 },
    { "memory that stays when they are gone", 16, 4 } },
}

local parser = argparse("luajit bench/control.lua",
                        "What names at the control server cost.")
parser:option("--only", "Which of them: watch, connect, look, rate, durable, "
              .. "agents, beside, ends."):convert(turns.words)
parser:option("--agents", "Agents, or idle connections.")
  :convert(options.whole):default "10000"
parser:option("--names", "Names that end at once.")
  :convert(options.whole):default "100000"
parser:option("--clients", "Connections that ask again at once.")
  :convert(options.whole):default "32"
parser:option("--turns", "Turns that server and floor take.")
  :convert(options.whole):default "4"
parser:option("--seconds", "Time of one turn."):convert(options.positive)
  :default "1"
parser:option("--head", "Option --head of the server (its own).")
  :convert(options.size)
parser:option("--pin", "Cores of the clients and the servers.")
  :convert(options.cores):default(process.cores() > 1 and "0,1" or "0,0")
parser:option("--folder", "Where the server's file is: on a disk, for what is "
              .. "durable."):default(os.getenv "TMPDIR" or "/tmp")
parser:flag("--json", "One JSON document instead of the table.")
parser:option("--role"):hidden(true)
parser:option("--parent"):convert(tonumber):hidden(true)
parser:option("--store"):hidden(true)
parser:option("--registry"):hidden(true)
local given = parser:parse()

-- ---- The other processes ----------------------------------------------------

local ROLES = {}

function ROLES.server()
  assert(process.pin(0, given.pin[2]))
  local words = { [0] = "perigee", "ctrl", "serve", "--store", given.store,
                  "--listen", "http://127.0.0.1:0", "--log",
                  given.store .. ".log", "--connections",
                  tostring(given.agents + MORE),
                  "--patience", "600" }
  if given.head then
    words[#words + 1] = "--head"
    words[#words + 1] = tostring(given.head)
  end
  os.exit(require "perigee.cli.main"(words), true)
end

function ROLES.callee()
  assert(process.pin(0, given.pin[2]))
  names.callee(given.registry, turns.tell)
end

if given.role then
  process.die_with_parent(given.parent)
  return ROLES[given.role]()
end

-- ---- What is measured ------------------------------------------------------

local folder = ("%s/perigee-bench-%d"):format(given.folder, process.pid())
local servers, floors, count = { folder = folder }, {}, 0

local function pins() return given.pin[1] .. "," .. given.pin[2] end

function servers.control()
  count = count + 1
  local child, url = turns.start("server", {
    store = ("%s/%d.db"):format(folder, count), pin = pins(),
    head = given.head, agents = given.agents })
  child.url, child.port = url, tonumber(url:match ":(%d+)$")
  child.token = require "perigee.registry.http.own".find(url)
  return child
end

function servers.hello(bytes)
  local child = assert(process.spawn { require "bench.lib.floor".folder
    .. "/floor_http", "--pin", pins(), bytes })
  floors[#floors + 1] = child
  child.port = tonumber((child:line() or ""):match "^port (%d+)$")
  if not child.port then error("floor_http is missing; run make", 0) end
  return child
end

function servers.role(name, more)
  more.pin = pins()
  return turns.start(name, more)
end

local function stop()
  turns.stop()
  while #floors > 0 do table.remove(floors):stop() end
end

-- ---- The table -------------------------------------------------------------

local LINE = "%-48s %10s %-22s %-8s %9s %9s %9s %9s  %s"
local rows = {}

local function show(row)
  if given.json then return end
  local n = text.number
  print(LINE:format(row.row, ("%.4g %s"):format(row.value, row.unit),
                    verdict.wanted(row), verdict.of(row, row.value),
                    row.per_s and ("%.0f/s"):format(row.per_s) or n(row.p50_us),
                    n(row.p99_us),
                    row.floor_per_s and ("%.0f/s"):format(row.floor_per_s)
                      or n(row.floor_p50_us),
                    n(row.floor_p99_us), row.floor or ""))
  io.flush()
end

local function note(one, ...)
  for i, row in ipairs { ... } do
    local goal = one[i + 1]
    row.measure, row.row = one[1], goal[1]
    row.reach, row.beyond = goal[2], goal[3]
    row.verdict = verdict.of(row, row.value)
    rows[#rows + 1] = row
    show(row)
  end
end

local function is_wanted(name)
  if not given.only then return true end
  for _, each in ipairs(given.only) do
    if each == name then return true end
  end
  return false
end

local function run()
  if not given.json then
    print(LINE:format("", "", "goal", "", "p50", "p99", "floor p50", "p99",
                      "floor   (us)"))
  end
  for _, one in ipairs(MEASURES) do
    if is_wanted(one[1]) then
      note(one, names[one[1]](given, servers))
      stop()
    end
  end
end

local function remove()
  assert(process.spawn { "rm", "-rf", folder }):wait()
end

if wire.files() < given.agents + MORE then
  error(("ulimit -Hn has to be %d"):format(given.agents + MORE), 0)
end
local pinned, why = process.pin(0, given.pin[1])
if not pinned then error(why, 0) end
assert(process.spawn { "mkdir", "-m", "700", folder }):wait()
-- The servers' tokens, which agents find by themselves.
process.setenv("XDG_RUNTIME_DIR", folder)
local fine, message = pcall(run)
stop()
remove()
if not fine then error(message, 0) end
if given.json then
  print(json.document({ bench = "control", transport = "tcp",
                        machine = machine.describe { pin = given.pin },
                        figures = {}, rows = rows }, "row"))
end
