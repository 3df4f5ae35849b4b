-- SPDX-License-Identifier: Apache-2.0
--- Tasks: functions that run in the loop's workers and may wait. Also functions
-- that wait for several futures, and those that run the loop until main ends or
-- a stop.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"
local traces = require "perigee.serving.trace"

local C = native.C
local huge = math.huge
local state, ENDED = loop.state, futures.ENDED

local M = {}

-- ---- Spawn -----------------------------------------------------------------

-- The value that error() was given, with its traceback.
local function caught(e)
  if errors.is_interrupt(e, 2) then return { interrupt = e } end
  return { value = e, traceback = debug.traceback(errors.shown(e), 2) }
end

-- What caught has told; or a plain text, if LuaJIT had no memory or stack left
-- to run it.
local function raised_of(given)
  if type(given) == "table" then return given end
  return { value = given, traceback = errors.shown(given) }
end

local function as_error(raised)
  local value = raised.value
  if errors.is_error(value) then return value end
  local err = errors.new("remote", "a task failed: " .. errors.shown(value))
  err.traceback = raised.traceback
  if type(value) == "table" then err.code = rawget(value, "code") end
  return err
end

-- The jobs that have not ended, as keys.
local jobs = setmetatable({}, { __mode = "k" })

local function ended(job, fine, ...)
  local future = job.future
  jobs[job] = nil
  if fine then
    if not job.drives then futures.settle(future, ...) end
    return
  end
  local raised = raised_of(...)
  if raised.interrupt then
    futures.settle(future, nil, errors.new("closed", futures.doing(future)
      .. ": it was interrupted"))
    errors.pass(raised.interrupt)
  end
  job.raised = raised
  if not future.ended and not signals.is_awaited(future) then
    log.write("error", "a task that nobody waits for failed: "
      .. raised.traceback)
  end
  futures.settle(future, nil, as_error(raised))
end

-- Runs a job, as part of the trace that it was spawned in.
local function run_job(job, worker)
  worker.trace = job.trace
  ended(job, xpcall(job.f, caught, unpack(job, 1, job.n)))
  worker.trace = false
end

local function start(future, drives, f, ...)
  local job = { f = f, run = run_job, n = select("#", ...), raised = nil,
                trace = traces.here(), future = future, drives = drives, ... }
  jobs[job] = true
  signals.enqueue(job)
  return job
end

local function spawn(f, ...)
  return start(futures.new(false, "running a task"), false, f, ...)
end

--- Runs f(future, ...) in a task. f must settle future, or give it an `inner`
-- future to follow; the results of f are ignored.
function M.drive(future, f, ...)
  start(future, true, f, future, ...)
end

