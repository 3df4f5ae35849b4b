-- SPDX-License-Identifier: Apache-2.0
-- A task of a peer: it makes operations of random kinds with random peers, one
-- after another, and checks all that comes back. Now and then it cancels one,
-- and often it closes the session under the other tasks' operations. A task
-- works by one of its peer's sides (peer.lua): an agent, and what is known of
-- the targets there.

local ledger = require "bench.lib.soak.ledger"
local letter = require "bench.lib.soak.letter"
local operations = require "bench.lib.soak.operations"
local perigee = require "perigee"

local LONGEST = 6 -- timeouts of one operation, one after another
local LEAVES = 20 -- operations of a task between two sessions that it closes
local random = math.random

-- Ends that a peer which dies, stops, is slow or closes may cause.
local EXPECTED = { timeout = true, peer_lost = true, closed = true,
                   cancelled = true, stale = true, not_found = true,
                   denied = true, no_memory = true }
-- Ends that faults on purpose may cause besides.
local BY_FAULTS = { protocol = true, too_large = true, version = true,
                    unsupported = true, range = true, remote = true }

local M = {}
local Task = {}
Task.__index = Task

-- ---- Targets ---------------------------------------------------------------

-- Returns the target's session, kept session and proxy, and opens what is
-- missing.
local function reach(self, who)
  local peer, side = self.peer, self.side
  local to = side.targets[who] or { who = who }
  side.targets[who] = to
  local name, options = peer.name_of(who), { timeout = peer.timeout }
  local session, err = side.agent:session(name, options)
  if not session then return nil, err end
  to.session = session
  if not to.kept then
    to.kept, err = side.agent:session(name, { timeout = peer.timeout,
                                              keep = true })
    if not to.kept then return nil, err end
  end
  if not to.proxy then
    to.proxy, err = side.agent:proxy(name, "soak", options)
  end
  return to.proxy and to, err
end

--- Closes the session with a target of a side, under whatever is going on
-- there, or only what holds it. Waits for nothing.
function M.leave(side, who)
  local to = side.targets[who]
  if not to then return end
  side.targets[who] = nil
  if to.proxy then to.proxy:close() end
  if to.kept and random(2) == 1 then to.kept:close() end
  if to.session and random(4) > 1 then to.session:close() end
end

--- Closes the session with some target of a peer.
function M.leave_any(peer)
  M.leave(peer.sides[random(#peer.sides)], random(peer.peers) - 1)
end

-- ---- The task --------------------------------------------------------------

-- Nothing is written to this memory after an end that was not a success.
local function untouched(self)
  local length = 4096
  letter.fill(self.into.pointer, length, self.peer.who, self.peer.life, 0)
  perigee.sleep(0.005)
  local why = letter.differs(self.into.pointer, length, self.peer.who,
                             self.peer.life, 0)
  if why then
    ledger.fault("mismatch", "memory was written after the end: %s", why)
  end
end

local function how_of(peer, kind, ok, err)
  if ok then return "ok" end
  local how = perigee.is_error(err) and err.kind or "remote"
  if not EXPECTED[how] and not (peer.faults and BY_FAULTS[how]) then
    ledger.fault("unexpected end", "%s: %s", kind, tostring(err))
  end
  return how
end

-- The number of a target: another peer, or from the second agent on this one,
-- too.
local function choose(self)
  local peer = self.peer
  if self.side ~= peer.sides[1] then return random(peer.peers) - 1 end
  return (peer.who + random(peer.peers - 1)) % peer.peers
end

local function one(self)
  local peer, who = self.peer, choose(self)
  local kind = peer.mix[random(#peer.mix)]
  local entry = ledger.begin(kind, LONGEST * peer.timeout)
  local fine, ok, err = pcall(function()
    local to, why = reach(self, who)
    if not to then return nil, why end
    if random(64) == 1 then return operations.cancelled(self, to) end
    return operations.OPERATIONS[kind](self, to)
  end)
  if not fine then
    ledger.finish(entry, "raised")
    return ledger.fault("raised", "%s: %s", kind, tostring(ok))
  end
  local how = how_of(peer, kind, ok, err)
  ledger.finish(entry, how)
  if how == "closed" then self.side.targets[who] = nil end
  if how ~= "ok" then untouched(self) end
  if random(LEAVES) == 1 then M.leave(self.side, who) end
end

local function memory(peer, side)
  local length = math.max(peer.bulk, operations.LONGEST)
  return assert(side.agent.engine:alloc(length)):slice()
end

--- Runs a task of this peer while the peer is going. number: from 0.
function M.run(peer, number)
  local self = peer.tasks[number]
  if not self then
    local side = peer.sides[number % #peer.sides + 1]
    self = setmetatable({
      peer = peer, side = side, patience = { timeout = peer.timeout },
      slot = peer.who * peer.task_count + number,
      out = memory(peer, side), into = memory(peer, side) }, Task)
    self.leave = function(to) M.leave(side, to.who) end
    peer.tasks[number] = self
  end
  ledger.enter("task " .. number)
  while peer.going do
    one(self)
    if peer.after then peer.after() end
    if peer.pause > 0 then perigee.sleep(peer.pause) end
  end
  ledger.leave()
end

return M
