-- SPDX-License-Identifier: Apache-2.0
--- The loop: one for each Lua state, over all its engines.
--
-- Whoever waits runs it. A wait first *pumps*: it polls and handles events on
-- the spot, with no coroutine switch, for as long as none of them can park.
-- What can park are typed handlers and tasks, and those run on workers: pooled
-- coroutines of which one at a time leads. The leader runs the loop and calls
-- handlers and tasks directly, with no switch either; when one of them parks,
-- its worker is suspended with it and another leads on with the rest of the
-- batch. A parked worker whose wait has ended is resumed by the leader; once
-- its handler is over it sees that it leads no more, and goes back to the pool.
--
--   worker    event                                  becomes
--   idle      taken by a base or a leader's park     leading
--   leading   the base's target has ended, a stop    idle
--   leading   its handler or task waits              parked
--   parked    what it waits for has ended            ready
--   parked    a stop                                 dropped, never resumed
--   ready     resumed by the leader                  running
--   running   its handler or task waits              parked
--   running   its handler or task is over            idle
--
-- A *base* is the wait of code that cannot park: the main thread, a foreign
-- coroutine, a callback across a C boundary. It resumes leaders until what it
-- waits for has ended. Bases nest; the innermost one's target counts.
--
-- Each engine keeps a batch of polled events with what has been handled of it,
-- so that whoever runs the loop next goes on with the rest, and polls (which
-- ends the life of the events' pointers) only when none is left.
local native = require "perigee.native"
local signals = require "perigee.signal"
local timers = require "perigee.timers"

local C = native.C
local running, yield = coroutine.running, coroutine.yield
local resume, create = coroutine.resume, coroutine.create
local yieldable = coroutine.isyieldable
local band, huge, max = bit.band, math.huge, math.max
local xpcall = xpcall

local AGAIN = C.PERIGEE_AGAIN
local REQUEST, TYPED = C.PERIGEE_EVENT_REQUEST, C.PERIGEE_TYPED
local REPLY, LANDING = C.PERIGEE_EVENT_REPLY, C.PERIGEE_EVENT_LANDING
local BATCH = 64
local PARKED, IDLE = {}, {}           -- what a worker says as it yields

local state, now, enqueue = signals.state, signals.now, signals.enqueue
local expire = signals.expire

local M = { BATCH = BATCH, state = state, now = now }

--- Handlers of events by kind: functions (engine, event), which must not wait.
M.on = {}
local on = M.on

--- Called for typed requests: function (engine, event, worker). May park.
M.serve = nil

--- Called where one of these raised, which nothing that a peer sends should get
-- them to: function (engine, the session's id, the served call's number or
-- false, what was raised with its traceback).
M.broken = nil

--- Functions that are called when all tasks have been forgotten.
M.dropped = {}

local ready, pool = state.ready, {}

-- ---- Turns -----------------------------------------------------------------

local function poll(engine)
  local n = C.perigee_poll(engine.handle, engine.events, BATCH)
  engine.i, engine.n = 0, n
  if n < 0 then
    engine.n = 0
    error("perigee: polling an engine: " .. native.detail(engine.handle), 0)
  end
end

-- Handles the next event of engine's batch; false if the batch has to wait: a
-- typed request needs a leader, or worker leads no more.
local function handle(engine, worker)
  local event = engine.events[engine.i]
  local kind = event.kind
  if kind == REQUEST and band(event.flags, TYPED) ~= 0 then
    if not worker then return false end
    engine.i = engine.i + 1
    worker.engine, worker.served = engine, event.operation
    worker.session, worker.serving = event.session, true
    M.serve(engine, event, worker)
    worker.serving, worker.trace = false, false
    return state.leader == worker
  end
  engine.i = engine.i + 1
  state.telling = engine
  on[kind](engine, event)
  state.telling = false
  return true
end

-- LuaJIT tries to compile each loop that it has met often. One that mostly has
-- one turn cannot be, and is given up, with all code that it lies in: whoever
-- waits would be interpreted. That is why what mostly is alone, the event of a
-- batch, or an engine, is handled outside of loops.

-- Handles the rest of engine's batch; false if it has to wait. Ends of own
-- operations are all handled, also beyond target's: so whoever waits for many
-- finds most of them ended, on a path without a loop, which compiles into its.
local function drain(engine, worker, target)
  if not handle(engine, worker) then return false end
  while engine.i < engine.n
    and not (target.ended and engine.events[engine.i].kind < REPLY) do
    if not handle(engine, worker) then return false end
  end
  return true
end

-- As pass, of one engine.
local function visit(engine, worker, target)
  if not engine.handle then return true end
  if engine.i == engine.n then poll(engine) end
  local quiet = engine.n == 0
  if not quiet then
    state.told = state.told + 1
    if not drain(engine, worker, target) then return nil end
  end
  if engine.chores then engine:tidy() end
  return quiet
end

-- One pass over the engines: true if there was nothing to do, false if there
-- was, nil if a batch has to wait.
local function pass(worker, target)
  local engines, quiet = state.engines, true
  if #engines == 1 then return visit(engines[1], worker, target) end
  for k = 1, #engines do
    local found = visit(engines[k], worker, target)
    if found == nil then return nil end
    quiet = quiet and found
  end
  return quiet
end

local function note_signals()
  if state.watching and C.perigee_signals_noted() ~= 0 then
    state.stopping = true
  end
end

local function chores_wait()
  local engines = state.engines
  if #engines == 1 then return engines[1].chores end
  for k = 1, #engines do
    if engines[k].chores then return true end
  end
end

-- Sleeps until there may be events, a timer or deadline is due, a signal came.
local function sleep(deadline)
  local at, timeout = timers.earliest(), -1
  if deadline < at then at = deadline end
  if at < huge then
    timeout = at - now()
    if timeout < 0 then timeout = 0 end
  end
  if chores_wait() and (timeout < 0 or timeout > 1e6) then timeout = 1e6 end
  if timeout < 0 and state.count == 0 and not state.watching then
    error("perigee: nothing is left that could end this wait", 0)
  end
  local status
  if state.count > 0 then
    status = C.perigee_wait(state.handles, state.count, timeout)
  else
    status = native.sleep(timeout < 0 and 1e8 or timeout)
  end
  if status == AGAIN then note_signals() end
end

-- Runs the loop on the spot: true when target has ended, false at the deadline,
-- nil when something is due that only a leader may run, or a base has to go on.
local function pump(target, deadline)
  local outer = state.target
  while not target.ended do
    if state.first <= state.last or outer.ended or state.stopping then
      return nil
    end
    note_signals()
    local quiet = pass(nil, target)
    if quiet == nil then return nil end
    if expire() or state.first <= state.last then quiet = false end
    if deadline < huge and not target.ended and now() >= deadline then
      return false
    end
    if quiet and not state.stopping then sleep(deadline) end
  end
  return true
end

-- ---- The net ---------------------------------------------------------------

-- Nothing that a peer sends should raise where its events are told. If it does,
-- that ends the peer's session, and the loop goes on: raises what was raised if
-- it was no such event's. There is no pcall for each event, which compiled code
-- could not return through: workers are coroutines, and pump has one for all.
local function broken(worker, failure)
  local engine, id, served = state.telling, 0, false
  if worker and worker.serving then
    engine, id, served = worker.engine, worker.session, worker.served
  elseif engine then
    local event = engine.events[engine.i - 1]
    local kind = event.kind
    id = event.session
    served = (kind == REQUEST or kind == LANDING) and event.operation
  else
    error(failure, 0)
  end
  state.telling, state.pinned = false, false
  M.broken(engine, id, served, failure)
end

local function raised(e)
  return state.telling and debug.traceback(tostring(e), 2) or e
end

-- Pump, in the net.
local function run(target, deadline)
  local fine, ended = xpcall(pump, raised, target, deadline)
  if fine then return ended end
  broken(nil, ended)
  return run(target, deadline)
end

-- ---- Workers ---------------------------------------------------------------

local function returned(worker, fine, what)
  if not fine then
    return broken(worker, debug.traceback(worker.co, tostring(what)))
  end
  if what == IDLE then
    pool[#pool + 1] = worker
  elseif what ~= PARKED then          -- the program's own coroutine.yield()
    enqueue(worker)
  end
end

local function resume_ready(worker)
  local current, leader = state.current, state.leader
  state.current = worker
  local fine, what = resume(worker.co)
  state.current, state.leader = current, leader
  returned(worker, fine, what)
end

-- Runs what is ready now, not what gets ready meanwhile.
local function run_ready(leader)
  local last = state.last
  while state.first <= last and state.first <= state.last
    and state.leader == leader do
    local item = ready[state.first]
    ready[state.first] = nil
    state.first = state.first + 1
    if item.co then resume_ready(item) else item:run(leader) end
  end
  if state.first > state.last then state.first, state.last = 1, 0 end
end

local function turn(worker)
  if state.first <= state.last then
    run_ready(worker)
    if state.leader ~= worker or state.target.ended then return end
  end
  note_signals()
  local quiet = pass(worker, state.target)
  if quiet == nil then return end
  if expire() or state.first <= state.last then quiet = false end
  if quiet and not state.stopping then sleep(huge) end
end

local function body(worker)
  while true do
    if state.leader ~= worker then
      yield(IDLE)
    elseif state.target.ended or state.stopping then
      state.leader = false
      yield(IDLE)
    else
      turn(worker)
    end
  end
end

local function take_worker()
  local worker = table.remove(pool)
  if not worker then
    worker = { engine = false, served = false, session = 0, serving = false,
               trace = false }
    worker.co = create(function() return body(worker) end)
  end
  worker.generation = state.generation
  return worker
end

local function base(signal)
  local current, leader, target = state.current, state.leader, state.target
  state.target = signal
  local worker, fine, what
  repeat
    worker = take_worker()
    state.leader, state.current = worker, worker
    fine, what = pcall(returned, worker, resume(worker.co))
  until not fine or signal.ended or state.stopping
  state.current, state.leader, state.target = current, leader, target
  if not fine then error(what, 0) end
end

-- ---- Waiting ---------------------------------------------------------------

local function refuse(level)
  error(("%s runs on the loop and must not wait"):format(state.pinned),
        level + 1)
end

--- Raises where waiting is not allowed: in what runs on the loop itself.
function M.check_wait(level)
  if state.pinned then refuse((level or 2) + 1) end
end

--- Would a wait park a task? Else it runs the loop until it is over.
function M.parks()
  local worker = state.current
  return worker.co and worker.co == running() and yieldable() or false
end

--- Waits until signal has ended, by a timer at the latest at deadline.
function M.block(signal, deadline)
  if deadline < huge then
    signal.at = deadline
    timers.add(signal)
  end
  local worker = state.current
  if M.parks() then
    signal.worker = worker
    if state.leader == worker then state.leader = false end
    repeat yield(PARKED) until signal.ended
  else
    base(signal)
  end
  timers.remove(signal)
end

--- Parks the worker that runs, until it is queued as ready again.
function M.park()
  local worker = state.current
  if state.leader == worker then state.leader = false end
  yield(PARKED)
end

--- The time at which a wait of seconds (nil: without limit) ends.
function M.deadline(seconds)
  if not seconds or seconds > 9e9 then return huge end
  return now() + seconds * 1e9
end

--- The seconds that are left until then.
function M.left(deadline)
  return max(0, deadline - now()) * 1e-9
end

--- Waits for a future, at most until deadline; has it ended? Not if a stop
-- came.
function M.wait(future, deadline)
  if state.pinned then refuse(3) end
  local ended = run(future, deadline)
  if ended ~= nil then return ended end
  local signal = signals.new(1)
  signals.attach(future, signal)
  M.block(signal, deadline)
  if not future.ended then signals.detach(future, signal) end
  return future.ended and true or false
end

--- The same for a signal that is attached to what it waits for.
function M.wait_signal(signal, deadline)
  if state.pinned then refuse(3) end
  local ended = run(signal, deadline)
  if ended == nil then M.block(signal, deadline) end
end

--- Looks at what a wait on the short way would not see for long: signals and
-- timers that are due.
function M.glance()
  note_signals()
  expire()
end

--- The event of the last await; valid until the loop runs again.
M.event = native.event_t()

-- Every so many waits on the short way look around.
local GLANCE = 64
local waits = 0

--- The short way of a wait: true if operation's event is in M.event now. Not
-- taken where others have something to do.
function M.await(engine, operation)
  waits = (waits + 1) % GLANCE
  if waits == 0 then M.glance() end
  if engine.i < engine.n or state.count > 1 or state.first <= state.last
    or state.stopping then
    return false
  end
  return C.perigee_await(engine.handle, operation, M.event, engine.spin) == 1
end

-- Where there is always something more to tell, it waits for the next wait.
local REFRESHES = 64

--- Has whatever is known to have happened on engine told, without waiting.
function M.refresh(engine)
  for _ = 1, REFRESHES do
    M.wait_signal(signals.new(1), 0)
    if not engine.handle or engine.i == engine.n
      and C.perigee_arm(engine.handle, nil) ~= 1 then
      return
    end
  end
end

--- Forgets all tasks: those that are parked will not be resumed, those that
-- are ready not be run. For the end of run().
function M.drop_tasks()
  state.generation = state.generation + 1
  for i = state.first, state.last do ready[i] = nil end
  state.first, state.last = 1, 0
  for _, f in ipairs(M.dropped) do f() end
end

-- ---- Engines ---------------------------------------------------------------

local function set_engines(engines)
  state.engines, state.count = engines, #engines
  state.handles = native.engines_t(math.max(#engines, 1))
  for i, engine in ipairs(engines) do state.handles[i - 1] = engine.handle end
end

--- Has the loop poll engine, whose handle, events, i and n are set.
function M.add_engine(engine)
  local engines = { unpack(state.engines) }
  engines[#engines + 1] = engine
  set_engines(engines)
end

function M.remove_engine(engine)
  local engines = {}
  for _, other in ipairs(state.engines) do
    if other ~= engine then engines[#engines + 1] = other end
  end
  set_engines(engines)
end

return M
