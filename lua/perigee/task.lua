-- SPDX-License-Identifier: Apache-2.0
--- Tasks: functions that run in the loop's workers and may wait; waiting for
-- several futures; running the loop until main or the program is done.
local check = require "perigee.check"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local log = require "perigee.log"
local loop = require "perigee.loop"
local native = require "perigee.native"
local signals = require "perigee.signal"

local C = native.C
local huge = math.huge
local state = loop.state

local M = {}

-- ---- Spawn -----------------------------------------------------------------

-- What error() was given, and where, as one value for both pcalls.
local function caught(e)
  return { value = e, traceback = debug.traceback(tostring(e), 2) }
end

local function as_error(raised)
  if errors.is_error(raised.value) then return raised.value end
  local err = errors.new("remote", "a task failed: "
    .. errors.shown(raised.value))
  err.traceback = raised.traceback
  if type(raised.value) == "table" then err.code = raised.value.code end
  return err
end

local function ended(job, fine, ...)
  local future = job.future
  if fine then return futures.settle(future, ...) end
  local raised = ...
  job.raised = raised
  if not future.waiter and not future.ended then
    log.write("error", "a task that nobody waits for failed: "
      .. raised.traceback)
  end
  futures.settle(future, nil, as_error(raised))
end

local function run_job(job)
  ended(job, xpcall(job.f, caught, unpack(job, 1, job.n)))
end

local function start(f, ...)
  local job = { f = f, run = run_job, n = select("#", ...), raised = nil,
                future = futures.new(false, "running a task"), ... }
  signals.enqueue(job)
  return job
end

