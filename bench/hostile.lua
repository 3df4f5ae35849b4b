-- SPDX-License-Identifier: Apache-2.0
-- The costs of attacks for honest clients: 64 B echoes and connects, alone and
-- beside each attack of spec/hostile, in turns in the same run. See
-- bench/running.md.
--
--   luajit bench/hostile.lua [--only TEXT] [--transport shm|tcp] [--json] ...

local here = arg[0]:match ".*/" or "./"
-- its child processes are those of the specs
if not os.getenv "PERIGEE_BUILD" then
  local words = { ("cd %q.. && exec spec/support/with luajit bench/hostile.lua")
    :format(here) }
  for i, word in ipairs(arg) do words[i + 1] = ("%q"):format(word) end
  os.exit(os.execute(table.concat(words, " ")) == 0 and 0 or 1)
end

dofile(here .. "tree.lua")
local argparse = require "argparse"
local bench = require "bench.lib.process"
local cases = require "spec.support.cases"
local ffi = require "ffi"
local json = require "perigee.bench.json"
local judge = require "spec.hostile.judge"
local machine = require "bench.lib.machine"
local process = require "spec.support.process"
local scenarios = require "spec.hostile.scenarios"
local text = require "perigee.bench.table"

local MIB, TO_REACH, MEMORY = 2 ^ 20, 5, 16
local SETTLE = 1 -- seconds after an attack

ffi.cdef [[
  int bench_policy(int, int, const int *) __asm__("sched_setscheduler");
]]

local function command_line()
  local parser = argparse("luajit bench/hostile.lua",
    "Honest clients alone and beside each attack of spec/hostile.")
  parser:option("--only", "Attacks with this text in their name.")
    :argname "TEXT"
  parser:option("--transport", "shm or tcp."):default "shm"
  parser:option("--seconds", "Of each turn, alone and beside.")
    :convert(tonumber):default "2"
  parser:option("--turns", "Alone, beside, alone, beside, ...: how often.")
    :convert(tonumber):default "3"
  parser:option("--pause", "Seconds between the calls of the honest client.")
    :convert(tonumber):default "0.001"
  parser:option("--pin", "Cores of who calls, honest or not, and the server.")
    :convert(function(cores)
      local a, b = cores:match "^(%d+),(%d+)$"
      return a and { tonumber(a), tonumber(b) }
    end):default(bench.cores() > 1 and "0,1" or "0,0")
  parser:option("--seed", "Of what attackers choose by chance.")
    :convert(tonumber):default "1"
  parser:flag("--json", "Print one JSON document in place of the table.")
  return parser:parse()
end

local given = command_line()

