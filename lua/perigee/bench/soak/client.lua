-- SPDX-License-Identifier: Apache-2.0
-- A task of a peer: it makes operations of random kinds with random peers, one
-- after another, and checks all that comes back. Now and then it cancels one,
-- or closes the session under its own and the other tasks' operations.

local ledger = require "perigee.bench.soak.ledger"
local letter = require "perigee.bench.soak.letter"
local operations = require "perigee.bench.soak.operations"
local perigee = require "perigee"

local LONGEST = 6 -- timeouts of one operation, one after another
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

-- Returns the target's session and proxies, and opens what is missing.
local function reach(self, who)
  local peer = self.peer
  local to = peer.targets[who] or { who = who }
  peer.targets[who] = to
  local session, err = peer.agent:session(peer.name_of(who),
                                          { timeout = peer.timeout })
  if not session then return nil, err end
  to.session = session
  if not to.proxy then
    to.proxy, err = peer.agent:proxy(peer.name_of(who), "soak",
                                     { timeout = peer.timeout })
  end
  return to.proxy and to, err
end

--- Closes the session with a target, under whatever is going on there.
function M.leave(peer, who)
  local to = peer.targets[who]
  if not to then return end
  peer.targets[who] = nil
  if to.proxy then to.proxy:close() end
  if to.session then to.session:close() end
end

-- ---- The task --------------------------------------------------------------

-- After an end that was not a success nothing is written to this memory.
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

local function one(self)
  local peer = self.peer
  local who = (peer.who + random(peer.peers - 1)) % peer.peers
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
  if how == "closed" then peer.targets[who] = nil end
  if how ~= "ok" then untouched(self) end
  if random(500) == 1 then M.leave(peer, who) end
end

local function memory(peer)
  local length = math.max(peer.bulk, operations.LONGEST)
  return assert(peer.agent.engine:alloc(length)):slice()
end

--- Runs a task of this peer while the peer is going. number: from 0.
function M.run(peer, number)
  local self = peer.tasks[number]
  if not self then
    self = setmetatable({
      peer = peer, patience = { timeout = peer.timeout },
      slot = peer.who * peer.task_count + number,
      out = memory(peer), into = memory(peer) }, Task)
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
