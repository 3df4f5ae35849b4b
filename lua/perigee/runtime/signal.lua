-- SPDX-License-Identifier: Apache-2.0
--- Signals, on which every wait is built; and the loop's state (M.state).
--
-- A signal is attached to futures, or has a time, or both. It ends once: when
-- enough of the futures have ended or its time has come. A wait parks its
-- worker until the signal ends, or runs the loop until then.
local native = require "perigee.native"
local timers = require "perigee.runtime.timers"

local C = native.C
local huge = math.huge

local M = {}

--- The loop's state. Other modules read it, and may write only pinned (the name
-- of the code that runs on the loop now and must not wait, or false), stopping,
-- watching and on_signal.
M.state = {
  engines = {}, count = 0,            -- open engines; replaced, never changed
  handles = nil,                      -- the engines', for perigee_wait
  -- The worker that runs now; the main thread has this one.
  current = { co = false, served = false, trace = false },
  leader = false,                     -- the worker that leads
  target = { ended = false },         -- the signal of the innermost base
  depth = 0,                          -- bases within bases
  pinned = false,
  strayed = false,                    -- what was pinned and has yielded
  telling = false,                    -- the engine whose event is being handled
  ready = {}, first = 1, last = 0,    -- the ready queue
  stopping = false,                   -- run() is about to stop
  watching = false,                   -- SIGINT and SIGTERM are caught
  on_signal = false,                  -- called for the first one, and no stop
  leaving = false,                    -- the Lua state is being closed
  forked = false,                     -- the parent process has made engines
  generation = 0,                     -- workers of an older one are dropped
  told = 0,                           -- polls that had events
}
local state = M.state
local ready = state.ready

--- The time in nanoseconds: the first engine's, or the system's without one.
local function now()
  local first = state.engines[1]
  if first then return tonumber(C.perigee_now(first.handle)) end
  return native.clock()
end
M.now = now

--- Queues a worker to be resumed, or a job (a table with a function `run`) to
-- be run, by the next leader.
local function enqueue(item)
  state.last = state.last + 1
  ready[state.last] = item
end
M.enqueue = enqueue

--- A signal that ends once `remaining` of the futures it is attached to have
-- ended. It calls tell(signal) then, if tell is given, instead of resuming a
-- worker; tell must not wait. Its `signal` is false, which tells it from a node
-- (M.WAITER).
function M.new(remaining, tell)
  return { ended = false, remaining = remaining, worker = false, at = huge,
           place = nil, tell = tell or false, signal = false }
end

local function trigger(signal)
  if signal.ended then return end
  signal.ended = true
  if signal.tell then return signal:tell() end
  local worker = signal.worker
  if worker and worker.generation == state.generation then enqueue(worker) end
end
M.trigger = trigger

--- The places in a future (future.lua) of two values: whether it has ended, and
-- its signals: false, the only one, or a list of nodes { signal, next }.
M.ENDED, M.WAITER = 1, 4
local ENDED, WAITER = M.ENDED, M.WAITER

-- Counts the end of a future for signal.
local function count(signal)
  signal.remaining = signal.remaining - 1
  if signal.remaining == 0 then trigger(signal) end
end

-- The signals of a future as a list.
local function nodes(first)
  if not first or first.signal then return first end
  return { signal = first, next = false }
end

--- Makes the end of future count for signal: at once if it has ended.
function M.attach(future, signal)
  if future[ENDED] then return count(signal) end
  local before = future[WAITER]
  future[WAITER] = before and { signal = signal, next = nodes(before) }
    or signal
end

--- Undoes attach.
function M.detach(future, signal)
  local first = future[WAITER]
  if first == signal then
    future[WAITER] = false
    return
  end
  local before, node = nil, nodes(first)
  while node and node.signal ~= signal do before, node = node, node.next end
  if not node then return end
  if before then before.next = node.next else future[WAITER] = node.next end
end

--- Tells whether somebody waits for future. A signal with a `course` stays
-- attached while nobody waits by it (task.lua).
function M.is_awaited(future)
  local node = nodes(future[WAITER])
  while node do
    local course = node.signal.course
    if not course or course.waiting then return true end
    node = node.next
  end
  return false
end

local function first_first(node)
  local before
  while node do node.next, before, node = before, node, node.next end
  return before
end

--- Tells the signals attached to future, in the order they were attached.
-- Called when the future's field `ended` has just been set.
function M.wake(future)
  local first = future[WAITER]
  future[WAITER] = false
  if not first.signal then return count(first) end -- mostly: without a loop
  local node = first_first(first)
  while node do
    count(node.signal)
    node = node.next
  end
end

--- Ends the signals whose time has come; true if there were any.
function M.expire()
  if timers.earliest() == huge then return false end
  local time = now()
  local signal = timers.due(time)
  if not signal then return false end
  repeat
    trigger(signal)
    signal = timers.due(time)
  until not signal
  return true
end

return M