local function median(values)
  table.sort(values)
  return values[math.ceil(#values / 2)]
end

-- ---- A row -----------------------------------------------------------------

-- Adds what the clients report of a turn to `where`.
local function note(case, where)
  for _, name in ipairs { "calling", "coming" } do
    local told = assert(judge.report(case[name]))
    local list = where[name]
    list.p50[#list.p50 + 1], list.p99[#list.p99 + 1] = told.p50, told.p99
    list.made = list.made + told.made
    list.failed = list.failed + told.failed
    list.longest = math.max(list.longest, told.longest)
    if told.failed > 0 then list.why = told.why end
  end
end

local function figures()
  local function one()
    return { p50 = {}, p99 = {}, made = 0, failed = 0, longest = 0 }
  end
  return { calling = one(), coming = one() }
end

local function forget(case)
  judge.report(case.calling)
  judge.report(case.coming)
end

-- Runs one turn beside the attack. Returns by how much the server's memory has
-- grown one second after the attack ended.
local function beside(case, one, where)
  case.said = {}
  forget(case)
  local before = assert(case:stats()).memory
  case:suffer({ one }, given.seconds)
  if #case.said > 0 then error(case.said[1], 0) end
  note(case, where)
  process.usleep(SETTLE)
  return assert(case:stats()).memory - before
end

-- Moves an attacker to the clients' core with SCHED_IDLE, so that it does not
-- delay them. At nice 19 it would keep the core to the end of its slice (4 ms)
-- when another process wakes up.
local function step_aside(pid)
  local SCHED_IDLE = 5
  bench.pin(pid, given.pin[1])
  ffi.C.bench_policy(pid, SCHED_IDLE, ffi.new "int[1]")
end

local function attackers_step_aside(case)
  local start = case.attacker
  function case.attacker(...)
    local child = start(...)
    step_aside(child.pid)
    return child
  end
end

local function clients(case, one)
  if not (one.judge and one.judge.serves) then
    case.calling = case:client("call", given.pause)
  end
  case.coming = case:client("connect", 20 * given.pause)
  for _, child in ipairs { case.calling, case.coming } do
    judge.is_ready(child)
    assert(bench.pin(child.pid, given.pin[1]))
  end
  assert(bench.pin(case.victim.pid, given.pin[2]))
end

local function turns(case, one)
  local alone, attacked, grown, count = figures(), figures(), 0, 0
  attackers_step_aside(case)
  clients(case, one)
  for _ = 1, given.turns do
    forget(case)
    process.usleep(given.seconds)
    note(case, alone)
    grown = math.max(grown, beside(case, one, attacked))
    count = count + (case.count or 0)
  end
  return alone, attacked, grown, count
end

local function us(value) return value * 1e6 end

local function row_of(one, alone, attacked, grown, count)
  local a, b = alone.calling, attacked.calling
  local row = {
    mode = one.name, size = 64, window = 1, calls = b.made,
    p50_us = us(median(b.p50)), p99_us = us(median(b.p99)),
    longest_us = us(b.longest), alone_p50_us = us(median(a.p50)),
    alone_p99_us = us(median(a.p99)), calls_failed = b.failed,
    connects = attacked.coming.made, connects_failed = attacked.coming.failed,
    connect_p99_us = us(median(attacked.coming.p99)),
    alone_connect_p99_us = us(median(alone.coming.p99)),
    grown_mib = grown / MIB, attacks = count, why = b.why
      or attacked.coming.why,
  }
  row.ratio = row.p50_us / row.alone_p50_us
  row.p99_ratio = row.p99_us / row.alone_p99_us
  row.verdict = row.p99_ratio <= TO_REACH and row.grown_mib <= MEMORY
    and row.calls_failed + row.connects_failed == 0 and "reached" or "missed"
  return row
end

local function measure(one)
  local case = judge.case { transport = given.transport, seed = given.seed,
                            encrypt = one.encrypt, scale = 1 }
  local fine, alone, attacked, grown, count = pcall(turns, case, one)
  pcall(case.close, case)
  cases.cleanup()
  if fine then return row_of(one, alone, attacked, grown, count) end
  local why = tostring(alone):gsub("%s+", " "):sub(1, 120)
  return { mode = one.name, size = 64, verdict = "missed", why = why }
end

-- ---- All of them -----------------------------------------------------------

local function line(row)
  if not row.calls then
    return ("| %s | - | - | - | - | - | - | - | - | missed: %s |")
      :format(row.mode, row.why)
  end
  local number = text.number
  return ("| %s | %s | %s | %s | %s | %.1f x | %d of %d | %d of %d | %.1f | "
    .. "%s |"):format(row.mode, number(row.alone_p50_us), number(row.p50_us),
    number(row.alone_p99_us), number(row.p99_us), row.p99_ratio,
    row.calls_failed, row.calls, row.connects_failed, row.connects,
    row.grown_mib, row.verdict)
end

if not given.json then
  print("| beside | p50 alone, us | p50 | p99 alone | p99 | p99 / alone "
    .. "| calls failed | connects failed | memory after, MiB | 5 x |")
  print "|---|---|---|---|---|---|---|---|---|---|"
end

local rows = {}
for _, one in ipairs(scenarios) do
  if one.on[given.transport] and not (one.judge and one.judge.serves)
    and (not given.only or one.name:find(given.only, 1, true)) then
    local row = measure(one)
    rows[#rows + 1] = row
    if not given.json then print(line(row)) end
    io.flush()
  end
end
if given.json then
  print(json.document({ bench = "hostile", transport = given.transport,
                        machine = machine.describe(given), figures = {},
                        rows = rows }, "mode"))
end
