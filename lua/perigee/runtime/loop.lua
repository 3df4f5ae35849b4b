-- SPDX-License-Identifier: Apache-2.0
--- The event loop: one for each Lua state, which polls all its engines.
--
-- The thread or task that waits runs the loop. A wait first *pumps*: it polls
-- and handles events directly, without a coroutine switch, as long as none of
-- them can park. Only typed handlers and tasks can park. They run on workers:
-- pooled coroutines, one of which is the leader at a time. The leader runs the
-- loop and calls handlers and tasks directly, also without a switch. When one
-- of them parks, its worker is suspended with it, and another worker becomes
-- the leader and goes on with the rest of the batch. The leader resumes a
-- parked worker whose wait has ended. When that worker's handler is over, the
-- worker finds that it is no longer the leader, and returns to the pool.
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
-- A *base* is the wait of code that cannot park: the main thread, a coroutine
-- of the program's, a callback across a C boundary. It resumes leaders until
-- its target, the signal it waits for, has ended. Bases nest; the loop runs for
-- the innermost base's target.
--
-- Each engine keeps its batch of polled events and how many are handled, so the
-- next one to run the loop continues with the rest. An engine is polled again,
-- which invalidates the events' pointers, only when the batch is finished.
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"
local timers = require "perigee.runtime.timers"

local C = native.C
local running, yield = coroutine.running, coroutine.yield
local resume, create = coroutine.resume, coroutine.create
local yieldable = coroutine.isyieldable
local band, huge, max = bit.band, math.huge, math.max
local xpcall, traced = xpcall, errors.traced

local AGAIN = C.PERIGEE_AGAIN
local REQUEST, TYPED = C.PERIGEE_EVENT_REQUEST, C.PERIGEE_TYPED
local REPLY, LANDING = C.PERIGEE_EVENT_REPLY, C.PERIGEE_EVENT_LANDING
local BATCH = 64
local PARKED, IDLE = {}, {}           -- what a worker yields

local state, now, enqueue = signals.state, signals.now, signals.enqueue
local expire = signals.expire

local M = { BATCH = BATCH, state = state, now = now }

--- Handlers of events by kind: functions (engine, event), which must not wait.
M.on = {}
local on = M.on

--- Called for typed requests: function (engine, event, worker). May park.
M.serve = nil

--- Called when one of these functions raised, which no input from a peer should
-- cause: function (engine, the session's id, the served call's number or false,
-- the error with its traceback).
M.broken = nil

--- Functions that are called after a stop has dropped all tasks.
M.dropped = {}

--- Functions that are called when the last engine has been closed.
M.emptied = {}

local ready, pool = state.ready, {}

-- ---- Errors in event handlers ----------------------------------------------

-- No input from a peer should make an event handler raise. The loop ends the
-- peer's session if one does, and goes on. Errors that no event caused go on to
-- the caller of pump; a worker's end its coroutine. An interrupt goes on, too,
-- whatever it came in. The xpcall is around the handler of each event. One
-- around all events would keep waits from being compiled: LuaJIT cannot leave a
-- trace that began in drain's loop through a pcall below it.
local function broken(worker, failure)
  local engine, id, served = state.telling, 0, false
  state.telling, state.pinned = false, false
  errors.pass(failure)
  if worker and worker.serving then
    engine, id, served = worker.engine, worker.session, worker.served
  elseif engine then
    local event = engine.events[math.max(engine.i - 1, 0)] -- 0: it was closed
    local kind = event.kind
    id = engine.i > 0 and event.session or 0
    served = engine.i > 0 and (kind == REQUEST or kind == LANDING)
      and event.operation
  else
    error(failure, 0)
  end
  M.broken(engine, id, served, failure)
end

-- Calls the handler of an event, and catches what it raises.
local function guarded(f, engine, event)
  local fine, failure = xpcall(f, traced, engine, event)
  if not fine then broken(nil, failure) end
end

-- ---- Turns -----------------------------------------------------------------

local function poll(engine)
  local n = C.perigee_poll(engine.handle, engine.events, BATCH)
  engine.i, engine.n = 0, n
  if n < 0 then
    engine.n = 0
    error("perigee: polling an engine: " .. native.detail(engine.handle), 0)
  end
end

-- Handles the next event of engine's batch. False if the rest of the batch has
-- to wait: a typed request needs a leader, or worker is no longer the leader.
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
  if worker then
    on[kind](engine, event)
  else
    guarded(on[kind], engine, event)
  end
  state.telling = false
  return true
end

-- LuaJIT tries to compile each loop that runs often. A loop that mostly has a
-- single iteration cannot be compiled; LuaJIT then gives up on the code around
-- it too, and waits would be interpreted. So the first event of a batch, and a
-- single engine, are handled outside of loops.

