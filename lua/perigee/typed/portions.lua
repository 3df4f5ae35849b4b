-- SPDX-License-Identifier: Apache-2.0
--- Decodes large messages in portions, so that they do not hold up the loop. A
-- portion takes a fraction of a millisecond. Each turn of the loop decodes one
-- portion of one message; the waiting messages take turns. Portions run on the
-- ready queue, so they make progress in every wait, in a task or not.
--
-- Each message has a job with these fields:
--   engine, session, served   of the message; served is false if it is no call
--   wanted(job)               returns whether the values are still needed
--   done(job, values, n)      is called once with the values and their number;
--                             with nil and why they cannot be decoded; or with
--                             nil if they are not needed. It runs on the loop
--                             and must not wait
--
-- LuaJIT cannot interrupt some steps: to make or traverse a large table, and to
-- enlarge its table of strings. After a portion that took long, all decoding
-- rests if events came meanwhile, so that few other operations are delayed.
--
--   decoding  event                                     becomes
--   waits     it is the first, and the loop has turned  has its portion
--   has it    there is more                             waits, the last of all
--   has it    that is the end, or nobody wants it       done
--   has it    an interrupt                              waits, to begin anew
local codec = require "perigee.typed.codec"
local collector = require "perigee.runtime.collector"
local decoder = require "perigee.typed.decoder"
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"
local timers = require "perigee.runtime.timers"

local C = native.C
local min = math.min
local now, park, state = loop.now, loop.park, loop.state
local enqueue, step, burnt = signals.enqueue, decoder.step, native.burnt

local M = {}

-- Nanoseconds, except ITEMS: how many are decoded between looks at the clock.
local PORTION, ITEMS = 2e5, 16
local LONG, REST, LOOK = 5e5, 15e7, 1e7

-- The messages that wait for their next portion, in order: { d, job }.
local waiting, first, last = {}, 1, 0
-- The turn is a job of the ready queue. The turn is queued once while anything
-- waits, or `resting` is the timer that queues the turn at the end of a rest.
local turn = { generation = 0 }
local queued, resting, rests_until = false, false, 0

-- ---- Turns -----------------------------------------------------------------

local function add(decoding)
  last = last + 1
  waiting[last] = decoding
end

local function take()
  local decoding = waiting[first]
  waiting[first] = nil
  first = first + 1
  if first > last then first, last = 1, 0 end
  return decoding
end

-- Starts a timer for the next turn, and notes how many events had come, so that
-- the turn sees whether any came during the rest.
local function rest(time)
  turn.seen, turn.generation = state.told, state.generation
  resting = { ended = false, remaining = 1, worker = turn,
              at = min(rests_until, time + LOOK) }
  timers.add(resting)
end

local function queue()
  if queued or first > last then return end
  queued = true
  local time = now()
  if time < rests_until then return rest(time) end
  enqueue(turn)
end

-- ---- Portions --------------------------------------------------------------

local function run(d, enough)
  local more, alone
  repeat more, alone = step(d, ITEMS)
  until not more or alone or now() >= enough
  return more
end

-- Decodes one portion. True if there is more, false at the end, nil and the
-- reason if the message cannot be decoded.
local function portion(d)
  local fine, more = pcall(run, d, now() + PORTION)
  collector.owe()
  if fine then return more end
  errors.pass(more)
  return nil, errors.shown(more)
end

local function tell(decoding, ...)
  local job = decoding.job
  decoding.told = true
  local fine, failure = xpcall(job.done, errors.traced, job, ...)
  if not fine then
    errors.pass(failure)
    loop.broken(job.engine, job.session, job.served, failure)
  end
end

-- Returns whether there is more.
local function go_on(decoding)
  local d, job = decoding.d, decoding.job
  if not job:wanted() then return tell(decoding, nil) end
  if collector.pay() then return true end
  local more, why = portion(d)
  if more then return true end
  if why then return tell(decoding, nil, why) end
  codec.revive(d.values, d.n)
  return tell(decoding, d.values, d.n)
end

-- An interrupt may leave a decoder in the middle of a value. If the program
-- goes on, the message is decoded anew.
local function take_turn(decoding)
  local fine, more = pcall(go_on, decoding)
  if fine then
    if more then add(decoding) end
    return
  end
  if errors.is_interrupt(more) and not decoding.told then
    decoding.d = decoder.new(decoding.d.pointer, decoding.d.length)
    add(decoding)
  end
  queue()
  errors.pass(more)
  error(more, 0)
end

function turn:run()
  queued = false
  if self.seen == state.told then rests_until = 0 end -- no events came
  self.seen = false
  if now() >= rests_until then
    local began = burnt()
    take_turn(take())
    if burnt() - began > LONG then rests_until = now() + REST end
  end
  queue()
end

--- Begins to decode length bytes at pointer for job. The bytes must stay valid
-- until job.done is called.
function M.start(pointer, length, job)
  add { d = decoder.new(pointer, length), job = job, told = false }
  queue()
end

-- ---- Held calls ------------------------------------------------------------

-- The calls whose workers wait for their arguments, as keys.
local held = {}

local Held = {}
Held.__index = Held

function Held:wanted()
  local handle = self.engine.handle
  return handle and not self.dropped
    and not C.perigee_served_cancelled(handle, self.served)
end

function Held:done(values, n)
  self.values, self.n = values, n
  if not self.dropped then enqueue(self.worker) end
end

--- Decodes the arguments of event's call. Returns the values and their number;
-- nil and why they cannot be decoded; or nil if they are no longer needed.
-- Parks the running worker.
--
-- The core holds such a call (PERIGEE_HELD): its bytes stay valid, and no later
-- request of its session is delivered until the call has started.
function M.decode(engine, event)
  local job = setmetatable({ engine = engine, session = event.session,
                             served = event.operation, values = nil, n = nil,
                             worker = state.current, dropped = false }, Held)
  held[job] = true
  M.start(event.pointer, tonumber(event.length), job)
  park()
  held[job] = nil
  return job.values, job.n
end

-- The sessions of held calls go on after a stop, like those of other dropped
-- handlers, and decoding for which no worker is parked continues. The turn is
-- dropped with the ready queue and queued again here; its timer is removed so
-- that it is not queued twice.
loop.dropped[#loop.dropped + 1] = function()
  for job in pairs(held) do
    local handle = job.engine.handle
    held[job], job.dropped = nil, true
    if handle then C.perigee_started(handle, job.served) end
  end
  if resting then timers.remove(resting) end
  queued, resting = false, false
  queue()
end

return M
