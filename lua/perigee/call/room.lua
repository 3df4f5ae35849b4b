-- SPDX-License-Identifier: Apache-2.0
--- The queue in which calls with writers wait for a block to be lent. It keeps
-- the order: calls of a session are submitted in the order in which they were
-- made, and none waits while later ones go on.
--
-- No event tells that a block is free, so a call that waits looks each
-- millisecond, but asks for a block only when its turn has come:
--
--   before it in the queue                         its turn
--   no call, or only calls that have left          has come
--   a call that waits in a task, or by a base      has not
--     (loop.lua) on top of which nothing runs
--   only calls that wait by a base below the one   has come
--     that runs, and cannot go on before it ends
--
-- A call that does not wait when others look has left: it was submitted, or has
-- ended, or its writer raised.
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local signals = require "perigee.runtime.signal"

local min, now, state = math.min, loop.now, loop.state

local M = {}

local PAUSE = 1e6

--- Returns a place behind the calls of binding's session that wait already. The
-- call's timeout begins now: began and deadline are of the loop's clock.
function M.enter(binding)
  local session = binding.session
  local queue = session.writers or { first = 1, last = 0 }
  local place = {
    session = session, began = now(),
    deadline = binding.deadline or loop.deadline(binding.timeout),
    waits = true, base = false, generation = state.generation,
  }
  queue.last = queue.last + 1
  queue[queue.last] = place
  session.writers = queue
  return place
end

-- Tells whether the call at a place waits no more, as tasks that a stop has
-- dropped.
local function has_left(place)
  return not place.waits or place.generation ~= state.generation
end

-- Tells whether the call at a place can go on before what runs now is over.
-- Code that cannot park runs on top of all bases.
local function can_go_on(place)
  return not place.base or (place.base == state.target and loop.parks())
end

-- Tells whether no call before place (nil: the end) can go on.
local function is_turn(session, place)
  local queue = session.writers
  if not queue then return true end
  for i = queue.first, queue.last do
    local other = queue[i]
    if other == place then return true end
    if has_left(other) then
      if i == queue.first then queue[i], queue.first = nil, i + 1 end
    elseif can_go_on(other) then
      return false
    end
  end
  if queue.first > queue.last then session.writers = false end
  return true
end

--- Tells whether a call that is made now, with a loan of length bytes, has to
-- wait behind others. Loans up to the length of records take no block and do
-- not wait.
function M.crowded(binding, length)
  return length > binding.session.eager and not is_turn(binding.session)
end

--- Tells whether waiting on is of no use.
function M.over(place)
  return now() >= place.deadline or state.stopping
end

--- Waits for a moment. Returns true if the call is to be tried then. A call
-- whose wait raises has left the queue.
function M.wait(place)
  local signal = signals.new(1)
  place.waits, place.base = true, not loop.parks() and signal
  local fine, raised = pcall(loop.wait_signal, signal,
                             min(now() + PAUSE, place.deadline))
  place.waits = false
  if not fine then
    errors.pass(raised)
    error(raised, 0)
  end
  return is_turn(place.session, place) or M.over(place)
end

return M
