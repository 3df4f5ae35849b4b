-- SPDX-License-Identifier: Apache-2.0
-- The judge of the soak: starts the peers, disturbs them, and watches them from
-- outside. It uses nothing of Perigee but the monitor of RDMA devices.
--
-- Rounds of traffic and rests take turns. In a round peers are killed and
-- started again, stopped for seconds, and made slow. At a rest all go, sessions
-- are closed, and each process is looked at (watch.lua): what it has more than
-- at its first rest has leaked.
--
--   peer     event                            becomes
--   none     started; it says "ready"         ready
--   ready    the round begins                 busy
--   busy     SIGSTOP; SIGCONT                 stopped; busy
--   busy     SIGKILL                          none; started later
--   busy     told to stop; it says "idle"     idle
--   idle     told to settle; it says "rest"   ready

local cjson = require "cjson"
local process = require "bench.lib.process"
local watch = require "bench.lib.soak.watch"

local SIGKILL, SIGCONT, SIGSTOP = 9, 18, 19
local SHOWN = 10
local RESTS = 2 -- to see whether anything grows
local REPORTS = 2 -- seconds for peers that hang to tell where

local M = {}
local Judge = {}
Judge.__index = Judge

--- given: the command line; command(...): how to start a process of the soak
-- with these options besides; say(line): prints.
function M.new(given, command, say)
  return setmetatable({ given = given, command = command, say = say,
                        peers = {}, later = {},
                        faults = {}, count = 0, counts = {},
                        done = { kills = 0, stops = 0, slow = 0, rests = 0 },
                        dice = given.seed % 2147483646 + 1 }, Judge)
end

-- A whole number from 0 below limit.
function Judge:random(limit)
  self.dice = self.dice * 16807 % 2147483647
  return self.dice % limit
end

function Judge:fault(kind, text, ...)
  self.faults[kind] = (self.faults[kind] or 0) + 1
  self.count = self.count + 1
  if self.count <= SHOWN then
    self.say(("%s: %s"):format(kind, text:format(...)))
  end
end

-- ---- Peers -----------------------------------------------------------------

function Judge:start(who)
  local life = (self.peers[who] and self.peers[who].life or 0) + 1
  local child = assert(process.spawn(self.command("--role", "peer", "--who",
                                                  who, "--life", life)))
  child.peer = { who = who, life = life, child = child, state = "none",
                 figures = {}, counts = {} }
  self.peers[who] = child.peer
end

-- Adds what a life of a peer did to what all did.
function Judge:keep(peer)
  for kind, ends in pairs(peer.counts) do
    local of = self.counts[kind] or {}
    self.counts[kind] = of
    for how, n in pairs(ends) do of[how] = (of[how] or 0) + n end
  end
end

