-- SPDX-License-Identifier: Apache-2.0
--- Decoding what is large, in portions: one takes up to a fraction of a
-- millisecond, then the loop does whatever else there is to do. In each turn of
-- the loop one portion is decoded, of all that wait in turn, however many there
-- are. They are jobs, which whoever runs the loop comes by, in a task or not.
--
-- What is a job's:
--   engine, session, served   whose it is; the last is false but for calls
--   wanted(job)               does anybody still want the values?
--   done(job, values, n)      the values and their number; or nil and why they
--                             cannot be decoded; or nil if nobody wants them.
--                             Once, on the loop; it must not wait
--
-- LuaJIT does some things at one go: it makes or visits large tables, and makes
-- room for more strings. Where a portion took long by that, and others have
-- something to do, all decoding rests, so that this is what few of them notice.
--
--   decoding  event                                     becomes
--   waits     it is the first, and the loop has turned  has its portion
--   has it    there is more                             waits, the last of all
--   has it    that is the end, or nobody wants it       done
local collector = require "perigee.collector"
local decoder = require "perigee.decoder"
local errors = require "perigee.errors"
local loop = require "perigee.loop"
local native = require "perigee.native"
local signals = require "perigee.signal"
local timers = require "perigee.timers"

local C = native.C
local min = math.min
local now, park, state = loop.now, loop.park, loop.state
local enqueue, step, burnt = signals.enqueue, decoder.step, native.burnt

local M = {}

-- Nanoseconds. ITEMS lie between two looks at the clock.
local PORTION, ITEMS = 2e5, 16
local LONG, REST, LOOK = 5e5, 15e7, 1e7

-- What waits for a portion, in order: { d, job }.
local waiting, first, last = {}, 1, 0
-- Queued as ready, or to be at the end of a rest, which is its timer: once,
-- while anything waits.
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

-- A look at what others do, then the turn.
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

-- True while there is more; or false, or nil and why it cannot be decoded.
local function portion(d)
  local fine, more = pcall(run, d, now() + PORTION)
  collector.owe()
  if fine then return more end
  return nil, errors.shown(more)
end

local function tell(job, ...)
  local fine, failure = xpcall(job.done, debug.traceback, job, ...)
  if not fine then
    loop.broken(job.engine, job.session, job.served, failure)
  end
end

local function go_on(decoding)
  local d, job = decoding.d, decoding.job
  if not job:wanted() then return tell(job, nil) end
  if collector.pay() then return add(decoding) end
  local more, why = portion(d)
  if more then return add(decoding) end
  if why then return tell(job, nil, why) end
  return tell(job, d.values, d.n)
end

function turn:run()
  queued = false
  if self.seen == state.told then rests_until = 0 end -- nobody noticed
  self.seen = false
  if now() >= rests_until then
    local began = burnt()
    go_on(take())
    if burnt() - began > LONG then rests_until = now() + REST end
  end
  queue()
end

--- Begins to decode length bytes at pointer, which have to stay, for job.
function M.start(pointer, length, job)
  add { d = decoder.new(pointer, length), job = job }
  queue()
end

-- ---- Held calls ------------------------------------------------------------

-- Those whose workers wait for their arguments.
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

--- The values of length bytes at pointer, of a served call that is held, and
-- their number; nil and why they cannot be decoded; or nil if nobody wants them
-- any more. Parks the worker that runs.
--
-- The core holds what is decoded (PERIGEE_HELD): its bytes stay, and no later
-- request of its session comes before it has started.
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

-- The sessions of held calls go on, as those of other handlers that are
-- dropped; and so does what nobody was parked for. The turn is dropped with the
-- ready queue, and queued anew; a timer would bring it a second time.
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
