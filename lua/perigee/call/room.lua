-- SPDX-License-Identifier: Apache-2.0
--- Where writers' calls wait for a block to be lent: behind one another, so
-- that those of a session are submitted in the order in which they were made,
-- and none waits while later ones go on.
--
-- Blocks come back without a word, so whoever waits looks each millisecond, but
-- asks for one only when its turn has come:
--
--   who is before it                               its turn
--   nobody, or only who has left                   has come
--   who waits in a task, or by a base (loop.lua)   has not
--     that nothing else runs on top of
--   who waits by a base below the one that runs,   has come
--     and so cannot go on before that is over
--
-- Who does not wait when others look has left: its call was submitted, or has
-- ended, or its writer raised.
local loop = require "perigee.loop"
local signals = require "perigee.signal"

local min, now, state = math.min, loop.now, loop.state

local M = {}

local PAUSE = 1e6

--- A place behind the calls of binding's session that wait already. A call's
-- time begins with it: began, deadline (of the loop's clock).
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

-- Tasks that a stop has dropped wait no more.
local function has_left(place)
  return not place.waits or place.generation ~= state.generation
end

-- Before whoever runs now is over? Who cannot park runs on top of all bases.
local function can_go_on(place)
  return not place.base or (place.base == state.target and loop.parks())
end

-- Is none before place (nil: the end) that can go on?
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

--- Has a call that is made now, of a loan of length bytes, to wait behind
-- others? Not what is no longer than records are: that takes no block.
function M.crowded(binding, length)
  return length > binding.engine.eager and not is_turn(binding.session)
end

--- Is there no use in waiting on?
function M.over(place)
  return now() >= place.deadline or state.stopping
end

--- Waits for a moment: true if the call is to be tried then.
function M.wait(place)
  local signal = signals.new(1)
  place.waits, place.base = true, not loop.parks() and signal
  loop.wait_signal(signal, min(now() + PAUSE, place.deadline))
  place.waits = false
  return is_turn(place.session, place) or M.over(place)
end

return M