-- Ends in `closed` the futures of tasks that a stop has left parked for good.
local function drop_jobs()
  local dropped = {}
  for job in pairs(jobs) do dropped[#dropped + 1], jobs[job] = job, nil end
  for _, job in ipairs(dropped) do
    local future = job.future
    if not future.inner then
      futures.settle(future, nil, errors.new("closed", futures.doing(future)
        .. ": the loop was stopped"))
    end
  end
end
jit.off(drop_jobs)

--- Runs a function in a task, soon. If it raises, waiting for the future gives
-- nil and an error of kind `remote` with its message and traceback, or the
-- raised value itself if it is an error of Perigee's. If nobody waits for the
-- future when the function raises, the error is also logged.
-- @function perigee.spawn
-- @tparam function f
-- @param ... its arguments
-- @treturn Future of its results
-- @waits no
-- @usage
-- local future = perigee.spawn(function(a) return a, calc:add(a, 1) end, 1)
-- print(future:wait(5))                                        --> 1 2
function M.spawn(f, ...)
  check.value(f, check.callable, "what spawn runs")
  return spawn(f, ...).future
end

--- Waits for some time. In a task it parks the task; elsewhere it runs the
-- loop.
-- @function perigee.sleep
-- @tparam number seconds
-- @waits yes
-- @usage
-- perigee.sleep(0.001)
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
    if state.forked and not list[i][ENDED] then
      loop.check_forked(list[i], 3)
    end
  end
  if seconds ~= nil then
    check.value(seconds, check.seconds, what .. "'s timeout", 3)
  end
  loop.check_wait(3)
end

-- Waits until `remaining` of the pending futures have ended. Its signal is
-- detached afterwards, so that nothing refers to it.
local function wait_for(list, remaining, deadline)
  local signal = signals.new(remaining)
  for i = 1, #list do
    if not list[i][ENDED] then signals.attach(list[i], signal) end
  end
  loop.wait_signal(signal, deadline)
  for i = 1, #list do
    if not list[i][ENDED] then signals.detach(list[i], signal) end
  end
end

local function pending(list)
  local n = 0
  for i = 1, #list do
    if not list[i][ENDED] then n = n + 1 end
  end
  return n
end

local function first_failure(list)
  for i = 1, #list do
    local err = list[i][ENDED] and futures.failure(list[i])
    if err then return err end
  end
end

-- Waits until all pending futures have ended, or one has failed. Returns the
-- error of the first that has.
local function wait_for_failure(list, deadline)
  local err = first_failure(list)
  if err then return err end
  local signal, left, watchers = signals.new(1), pending(list), {}
  local failed
  for i = 1, #list do
    watchers[i] = signals.new(1, function()
      left = left - 1
      if not failed and futures.failed(list[i]) then failed = list[i] end
      if failed or left == 0 then signals.trigger(signal) end
    end)
    if not list[i][ENDED] then signals.attach(list[i], watchers[i]) end
  end
  if left > 0 then loop.wait_signal(signal, deadline) end
  for i = 1, #list do
    if not list[i][ENDED] then signals.detach(list[i], watchers[i]) end
  end
  return failed and futures.failure(failed)
end

local WAIT_ALL = { first_error = check.boolean }

--- Waits until every future of a list has ended. A call whose handler returned
-- nil and an error counts as failed, too.
-- @function perigee.wait_all
-- @tparam table list of futures
-- @tparam[opt] number timeout seconds for the whole; default: no limit
-- @tparam[opt] table options
-- @tparam[opt=false] boolean options.first_error true: returns as soon as one
--   has failed, with its error; the others go on
-- @treturn boolean true; or nil and the error of the first in the list's order
--   that failed
-- @errors `timeout`: pending futures go on; else those of the futures
-- @waits yes
-- @usage
-- local a, b = calc.async:add(1, 2), calc.async:add(3, 4)
-- print(perigee.wait_all({ a, b }, 5))                         --> true
-- print(a:wait(), b:wait())                                    --> 3 7
-- local slow, bad = calc.async:slow(5), calc.async:fail("at once")
-- local _, err = perigee.wait_all({ slow, bad }, 5, { first_error = true })
-- print(err.kind, slow:done())                                 --> remote false
function M.wait_all(list, timeout, options)
  check_futures(list, timeout, "wait_all")
  local first_error = options ~= nil
    and check.options(options, WAIT_ALL, "wait_all").first_error
  local deadline, left = loop.deadline(timeout), pending(list)
  if first_error then
    local err = wait_for_failure(list, deadline)
    if err then return nil, err end
  elseif left > 0 then
    wait_for(list, left, deadline)
  end
  if pending(list) > 0 then
    return futures.unfinished("waiting for all of " .. #list .. " futures")
  end
  local err = first_failure(list)
  if err then return nil, err end
  return true
end

--- Waits until one future of a list has ended.
-- @function perigee.wait_any
-- @tparam table list of futures, at least one
-- @tparam[opt] number timeout seconds; default: no limit
-- @treturn number its place in the list, and the future, whose `wait` gives its
--   results; or nil and an error
-- @errors `timeout`: pending futures go on
-- @waits yes
-- @usage
-- local i, future = perigee.wait_any { calc.async:slow(5),
--                                      calc.async:add(1, 2) }
-- print(i, future:wait())                                      --> 2 3
function M.wait_any(list, timeout)
  check_futures(list, timeout, "wait_any")
  if #list == 0 then error("wait_any needs at least one future", 2) end
  if pending(list) == #list then
    wait_for(list, 1, loop.deadline(timeout))
  end
  for i = 1, #list do
    if list[i][ENDED] then return i, list[i] end
  end
  return futures.unfinished("waiting for any of " .. #list .. " futures")
end

-- Notes that a future of a list has ended. course.over: the places of the ended
-- futures, in the order of their ends; course.waiting: the signal of the caller
-- that waits for the next one, or false. A loop that is left by break tells
-- nobody, so its watchers stay attached.
local function note(watcher)
  local course = watcher.course
  course.over[#course.over + 1] = watcher.index
  if course.waiting then signals.trigger(course.waiting) end
end

local function watch_all(list)
  local course = { over = {}, waiting = false, watchers = {} }
  for i = 1, #list do
    local watcher = signals.new(1, note)
    watcher.course, watcher.index = course, i
    course.watchers[i] = watcher
    signals.attach(list[i], watcher)
  end
  return course
end

local function watch_no_more(list, course)
  for i = 1, #list do
    if not list[i][ENDED] then signals.detach(list[i], course.watchers[i]) end
  end
end

local function each_ended(given, deadline)
  local list, told = {}, 0
  for i = 1, #given do list[i] = given[i] end
  local course = watch_all(list)
  return function()
    if told == #course.over and told < #list then
      course.waiting = signals.new(1)
      loop.wait_signal(course.waiting, deadline)
      course.waiting = false
    end
    if told == #course.over then return watch_no_more(list, course) end
    told = told + 1
    local i = course.over[told]
    return i, list[i]
  end
end

--- An iterator for `for` loops: gives each future of a list in the order in
-- which they end, and waits in between. It stops at the timeout, after the
-- futures that have ended by then; pending futures go on. Nobody waits for them
-- while the loop's body runs: what a task of `perigee.spawn` raises then is
-- logged, too. A loop that is left by `break` leaves some memory with each
-- pending future until that ends.
-- @function perigee.as_completed
-- @tparam table list of futures
-- @tparam[opt] number timeout seconds for the whole loop; default: no limit
-- @treturn function an iterator of its place in the list and the future
-- @waits yes, in the loop
-- @usage
-- local futures = { calc.async:slow(1), calc.async:add(1, 2) }
-- for i, future in perigee.as_completed(futures, 5) do
--   print(i, future:wait())                                    --> 2 3
-- end                                                          --> 1 done
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

--- Runs the loop until future has ended or a stop came; returns whether it was
-- stopped. Used by run and serve.
function M.run_until(future, what, level)
  check_run(what, (level or 2) + 1)
  local watched = watch()
  in_run, state.stopping = true, false
  local fine, failure = pcall(loop.wait, future, huge)
  local stopped = state.stopping
  if stopped then
    loop.drop_tasks()
    drop_jobs()
  end
  in_run, state.stopping = false, false
  unwatch(watched)
  if not fine then error(failure, 0) end
  return stopped
end

local function stopped_error()
  return nil, errors.new("closed", "running the loop: it was stopped")
end

--- Runs main in a task, and the loop until main has ended. Without main it runs
-- until a stop: by `perigee.stop`, or by the first SIGINT or SIGTERM; handlers
-- of these signals are installed meanwhile and restored afterwards. A stop
-- makes it return at once. Parked tasks are then never resumed, and futures
-- that only they would have ended (those of `perigee.spawn`, and of calls that
-- waited for a peer) end in `closed`.
-- @function perigee.run
-- @tparam[opt] function main
-- @param ... its arguments
-- @return main's results, or raises main's error; after a stop nil and an error
-- @errors `closed`: it was stopped
-- @waits until main has ended, or a stop
-- @usage
-- print(perigee.run(function(a) return calc:add(a, 1) end, 2)) --> 3
function M.run(main, ...)
  if main ~= nil then check.value(main, check.callable, "what run runs") end
  check_run("run", 2)
  local job = main and spawn(main, ...)
  local future = job and job.future or futures.new()
  -- The signal marks the future as waited for: main's error is raised here, so
  -- it need not be logged.
  if job then signals.attach(future, signals.new(1)) end
  if M.run_until(future, "run") then return stopped_error() end
  if job.raised then error(job.raised.value, 0) end
  return futures.results(future)
end

--- Ends `perigee.run` or `perigee.serve` soon. No-op outside of them.
-- @function perigee.stop
-- @waits no
-- @usage
-- perigee.spawn(perigee.stop)
-- print(select(2, perigee.run()).kind)                         --> closed
function M.stop()
  if in_run then state.stopping = true end
end

return M