--- Runs f(...) in a task, soon; returns the future of its results at once. If f
-- raises, waiting gives nil and an error of kind remote with its message, and
-- its traceback as err.traceback (or the error itself where f raised one of
-- Perigee's); an error that nobody waits for when it happens goes to the log.
function M.spawn(f, ...)
  check.value(f, check.callable, "what spawn runs")
  return start(f, ...).future
end

--- Waits for seconds. In a task, parks it; elsewhere runs the loop.
function M.sleep(seconds)
  check.value(seconds, check.seconds, "sleep's time")
  loop.check_wait(2)
  loop.wait_signal(signals.new(1), loop.deadline(seconds))
end

-- ---- Several futures -------------------------------------------------------

local function check_futures(list, seconds, what)
  if type(list) ~= "table" then
    error(what .. " takes a list of futures", 3)
  end
  for i = 1, #list do
    if not futures.is_future(list[i]) then
      error(("%s takes a list of futures; number %d is none"):format(what, i),
            3)
    end
  end
  if seconds ~= nil then
    check.value(seconds, check.seconds, what .. "'s timeout", 3)
  end
  loop.check_wait(3)
end

-- Waits until `remaining` of the futures that have not ended have, with a
-- signal of its own, which nothing refers to afterwards.
local function wait_for(list, remaining, deadline)
  local signal = signals.new(remaining)
  for i = 1, #list do
    if not list[i].ended then signals.attach(list[i], signal) end
  end
  loop.wait_signal(signal, deadline)
  for i = 1, #list do
    if not list[i].ended then signals.detach(list[i], signal) end
  end
end

local function pending(list)
  local n = 0
  for i = 1, #list do
    if not list[i].ended then n = n + 1 end
  end
  return n
end

--- Waits until every future of the list has ended: true, or nil and the first
-- one's error in the list's order. timeout bounds the whole wait (nil: none):
-- nil and an error of kind timeout, and what is pending goes on.
function M.wait_all(list, timeout)
  check_futures(list, timeout, "wait_all")
  local left = pending(list)
  if left > 0 then wait_for(list, left, loop.deadline(timeout)) end
  if pending(list) > 0 then
    return futures.unfinished("waiting for all of " .. #list .. " futures")
  end
  for i = 1, #list do
    local err = futures.failure(list[i])
    if err then return nil, err end
  end
  return true
end

--- Waits until one future of the list has ended: its index and itself (its
-- wait() gives the results); nil and an error of kind timeout after timeout.
function M.wait_any(list, timeout)
  check_futures(list, timeout, "wait_any")
  if #list == 0 then error("wait_any needs at least one future", 2) end
  if pending(list) == #list then
    wait_for(list, 1, loop.deadline(timeout))
  end
  for i = 1, #list do
    if list[i].ended then return i, list[i] end
  end
  return futures.unfinished("waiting for any of " .. #list .. " futures")
end

-- Moves futures that have ended from open to over, and their indices, which
-- are in places, as well.
local function sort_out(open, places, over)
  local kept = 0
  for k = 1, #open do
    local future, i = open[k], places[k]
    open[k], places[k] = nil, nil
    if future.ended then
      over[#over + 1] = { i, future }
    else
      kept = kept + 1
      open[kept], places[kept] = future, i
    end
  end
end

local function each_ended(list, deadline)
  local open, places, over, told = {}, {}, {}, 0
  for i = 1, #list do open[i], places[i] = list[i], i end
  return function()
    if told == #over then sort_out(open, places, over) end
    if told == #over and #open > 0 then
      wait_for(open, 1, deadline)
      sort_out(open, places, over)
    end
    if told == #over then return nil end
    told = told + 1
    return unpack(over[told])
  end
end

--- For loops: for i, future in as_completed(list, timeout) do ... end runs once
-- for each future of the list, as they end (i is its place in the list, its
-- wait() gives the results), and waits in between as wait_any does. timeout
-- (nil: none) bounds the whole loop: it ends when that is over and all that has
-- ended was told; what is pending goes on.
function M.as_completed(list, timeout)
  check_futures(list, timeout, "as_completed")
  return each_ended(list, loop.deadline(timeout))
end

-- ---- Run -------------------------------------------------------------------

local function watch()
  local status = C.perigee_signals_begin()
  if status < 0 then
    log.write("warning", "signals cannot be watched: " .. errors.text(status))
    return false
  end
  state.watching = true
  return true
end

local function unwatch(watched)
  state.watching = false
  if watched then C.perigee_signals_end() end
end

local in_run = false

local function check_run(what, level)
  if in_run or state.current.co then
    error(what .. " is called where the loop runs already", level + 1)
  end
  loop.check_wait(level + 1)
end

--- Runs the loop until future has ended or a stop: true if it was stopped. For
-- run and serve.
function M.run_until(future, what, level)
  check_run(what, (level or 2) + 1)
  local watched = watch()
  in_run, state.stopping = true, false
  local fine, failure = pcall(loop.wait, future, huge)
  local stopped = state.stopping
  if stopped then loop.drop_tasks() end
  in_run, state.stopping = false, false
  unwatch(watched)
  if not fine then error(failure, 0) end
  return stopped
end

local function stopped_error()
  return nil, errors.new("closed", "running the loop: it was stopped")
end

--- Runs main(...) in a task and returns its results, or raises its error.
-- Without main runs until stopped: by stop(), or by the first SIGINT or
-- SIGTERM, which are watched meanwhile. After a stop returns nil and an error
-- of kind closed at once; tasks that are parked then are never resumed.
function M.run(main, ...)
  if main ~= nil then check.value(main, check.callable, "what run runs") end
  check_run("run", 2)
  local job = main and start(main, ...)
  local future = job and job.future or futures.new()
  -- Its error is raised here, which is as good as a waiter.
  if job then signals.attach(future, signals.new(1)) end
  if M.run_until(future, "run") then return stopped_error() end
  if job.raised then error(job.raised.value, 0) end
  return futures.results(future)
end

--- Ends run() or serve() soon; returns at once. No-op outside of them.
function M.stop()
  if in_run then state.stopping = true end
end

return M
