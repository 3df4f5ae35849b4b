-- SPDX-License-Identifier: Apache-2.0
-- A process of the soak: an agent that serves, and tasks that call the other
-- peers' agents, by that one, and in every other process by a second one, too.
-- The judge (judge.lua) tells it by lines what to do:
--
--   go            traffic begins
--   slow SECONDS  so long it receives no message and serves typed calls late
--   stop          traffic ends: it answers "idle" when its own operations have
--                 ended and its own sessions are closed
--   settle        answers "rest", with what is left, when no session is left
--   report        tells as faults where each of its tasks is

local bit = require "bit"
local client = require "bench.lib.soak.client"
local descriptor = require "perigee.descriptor"
local ffi = require "ffi"
local ledger = require "bench.lib.soak.ledger"
local perigee = require "perigee"
local process = require "bench.lib.process"
local service = require "bench.lib.soak.service"

ffi.cdef "int open(const char *path, int flags, ...);"

local M = {}

local AFTER = 4             -- ends or payloads before one that is wrong
local LEAKED = 8            -- descriptors
local SETTLING = 20         -- seconds for others' sessions to end
local REMAINS = 1500        -- bytes that describe what is left of them

-- ---- Faults that are planted -----------------------------------------------

-- Each operation leaves files open; ends are lost; bytes are wrong.
local PLANTS = {}

function PLANTS.leak(peer)
  peer.after = function()
    for _ = 1, LEAKED do ffi.C.open("/dev/null", 0) end
  end
end

function PLANTS.lost(peer)
  local left = AFTER
  peer.lose = function()
    if peer.going then left = left - 1 end
    return left <= 0
  end
end

-- As an end whose number is used again.
function PLANTS.forgotten(peer)
  PLANTS.lost(peer)
  local lose = peer.lose
  peer.lose = function(event, engine)
    if not lose() then return false end
    engine.inflight[event.operation] = nil
    return true
  end
end

function PLANTS.flip()
  local letter, left = require "bench.lib.soak.letter", AFTER
  local fill = letter.fill
  letter.fill = function(pointer, length, ...)
    fill(pointer, length, ...)
    left = left - 1
    if left <= 0 then
      pointer[length / 2] = bit.bxor(pointer[length / 2], 1)
    end
  end
end

M.PLANTS = PLANTS

-- ---- What the judge tells --------------------------------------------------

local TOLD = {}

function TOLD.go(peer)
  peer.going = true
  perigee.spawn(service.keep_brief, peer)
  for i = 0, peer.task_count - 1 do perigee.spawn(client.run, peer, i) end
end

function TOLD.slow(peer, seconds)
  peer.slow_until = process.now() + tonumber(seconds) * 1e9
end

function TOLD.stop(peer)
  peer.going, peer.slow_until = false, 0
  while next(ledger.running) do perigee.sleep(0.005) end
  for _, side in ipairs(peer.sides) do
    side.targets = {}
    for _, session in pairs(side.agent.engine.sessions) do
      if not session.accepted then session:close() end
    end
  end
  ledger.say { what = "idle" }
end

-- Describes what is left of other peers.
local function remains(peer)
  local list = {}
  for _, side in ipairs(peer.sides) do
    for _, session in pairs(side.agent.engine.sessions) do
      list[#list + 1] = ("%s, %s: %s"):format(session,
        session.accepted and "accepted" or "dialled", session:explain())
    end
  end
  return table.concat(list, "\n"):sub(1, REMAINS)
end

-- The sum of what all engines of the peer hold for others.
local function held(peer)
  local all = { sessions = 0, operations = 0, pooled = 0 }
  for _, side in ipairs(peer.sides) do
    local stats = side.agent.engine:stats()
    for name, before in pairs(all) do all[name] = before + stats[name] end
  end
  return all
end

-- Waits until nothing is left of other peers, and tells what is.
function TOLD.settle(peer)
  local limit = process.now() + SETTLING * 1e9
  local has
  repeat
    perigee.sleep(0.01)
    collectgarbage()
    has = held(peer)
  until has.sessions == 0 and has.operations == 0 and has.pooled == 0
    or process.now() > limit
  collectgarbage()
  perigee.sleep(0.6) -- free blocks go back to the system after half a second
  for _, side in ipairs(peer.sides) do ledger.check_rest(side.agent.engine) end
  ledger.say { what = "rest", sessions = has.sessions, open = ledger.open,
               operations = has.operations, pooled = has.pooled,
               lua = collectgarbage "count" * 1024, counts = ledger.counts,
               faults = ledger.told, remains = remains(peer) }
end

-- Tells where each task is that has not ended.
function TOLD.report()
  for task, name in pairs(ledger.running) do
    ledger.fault("hang", "%s is at %s", name, debug.traceback(task))
  end
end

local function obey(peer, text)
  for line in text:gmatch "[^\n]+" do
    local word, more = line:match "^(%S+)%s*(.*)$"
    perigee.spawn(TOLD[word], peer, more)
  end
end

-- Lines are short, and the judge writes each at once.
local function listen(peer)
  local chunk = ffi.new "char[4096]"
  while descriptor.readable(0) do
    local got = tonumber(ffi.C.read(0, chunk, 4096))
    if got <= 0 then return perigee.stop() end
    obey(peer, ffi.string(chunk, got))
  end
end

-- ---- Starting --------------------------------------------------------------

-- Adds an agent of this peer's, and what its tasks know of others there.
local function add_side(peer, name)
  peer.sides[#peer.sides + 1] = { targets = {}, agent = assert(perigee.agent {
    name = name, scope = peer.scope, transport = peer.transport,
    engine = peer.options }) }
end

--- Runs the peer of that number. given: as judge.lua's command line says.
function M.run(given)
  local peer = {
    who = given.who, peers = given.peers, timeout = given.timeout,
    mix = given.mix, bulk = given.bulk, task_count = given.tasks, tasks = {},
    slot_count = given.peers * given.tasks, pause = given.pause,
    scope = given.scope, transport = given.transport, sides = {},
    options = { encrypt = given.encrypt, faults = given.faults
      and ("seed=%d %s"):format(given.seed * 1000 + given.who, given.faults)
      or nil },
    faults = given.faults, life = given.life, serial = 0,
    slow_until = 0,
    name_of = function(who) return "peer:" .. who end,
  }
  math.randomseed(given.seed * 1000 + given.who)
  if given.plant and given.who == 0 then PLANTS[given.plant](peer) end
  peer.leave_any = function() client.leave_any(peer) end
  add_side(peer, peer.name_of(peer.who))
  if peer.who % 2 == 1 then add_side(peer) end
  ledger.watch(perigee, given.grace, peer.lose)
  service.start(peer.sides[1].agent, peer)
  perigee.spawn(listen, peer)
  ledger.say { what = "ready" }
  perigee.run()
  for _, side in ipairs(peer.sides) do side.agent:close() end
end

return M