-- Handles the rest of engine's batch; false if it has to wait. It goes on only
-- with completions of own operations once target has ended. So a caller that
-- waits for many in turn finds most of them ended, on a path without a loop,
-- which LuaJIT compiles into the caller's.
local function drain(engine, worker, target)
  if not handle(engine, worker) then return false end
  while engine.i < engine.n
    and not (target.ended and engine.events[engine.i].kind < REPLY) do
    if not handle(engine, worker) then return false end
  end
  return true
end

-- The same as pass, for one engine.
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

-- One pass over the engines. True if there was nothing to do, false if there
-- was something, nil if a batch has to wait for a leader.
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

-- Stops the loop. If the program has given on_signal, the first signal calls
-- that instead, which may take as long as it likes; the next signal stops the
-- loop.
local function signalled()
  local f = state.on_signal
  state.on_signal = false
  if not f then
    state.stopping = true
    return
  end
  C.perigee_signals_end()
  C.perigee_signals_begin()
  f()
end

local function note_signals()
  if state.watching and C.perigee_signals_noted() ~= 0 then signalled() end
end

local function chores_wait()
  local engines = state.engines
  if #engines == 1 then return engines[1].chores end
  for k = 1, #engines do
    if engines[k].chores then return true end
  end
end

-- Sleeps until there may be events, a timer or the deadline is due, or a system
-- signal came.
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

-- Runs the loop without workers. True when target has ended, false at the
-- deadline, nil when something is due that only a leader may run, or when the
-- outer base's target has ended or a stop came.
local function pump(target, deadline)
  local outer = state.target
  while not target.ended do
    if state.first <= state.last or outer.ended or state.stopping then
      return nil
    end
    note_signals()
    local quiet = pass(nil, target)
    -- One engine may have ended target before another one's batch had to wait.
    if quiet == nil then return target.ended and true or nil end
    if expire() or state.first <= state.last then quiet = false end
    if deadline < huge and not target.ended and now() >= deadline then
      return false
    end
    if quiet and not state.stopping then sleep(deadline) end
  end
  return true
end

-- ---- Workers ---------------------------------------------------------------

local returned

-- Pinned code has yielded, by coroutine.yield(). It goes on at once, since what
-- it uses is over with the event; its caller asks M.strayed().
local function go_on(worker)
  local current, leader = state.current, state.leader
  state.strayed, state.current = state.pinned, worker
  local fine, what = resume(worker.co)
  state.current, state.leader = current, leader
  return returned(worker, fine, what)
end

--- Returns why code that was pinned as what has failed, if it has yielded, else
-- nil.
function M.strayed(what)
  if state.strayed ~= what then return nil end
  state.strayed = false
  return what .. " runs on the loop and must not yield"
end

function returned(worker, fine, what)
  if not fine then
    return broken(worker, errors.is_interrupt(what) and what
      or debug.traceback(worker.co, tostring(what)))
  end
  if what == IDLE then
    pool[#pool + 1] = worker
  elseif what ~= PARKED then          -- the program's own coroutine.yield()
    if state.pinned then return go_on(worker) end
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

-- Runs what is ready at the start, not what becomes ready meanwhile.
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
               trace = false, signal = signals.new(1) }
    worker.co = create(function() return body(worker) end)
  end
  worker.generation = state.generation
  return worker
end

-- A base within a base takes some 9 KiB of the C stack, below a callback of
-- string.gsub; a stack has 8 MiB.
local DEEPEST = 256

local function too_deep()
  error(("%d waits are nested, each in code that cannot yield (a callback of "
    .. "string.gsub or table.sort, a coroutine of the program's own), and more "
    .. "would use up the stack"):format(DEEPEST), 0)
end

local function base(signal)
  local current, leader, target = state.current, state.leader, state.target
  state.target, state.depth = signal, state.depth + 1
  local worker, fine, what
  repeat
    worker = take_worker()
    state.leader, state.current = worker, worker
    fine, what = pcall(returned, worker, resume(worker.co))
  until not fine or signal.ended or state.stopping
  state.current, state.leader, state.target = current, leader, target
  state.depth = state.depth - 1
  if fine then return end
  errors.pass(what)
  error(what, 0)
end

-- ---- Waiting ---------------------------------------------------------------

local function refuse(level)
  error(("%s runs on the loop and must not wait"):format(state.pinned),
        level + 1)
end

--- Raises in code that runs on the loop itself and so must not wait.
function M.check_wait(level)
  if state.pinned then refuse((level or 2) + 1) end
end

--- Would a wait park the running task? Otherwise the wait itself runs the loop.
function M.parks()
  local worker = state.current
  return worker.co and worker.co == running() and yieldable() or false
end

