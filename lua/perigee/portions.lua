-- SPDX-License-Identifier: Apache-2.0
--- Decoding what is large, in portions: one takes up to a fraction of a
-- millisecond, then the loop does whatever else there is to do. Of all that is
-- decoded so, one has its portion in each turn of the loop, by turns, however
-- many there are.
--
-- The core holds what is decoded (PERIGEE_HELD): its bytes stay, and no later
-- request of its session comes before it has started.
--
--   worker    event                                     becomes
--   runs      it has a portion before it                waiting (parked)
--   waiting   it is the first, and the loop has turned  runs
--   waiting   a stop                                    dropped
local codec = require "perigee.codec"
local decoder = require "perigee.decoder"
local errors = require "perigee.errors"
local loop = require "perigee.loop"
local native = require "perigee.native"
local signals = require "perigee.signal"

local C = native.C
local now, park, state = loop.now, loop.park, loop.state
local enqueue, step = signals.enqueue, decoder.step

local M = {}

local PORTION = 2e5                     -- nanoseconds,
local ITEMS = 64                        -- and between two looks at the clock

-- What waits for a portion, in order: { worker, engine, served }. The worker of
-- the first is queued as ready, and no other.
local waiting, first, last = {}, 1, 0

local function queue_first()
  if first <= last then return enqueue(waiting[first].worker) end
  first, last = 1, 0
end

-- Lets the loop turn.
local function give_way(engine, served)
  last = last + 1
  waiting[last] = { worker = state.current, engine = engine, served = served }
  if first == last then queue_first() end
  park()
  waiting[first] = nil
  first = first + 1
  queue_first()
end

-- Their sessions go on, as those of other handlers that are dropped.
function loop.dropped()
  for i = first, last do
    local engine, served = waiting[i].engine, waiting[i].served
    waiting[i] = nil
    if engine.handle then C.perigee_started(engine.handle, served) end
  end
  first, last = 1, 0
end

local function run(d, enough)
  local more
  repeat more = step(d, ITEMS) until not more or now() >= enough
  return more
end

-- True while there is more; or nil and why it cannot be decoded.
local function portion(d)
  local before = d.at
  local fine, more = pcall(run, d, now() + PORTION)
  codec.note(d.at - before)
  if fine then return more end
  return nil, errors.shown(more)
end

local function wanted(engine, served)
  return engine.handle
    and not C.perigee_served_cancelled(engine.handle, served)
end

--- The values of length bytes at pointer, of a served call that is held, and
-- their number; nil and why they cannot be decoded; or nil if nobody wants them
-- any more. Parks the worker that runs before each portion.
function M.decode(engine, served, pointer, length)
  local d, more, why = decoder.new(pointer, length), true, nil
  while more do
    give_way(engine, served)
    if not wanted(engine, served) then return nil end
    more, why = portion(d)
  end
  if why then return nil, why end
  return d.values, d.n
end

return M