-- Looks at a peer that rests. Growth is told once.
local function weigh(self, peer)
  peer.figures[#peer.figures + 1] = watch.look(peer.child.pid)
  if peer.grown then return end
  for _, sentence in ipairs(watch.grown(peer.figures)) do
    peer.grown = true
    self:fault("growth", "peer %d, life %d, %s", peer.who, peer.life, sentence)
  end
end

local HEARD = {}

function HEARD.ready(_, peer) peer.state = "ready" end
function HEARD.idle(_, peer) peer.state = "idle" end

function HEARD.fault(self, peer, told)
  if told.kind == "missing end" then peer.hopeless = true end
  self:fault(told.kind, "peer %d, life %d: %s", peer.who, peer.life, told.text)
end

function HEARD.rest(self, peer, told)
  peer.state, peer.counts = "ready", told.counts
  if told.sessions + told.operations + told.pooled > 0 then
    self:fault("growth", "peer %d keeps %d sessions, %d operations, %d bytes "
      .. "of blocks, though nobody is there: %s", peer.who, told.sessions,
      told.operations, told.pooled, told.remains)
  end
  weigh(self, peer)
end

-- Handles a line, or the end, of a peer's output.
function Judge:hear(peer)
  local line = peer.child:line()
  if line then
    local told = cjson.decode(line)
    return HEARD[told.what](self, peer, told)
  end
  peer.state, peer.hopeless = "none", true
  self:fault("death", "peer %d, life %d ended with status %d", peer.who,
             peer.life, peer.child:wait())
end

function Judge:living()
  local children = {}
  for _, peer in pairs(self.peers) do
    if not peer.child.status then children[#children + 1] = peer.child end
  end
  return children
end

-- Hears the peers for so many seconds, or until what(peer) is true of all.
-- Returns whether it is.
function Judge:listen(seconds, what)
  local limit = process.now() + seconds * 1e9
  while true do
    local children, missing = self:living(), what == nil
    for _, peer in pairs(self.peers) do
      missing = missing or not (what(peer) or peer.hopeless)
    end
    local left = (limit - process.now()) * 1e-9
    if not missing then return true end
    if left <= 0 then return false end
    self:look_at_clock()
    for _, child in ipairs(process.readable(children,
                                            math.min(left, 0.05))) do
      self:hear(child.peer)
    end
  end
end

function Judge:tell(text)
  for _, child in ipairs(self:living()) do child:tell(text .. "\n") end
end

-- ---- Disturbances ----------------------------------------------------------

function Judge:in_a_while(seconds, f)
  self.later[#self.later + 1] = { at = process.now() + seconds * 1e9, f = f }
end

function Judge:look_at_clock(all)
  local now, due = process.now(), {}
  for i = #self.later, 1, -1 do
    if all or self.later[i].at <= now then
      due[#due + 1] = table.remove(self.later, i)
    end
  end
  for _, one in ipairs(due) do one.f() end
end

local TROUBLES = {}

function TROUBLES.kill(self, peer)
  self.done.kills = self.done.kills + 1
  peer.state = "none"
  peer.child:signal(SIGKILL)
  peer.child:wait()
  self:keep(peer)
  self:in_a_while(self:random(1500) / 1000, function() self:start(peer.who) end)
end

function TROUBLES.stop(self, peer)
  self.done.stops = self.done.stops + 1
  peer.state = "stopped"
  peer.child:signal(SIGSTOP)
  self:in_a_while((200 + self:random(4000)) / 1000, function()
    if peer.child.status then return end
    peer.child:signal(SIGCONT)
    peer.state = "busy"
  end)
end

function TROUBLES.slow(self, peer)
  self.done.slow = self.done.slow + 1
  peer.child:tell(("slow %g\n"):format((500 + self:random(4000)) / 1000))
end

local NAMES = { "kill", "stop", "slow" }

-- Disturbs one peer that is busy; a peer that was started meanwhile goes.
function Judge:disturb()
  local busy = {}
  for who = 0, self.given.peers - 1 do
    local peer = self.peers[who]
    if peer.state == "ready" then
      peer.state = "busy"
      peer.child:tell "go\n"
    elseif peer.state == "busy" then
      busy[#busy + 1] = peer
    end
  end
  if #busy < 2 or self.given.calm then return end
  local name = NAMES[self:random(#NAMES) + 1]
  local peer = busy[self:random(#busy) + 1]
  if name == "kill" and peer.who == 0 and self.given.plant then return end
  TROUBLES[name](self, peer)
end

-- ---- Rounds ----------------------------------------------------------------

local function is(state)
  return function(peer) return peer.state == state end
end

function Judge:must(state, what)
  if self:listen(self.given.patience, is(state)) then return end
  for _, peer in pairs(self.peers) do
    if peer.state ~= state and not peer.hopeless then
      self:fault("hang", "peer %d, life %d did not %s within %g s; %s",
                 peer.who, peer.life, what, self.given.patience,
                 watch.state(peer.child.pid))
      peer.child:tell "report\n"
    end
  end
  self:listen(REPORTS, function() return false end)
end

-- One round and its rest.
function Judge:round(seconds)
  local ends = process.now() + seconds * 1e9
  repeat
    self:disturb()
    local left = (ends - process.now()) * 1e-9
    local pause = self.given.every * (0.5 + self:random(1000) / 1000)
    self:listen(math.max(0, math.min(left, pause)))
  until process.now() >= ends
  self:look_at_clock(true)
  self:must_all_be_up()
  self:tell "stop"
  self:must("idle", "end its operations")
  if self:hopeless() then return end
  self:tell "settle"
  self:must("ready", "come to rest")
  self.done.rests = self.done.rests + 1
end

function Judge:must_all_be_up()
  self:listen(self.given.patience, function(peer)
    return peer.state == "ready" or peer.state == "busy"
  end)
end

-- Is there a peer that will not go on?
function Judge:hopeless()
  local faults = self.faults
  return faults["missing end"] or faults.hang or faults.death
end

-- A planted fault has until it is found, and the patience of a hang.
function Judge:has_enough(ends)
  if not self.given.plant then return self.done.rests >= RESTS end
  return self.count > 0
    or process.now() > ends + self.given.patience * 1e9
end

--- Runs rounds for that many seconds, RESTS at least; ends early if a peer is
-- beyond hope.
function Judge:run(seconds)
  local not_ready = watch.devices(self.given.transport)
  for who = 0, self.given.peers - 1 do self:start(who) end
  self:must("ready", "start")
  local ends, round = process.now() + seconds * 1e9,
                      math.min(self.given.round, seconds / 2)
  repeat
    self:round(round)
  until self:hopeless() or process.now() >= ends and self:has_enough(ends)
  for _, peer in pairs(self.peers) do self:keep(peer) end
  if not_ready() > 0 then
    self:fault("RNR", "a receiver was not ready %d times", not_ready())
  end
end

--- Ends all peers, whatever they are at.
function Judge:stop()
  for _, child in ipairs(self:living()) do
    child:signal(SIGKILL)
    child:wait()
  end
end

return M
