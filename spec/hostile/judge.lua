-- SPDX-License-Identifier: Apache-2.0
-- Runs attacks beside honest clients and judges the result. The victim, two
-- honest clients (one calls, one connects) and each attacker are processes. A
-- scenario sets for the judge: serves (the attacker is a server, and the client
-- that calls is lured there), mortal (the attack may kill the attacker itself,
-- and then the next attacker goes on), crowd (the number of attackers at once),
-- more (further settings for the attacker), holds (once it says "held", it
-- keeps memory that must not count as the victim's, which has a control group
-- of its own), preload (a library of build/ that the attacker starts with).
--
-- before: victim and clients run; the judge notes memory and descriptors.
--
-- during: the attacker reports that the attack has begun, and that it is over.
--
-- after: one second later the judge looks at the memory (time that the victim
-- spent waiting for a core does not count). Then it asks the clients for their
-- results, and checks that everything the attack used was freed.
--
-- A verdict is a list of sentences about failures; it is empty if all is well.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local honest = require "spec.hostile.honest"
local memory_group = require "spec.support.memory_group"
local perigee = require "perigee"
local process = require "spec.support.process"
local victim = require "spec.hostile.victim"

local M = {}

local PRELOAD = os.getenv "PERIGEE_PRELOAD" or ""
local MIB = 2 ^ 20
local MEMORY = 16 * MIB         -- growth allowed to a victim
local GROUP = 300 * MIB         -- of a victim whose memory is limited
local MOST = 1152 * MIB         -- growth allowed for a moment: pool and some
local LONGEST = 2               -- seconds of a call or connect meanwhile
local FOUND = 3                 -- reports of an attacker that are shown
local PATIENCE = 30             -- seconds for the work of a busy machine
local PAUSE = 0.002             -- between the calls of honest clients

-- ---- Processes -------------------------------------------------------------

local function serving(child, perigee_, _, ...)
  require("spec.hostile.victim").serve(child, perigee_, ...)
end

local function being_honest(child, perigee_, _, kind, ...)
  require("spec.hostile.honest")[kind](child, perigee_, ...)
end

local function attacking(child, _, _, ...)
  require("spec.hostile.attacker").run(child, ...)
end

local Case = {}
Case.__index = Case

-- Starts the victim, and notes the address that clients use.
local function start_victim(self)
  local child = process.start(serving, tostring(self.encrypt), self.scale)
  self.victim = child
  local line = assert(child:read(PATIENCE * cases.slow))
  local unix, tcp = line:match "^(%S+) (%S+)$"
  self.address = self.transport == "tcp" and tcp or unix
  self.agent = assert(cases.agent(nil, { secret = victim.SECRET,
                                         transport = self.transport }))
  self.store = assert(self.agent:proxy(self.address, "store",
                                       { timeout = PATIENCE }))
end

function Case:client(kind, pause, lure)
  return process.start(being_honest, kind, self.address, self.transport, pause,
                       lure)
end

--- Waits until a client has made its first calls.
function M.is_ready(child)
  if child then child:expect("ready", PATIENCE * cases.slow) end
end

function Case:attacker(one, seconds, seed)
  local options = one.judge or {}
  local preload = options.preload
    and ("%s/%s"):format(os.getenv "PERIGEE_BUILD", options.preload)
  ffi.C.spec_setenv("PERIGEE_PRELOAD", preload or PRELOAD, 1)
  local child = process.start(attacking, one.file, options.serves and "" or
                       self.address, self.transport, seconds, seed, self.scale,
                       options.more or "")
  ffi.C.spec_setenv("PERIGEE_PRELOAD", PRELOAD, 1)
  return child
end

-- Starts a case with its victim. given: transport, encrypt, scale (1: it
-- accepts thousands of sessions), seed.
function M.case(given)
  local self = setmetatable({ transport = given.transport, scale = given.scale
    or 0, encrypt = given.encrypt, seed = given.seed or 1, said = {} }, Case)
  start_victim(self)
  return self
end

-- ---- What is measured ------------------------------------------------------

-- A value that /proc gives in KiB, in bytes; 0 if the process is gone.
local function bytes_of(child, word)
  local file = io.open(("/proc/%d/status"):format(child.pid))
  if not file then return 0 end
  local text = file:read "*a" or ""
  file:close() -- a process started next would inherit it
  return tonumber(text:match(word .. ":%s+(%d+)") or 0) * 1024
end

-- The seconds in which it was ready to run but had no core.
local function waited(child)
  local file = io.open(("/proc/%d/schedstat"):format(child.pid))
  if not file then return 0 end
  local text = file:read "*a" or ""
  file:close()
  return tonumber(text:match "^%d+ (%d+)" or 0) * 1e-9
end

-- The number of its descriptors without pidfds, and the number of pidfds. A
-- session gets a pidfd when its peer is known to be on this host, which may be
-- later.
local function files_of(child)
  local pipe = io.popen(("ls -l /proc/%d/fd 2>/dev/null"):format(child.pid))
  local text = pipe:read "*a"
  pipe:close()
  local _, all = text:gsub("%->", "")
  local _, held = text:gsub("%-> anon_inode:%[pidfd%]", "")
  return all - held, held
