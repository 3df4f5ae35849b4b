-- SPDX-License-Identifier: Apache-2.0
--- Signals: what every wait is made of; and what the loop knows (M.state).
--
-- A signal is attached to futures, or has a time, or both, and ends once: when
-- enough of the futures have ended or its time has come. Whoever waits parks
-- its worker on one, or runs the loop until it has ended.
local native = require "perigee.native"
local timers = require "perigee.timers"

local C = native.C
local huge = math.huge

local M = {}

--- What the loop knows. Other modules read it; only the loop writes it, but for
-- pinned (what runs on the loop now and must not wait, as text, or false),
-- stopping and watching.
M.state = {
  engines = {}, count = 0,            -- open engines; replaced, never changed
  handles = nil,                      -- theirs, for perigee_wait
  current = { co = false, served = false, trace = false }, -- the worker that
                                      -- runs now
  leader = false,                     -- the worker that leads
  target = { ended = false },         -- what the innermost base waits for
  pinned = false,
  telling = false,                    -- the engine one of whose events is told
  ready = {}, first = 1, last = 0,    -- the ready queue
  stopping = false,                   -- a stop is on its way to run()
  watching = false,                   -- signals are ours
  leaving = false,                    -- the Lua state ends
  generation = 0,                     -- workers of an older one are dropped
  told = 0,                           -- polls that had events
}
local state = M.state
local ready = state.ready

--- Nanoseconds of the first engine's clock.
local function now()
  local first = state.engines[1]
  if first then return tonumber(C.perigee_now(first.handle)) end
  return native.clock()
end
M.now = now

--- Queues a worker to be resumed or a job (a table with a function `run`) to be
-- run by whoever leads next.
local function enqueue(item)
  state.last = state.last + 1
  ready[state.last] = item
end
M.enqueue = enqueue

--- A signal ends once, after `remaining` things that it is attached to have.
-- Where nobody waits for it: tell(signal), which must not wait, is called then.
function M.new(remaining, tell)
  return { ended = false, remaining = remaining, worker = false, at = huge,
           place = nil, tell = tell or false }
end

local function trigger(signal)
  if signal.ended then return end
  signal.ended = true
  if signal.tell then return signal:tell() end
  local worker = signal.worker
  if worker and worker.generation == state.generation then enqueue(worker) end
end
M.trigger = trigger

--- Has future's end count for signal.
function M.attach(future, signal)
  future.waiter = { signal = signal, next = future.waiter }
end

--- Undoes attach.
function M.detach(future, signal)
  local before, node = nil, future.waiter
  while node and node.signal ~= signal do before, node = node, node.next end
  if not node then return end
  if before then before.next = node.next else future.waiter = node.next end
end

local function first_first(node)
  local before
  while node do node.next, before, node = before, node, node.next end
  return before
end

--- Tells those who wait for future, whose field `ended` has just been set, in
-- the order in which they came.
function M.wake(future)
  local node = first_first(future.waiter)
  future.waiter = false
  while node do
    local signal = node.signal
    signal.remaining = signal.remaining - 1
    if signal.remaining == 0 then trigger(signal) end
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