--- Waits until signal has ended; a timer ends it at deadline.
function M.block(signal, deadline)
  if signal.ended then return end
  if state.depth >= DEEPEST and not M.parks() then too_deep() end
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

--- Parks the running worker until it is queued as ready again.
function M.park()
  local worker = state.current
  if state.leader == worker then state.leader = false end
  yield(PARKED)
end

-- Functions that wait until no code is pinned, in order.
local later = {}

--- Does what has waited for code that was pinned.
function M.catch_up()
  local list = later
  later = {}
  for _, f in ipairs(list) do f() end
end

M.dropped[#M.dropped + 1] = M.catch_up

--- Calls f now, or, while code is pinned that may use what f ends, once that is
-- over.
function M.unpinned(f)
  if not state.pinned then return f() end
  later[#later + 1] = f
  if #later == 1 then enqueue { run = M.catch_up } end
end

--- The deadline of a wait of seconds from now (nil: without limit).
function M.deadline(seconds)
  if not seconds or seconds > 9e9 then return huge end
  return now() + seconds * 1e9
end

--- The seconds left until deadline, at least 0.
function M.left(deadline)
  return max(0, deadline - now()) * 1e-9
end

-- Returns a signal for a wait of the running code. A worker waits for one thing
-- at a time, and what ends its wait forgets the signal. So it uses its own
-- again, unless a timer has it, too.
local function signal_of(deadline)
  if deadline < huge or not M.parks() then return signals.new(1) end
  local signal = state.current.signal
  signal.ended, signal.remaining, signal.worker = false, 1, false
  return signal
end

--- Raises for what only an engine of the parent process could end; to be called
-- if `state.forked`.
local function check_forked(future, level)
  local owner = future.owner
  local engine = owner and owner.engine
  if engine and engine.handle and engine.alive[0] == 0 then
    error("this engine belongs to the parent process; make another", level + 1)
  end
end
M.check_forked = check_forked

--- Waits for a future, at most until deadline, and returns whether it has
-- ended. A stop ends the wait early.
function M.wait(future, deadline)
  if state.pinned then refuse(3) end
  if state.forked then check_forked(future, 3) end
  local ended
  if state.first > state.last then -- else pump would give up at once
    ended = pump(future, deadline)
  end
  if ended ~= nil then return ended end
  local signal = signal_of(deadline)
  signals.attach(future, signal)
  M.block(signal, deadline)
  if not future.ended then signals.detach(future, signal) end
  return future.ended and true or false
end

--- The same for a signal that is already attached to futures or has a time.
function M.wait_signal(signal, deadline)
  if state.pinned then refuse(3) end
  local ended = pump(signal, deadline)
  if ended == nil then M.block(signal, deadline) end
end

--- Checks for system signals and due timers, which await does not look at.
function M.glance()
  note_signals()
  expire()
end

--- The event of the last await; valid until the loop runs again.
M.event = native.event_t()

-- One in so many calls of await also calls glance.
local GLANCE = 64
local left = GLANCE

--- The fast path of a wait: polls only for operation's event, for a short time.
-- True if the event is in M.event now. Returns false at once if anything else
-- is due, there are several engines, or a stop is on its way.
function M.await(engine, operation)
  left = left - 1
  if left == 0 then
    left = GLANCE
    M.glance()
  end
  if engine.i < engine.n or state.count > 1 or state.first <= state.last
    or state.stopping then
    return false
  end
  return C.perigee_await(engine.handle, operation, M.event, engine.spin) == 1
end

-- The most passes of one refresh, in case new events never stop coming.
local REFRESHES = 64

--- Handles all events that engine has now, without waiting for more.
function M.refresh(engine)
  for _ = 1, REFRESHES do
    M.wait_signal(signals.new(1), 0)
    if not engine.handle or engine.i == engine.n
      and C.perigee_arm(engine.handle, nil) ~= 1 then
      return
    end
  end
end

--- Drops all tasks: parked ones are never resumed, and ready ones do not run.
-- Called after a stop, at the end of run().
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

--- How many engines a loop polls at most, as perigee_wait does.
M.ENGINES = 64

--- Does the loop poll as many engines as it can? A parent's, in a forked child,
-- are not polled any more once another one is added.
function M.is_full()
  local count = 0
  for _, engine in ipairs(state.engines) do
    if engine.alive[0] ~= 0 then count = count + 1 end
  end
  return count >= M.ENGINES
end

--- Makes the loop poll engine, whose handle, alive, events, i and n are set. In
-- a forked child it stops polling the parent's, which would fail.
function M.add_engine(engine)
  local engines = {}
  for _, other in ipairs(state.engines) do
    if other.alive[0] ~= 0 then
      engines[#engines + 1] = other
    else
      state.forked = true
    end
  end
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