end

-- The end of the process, or nil if it runs.
local function ended(child)
  local how, number = child:wait(0)
  if not how then return nil end
  local fine, line = pcall(child.read, child, 0.2)
  local why = not fine and (": " .. tostring(line)) or ""
  return ("by %s %d%s"):format(how, number, why:sub(1, 400))
end

function Case:fail(text, ...)
  self.said[#self.said + 1] = text:format(...)
end

-- The victim's own counters; nil and the reason if it does not answer.
function Case:stats()
  if self.gone then return nil end
  local operations, pooled, sessions, refused, dropped = self.store:stats()
  if type(sessions) ~= "number" then
    return nil, tostring(pooled)
  end
  local files, held = files_of(self.victim)
  return { operations = operations, pooled = pooled, sessions = sessions,
           refused = refused, dropped = dropped,
           memory = bytes_of(self.victim, "VmRSS"), files = files, held = held }
end

-- Tells whether the victim lives; notes its death as a failure.
function Case:alive()
  if self.gone then return false end
  local how = ended(self.victim)
  if not how then return true end
  self.gone = true
  self:fail("the server died %s", how)
  return false
end

-- An honest client's results since its last report.
function M.report(child)
  child:tell "report"
  local line, why = child:read(PATIENCE * cases.slow)
  if not line then return nil, why end
  local made, failed, p50, p99, longest, first =
    line:match "^(%S+) (%S+) (%S+) (%S+) (%S+) (.*)$"
  return { made = tonumber(made), failed = tonumber(failed),
           p50 = tonumber(p50), p99 = tonumber(p99),
           longest = tonumber(longest), why = first }
end

-- ---- The attack ------------------------------------------------------------

-- Starts a scenario's attackers: the first is listened to, the others are the
-- rest of its crowd.
local function begin(self, one, left, seed)
  local options, crowd = one.judge or {}, {}
  for i = 1, options.crowd or 1 do
    crowd[i] = self:attacker(one, left, seed + 1000 * i)
  end
  if options.serves then
    local lure = assert(crowd[1]:read(PATIENCE * cases.slow))
    if not self.calling then
      self.calling = self:client("prey", PAUSE, lure)
      M.is_ready(self.calling)
    end
  end
  return crowd
end

-- An attacker keeps what it has done until it hears that it may go.
local function judge_held(self, state)
  local grown = self.group:shared() - self.shared
  if grown > MEMORY and not cases.sanitized then
    self:fail("%.1f MiB of the attacker's memory (%s) count as the server's",
              grown / MIB, state.one.name)
  end
  state.held = true
  state.crowd[1]:tell "go"
end

-- Handles what an attacker said; returns true if the attack is over.
local function heard(self, state, fine, line, why)
  if not fine then
    state.crashed = line
  elseif line == "there" then
    state.there = true
  elseif line == "held" then
    judge_held(self, state)
  elseif line and line:find "^done " then
    state.count = tonumber(line:match "%d+")
    return true
  elseif line and line:find "^found " then
    state.found = (state.found or 0) + 1
    if state.found > FOUND then return end
    self:fail("the attacker (%s): %s", state.one.name, line:sub(7))
  elseif why == "end of the child's output" then
    state.crashed = "it ended"
  end
  return state.crashed ~= nil
end

-- If an attacker died and may, starts the next with another seed. Returns true
-- if the attack is over for good.
local function over(self, state, ends)
  for _, child in ipairs(state.crowd) do child:close() end
  local options = state.one.judge or {}
  if not (state.crashed and options.mortal) then return true end
  if process.now() > ends then return true end
  state.crashed, state.seed = nil, state.seed + 1
  state.crowd = begin(self, state.one, ends - process.now(), state.seed)
end

local function listen(self, states, ends)
  local last = ends + PATIENCE * cases.slow
  local left = #states
  while left > 0 and process.now() < last and self:alive() do
    for _, state in ipairs(states) do
      if not state.over
        and heard(self, state, pcall(state.crowd[1].read, state.crowd[1],
                                     0.05 / #states))
        and over(self, state, ends) then
        state.over, left = true, left - 1
      end
    end
    self.peak = math.max(self.peak or 0, bytes_of(self.victim, "VmRSS"))
  end
end

local function judge_attacker(self, state)
  local name, mortal = state.one.name, (state.one.judge or {}).mortal
  self.count = state.count
  if not state.over then
    self:fail("the attacker (%s) hangs", name)
  elseif state.crashed and not mortal then
    self:fail("the attacker (%s) was none: %s", name, state.crashed)
  elseif not state.there then
    self:fail("there was no attack (%s): it was done 0 times", name)
  elseif (state.one.judge or {}).holds and not state.held then
    self:fail("the attacker (%s) did not hold what it did", name)
  end
end

-- Some attackers' memory is looked at while they hold it.
local function prepare_group(self, chosen)
  for _, one in ipairs(chosen) do
    if one.judge and one.judge.holds and not self.group then
      self.group = memory_group.of(self.victim.pid, GROUP)
      self.shared = self.group:shared()
    end
  end
end

--- Runs the attackers of these scenarios at once, to their end.
function Case:suffer(chosen, seconds)
  prepare_group(self, chosen)
  local states, ends = {}, process.now() + seconds
  for i, one in ipairs(chosen) do
    local seed = self.seed + 100 * i
    states[i] = { one = one, seed = seed,
                  crowd = begin(self, one, seconds, seed) }
  end
  listen(self, states, ends)
  for _, state in ipairs(states) do
    for _, child in ipairs(state.crowd) do child:close() end
    if not self.gone then judge_attacker(self, state) end
  end
end

-- ---- The verdict -----------------------------------------------------------

local function judge_client(self, child, what, longest)
  local how = ended(child)
  if how then return self:fail("the client that %s died %s", what, how) end
  local told, why = M.report(child)
  if not told then
    return self:fail("the client that %s does not answer: %s", what, why)
  end
  self[what] = told
  if told.failed > 0 then
    self:fail("%d of %d times the client that %s failed: %s", told.failed,
              told.made, what, told.why)
  end
  if told.longest > longest then
    self:fail("the client that %s once waited %.1f s", what, told.longest)
  end
end

local function judge_memory(self, before, after)
  if cases.sanitized then return end
  local grown = after.memory - before.memory
  if grown > MEMORY then
    self:fail("one second later the server has %.1f MiB more than before",
              grown / MIB)
  end
  local most = (self.peak or 0) - before.memory
  if most > MOST then
    self:fail("meanwhile the server had %.1f MiB more than before", most / MIB)
  end
end

local function judge_rest(self, before)
  local now, why
  local fine = cases.eventually(function()
    now, why = self:stats()
    return not now or now.files <= before.files
      and now.operations <= before.operations and now.pooled <= before.pooled
      and now.sessions <= before.sessions and now.held <= now.sessions
  end, PATIENCE * cases.slow)
  if not now then
    return self:fail("the server does not answer any more: %s", why)
  end
  if now.dropped > 0 then
    self:fail("the server's sessions were freed before %d events of them had "
      .. "come", now.dropped)
  end
  if fine then return end
  self:fail("the server keeps %d descriptors (%d before), %d peers' processes, "
    .. "%d operations (%d), %d pooled bytes (%d), %d sessions (%d)", now.files,
    before.files, now.held, now.operations, before.operations, now.pooled,
    before.pooled, now.sessions, before.sessions)
end

-- The counters once a session over TCP has its second socket, which it gets a
-- moment after it opened: when the number of descriptors stays for 0.4 s.
local function settled(self)
  local stats, same = assert(self:stats()), 0
  cases.eventually(function()
    process.usleep(0.1)
    local now = assert(self:stats())
    same = now.files == stats.files and same + 1 or 0
    stats = now
    return same == 4
  end, PATIENCE)
  return stats
end

-- Starts the clients. Returns the victim's figures without and with them.
local function prepare(self, chosen)
  local empty = settled(self)
  local lured = false
  for _, one in ipairs(chosen) do
    lured = lured or one.judge and one.judge.serves
  end
  self.calling = not lured and self:client("call", PAUSE) or nil
  self.coming = self:client("connect", 10 * PAUSE)
  M.is_ready(self.calling)
  M.is_ready(self.coming)
  local before = assert(self:stats())
  if self.calling then M.report(self.calling) end
  M.report(self.coming)
  return empty, before
end

-- Waits one second; time in which the process waits for a core does not count.
local function a_second_of(child)
  local begun, before = process.now(), waited(child)
  local function left()
    return begun + 1 + waited(child) - before - process.now()
  end
  while left() > 0 and process.now() < begun + PATIENCE * cases.slow do
    process.usleep(math.max(left(), 0.001))
  end
end

local function judge_one_second_later(self, before)
  if not self:alive() then return end
  a_second_of(self.victim)
  if not self:alive() then return end
  local after, why = self:stats()
  if after then return judge_memory(self, before, after) end
  self:fail("one second later the server does not answer: %s", why)
end

local function judge_clients(self)
  local longest = LONGEST * cases.slow
  if not self.gone then
    judge_client(self, self.calling, "calls", longest)
    judge_client(self, self.coming, "connects", longest)
  end
  if self.calling then self.calling:close() end
  self.coming:close()
end

--- Runs these scenarios at once for so many seconds; returns the verdict.
function Case:attacks(chosen, seconds)
  local empty, before = prepare(self, chosen)
  self:suffer(chosen, seconds)
  judge_one_second_later(self, before)
  judge_clients(self)
  if self:alive() then judge_rest(self, empty) end
  return self.said
end

function Case:close()
  if self.agent then self.agent:close() end
  self.victim:close()
  if self.group then self.group:close() end
end

M.honest, M.perigee = honest, perigee
return M
