-- SPDX-License-Identifier: Apache-2.0
-- What a peer of the soak has begun, how it has ended, and what was wrong. Each
-- line is JSON on standard output, at most LONGEST bytes in one write, so that
-- the judge never waits for the rest of a line.
--
-- An operation ends once, within its timeout and GRACE. A clock of ticks tells
-- the time: each is at least a second long, and time in which this process was
-- stopped, or had no core, is one tick at most.
--
-- Every completion event is looked at as well: one for an operation that is not
-- in flight is an operation's second end.

local cjson = require "cjson"
local ffi = require "ffi"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local process = require "bench.lib.process"

local LONGEST, TEXT = 4000, 1500
local FAULTS = 20 -- that a peer tells
local TOLD = 256  -- bytes of what the core says of an operation
local told_text = ffi.new("char[?]", TOLD)

-- running: the tasks of this peer (coroutines) that have not ended, by name.
local M = { counts = {}, pending = {}, told = 0, open = 0, running = {} }

--- Writes one line for the judge.
function M.say(what)
  local line = cjson.encode(what) .. "\n"
  if #line > LONGEST then error("a line of " .. #line .. " bytes", 2) end
  ffi.C.write(1, line, #line)
end

--- Tells that something was wrong. kind is one of verdict.lua's.
function M.fault(kind, text, ...)
  M.told = M.told + 1
  if M.told > FAULTS then return end
  M.say { what = "fault", kind = kind, text = text:format(...):sub(1, TEXT) }
end

-- ---- Tasks and operations --------------------------------------------------

--- Notes that the running task has begun, and that it is over.
function M.enter(name)
  M.running[coroutine.running()] = name
end

function M.leave()
  M.running[coroutine.running()] = nil
end

--- Notes the begin of an operation that has this many seconds.
function M.begin(kind, seconds)
  local entry = { kind = kind, left = seconds + M.grace,
                  task = coroutine.running() }
  M.pending[entry], M.open = true, M.open + 1
  return entry
end

--- Notes its end: "ok", or the kind of an error.
function M.finish(entry, how)
  M.pending[entry], M.open = nil, M.open - 1
  local of_kind = M.counts[entry.kind] or {}
  M.counts[entry.kind] = of_kind
  of_kind[how] = (of_kind[how] or 0) + 1
end

-- Own operations that wait for an event here, and those that the core has:
-- where the core has fewer, an event was lost.
local function in_flight()
  local here, core = 0, 0
  for _, engine in ipairs(loop.state.engines) do
    local stats = engine:stats()
    here = here + engine.flying
    core = core + stats.operations - stats.held_operations
  end
  return ("%d in flight here, %d in the core"):format(here, core)
end

local function count(list)
  local n = 0
  for _ in pairs(list) do n = n + 1 end
  return n
end

--- Tells where the end of a future is: who owns its operation, whether the end
-- would find the future, and what the core has of that number.
function M.where(future)
  local owner, operation = future.owner, future.operation
  local engine = owner and owner.engine
  local doing = futures.doing(future)
  if not operation then return doing .. ": no operation of the core" end
  if not engine.handle then return doing .. ": its engine was closed" end
  local found = engine.inflight[operation]
  native.C.perigee_operation_text(engine.handle, operation, told_text, TOLD)
  return ("%s: operation %d of %s, whose end would find %s; the core: %s")
    :format(doing, operation, (owner.session or owner):text(),
            found == future and "it" or found and "another" or "nothing",
            ffi.string(told_text))
end

-- Calls f with each pending future that a parked task has in its hands, and
-- with those that these wait for.
local function each_awaited(task, f)
  local seen, level = {}, 0
  while debug.getinfo(task, level, "f") do
    local i, name, value = 1, debug.getlocal(task, level, 1)
    while name do
      while futures.is_future(value) and not value.ended and not seen[value] do
        seen[value] = true
        f(value)
        value = value.inner
      end
      i = i + 1
      name, value = debug.getlocal(task, level, i)
    end
    level = level + 1
  end
end

local function whereabouts(task)
  local list = {}
  each_awaited(task, function(future) list[#list + 1] = M.where(future) end)
  return #list > 0 and table.concat(list, "; ") or "it waits for no future"
end

local function miss(entry)
  entry.left = entry.left - 1
  if entry.left >= 0 or entry.missed then return end
  entry.missed = true
  M.fault("missing end", "an operation (%s) has not ended (%s); %s; %s",
          entry.kind, in_flight(), whereabouts(entry.task),
          debug.traceback(entry.task))
end

-- An end that was forgotten leaves the number of those in flight wrong.
local function check_flying(engine)
  local entries = count(engine.inflight)
  if entries == engine.flying or engine.miscounted then return end
  engine.miscounted = true
  M.fault("miscount", "%d operations are said to be in flight, and %d are "
    .. "known (%s)", engine.flying, entries, in_flight())
end

local function tick()
  for entry in pairs(M.pending) do miss(entry) end
  for _, engine in ipairs(loop.state.engines) do check_flying(engine) end
end

-- ---- Rests -----------------------------------------------------------------

--- An engine never drops an event that the program has not had.
function M.check_dropped(engine)
  local dropped = engine:stats().dropped
  if dropped == 0 then return end
  M.fault("dropped", "%.0f events were dropped", dropped)
end

-- The counts of an engine for operations of its own and of others.
local KEPT = { "inflight", "replying", "landed", "contexts" }

--- Looks at an engine while no session of its is open.
function M.check_rest(engine)
  M.check_dropped(engine)
  check_flying(engine)
  for _, name in ipairs(KEPT) do
    local n, one = count(engine[name]), next(engine[name])
    if n > 0 then
      M.fault("left behind", "%d entries of %s, one at %s", n, name,
              tostring(one))
    end
  end
end

-- ---- Events ----------------------------------------------------------------

local function doubled(event)
  M.fault("double end", "operation %s has ended again, in status %d",
          tostring(event.operation), event.status)
end

local finish = futures.finish

local function watched(engine, event)
  if not engine.inflight[event.operation] then return doubled(event) end
  if not (M.plant and M.plant(event, engine)) then finish(engine, event) end
end

--- Watches operations and events from now on. grace: seconds. plant(event,
-- engine): whether an end is to be lost on purpose.
function M.watch(perigee, grace, plant)
  M.grace, M.plant = grace, plant
  futures.finish = watched
  for _, kind in ipairs { "DONE", "REPLY", "CONNECTED" } do
    loop.on[native.C["PERIGEE_EVENT_" .. kind]] = watched
  end
  perigee.spawn(function()
    while true do
      local begun = process.now()
      repeat perigee.sleep(1) until process.now() - begun >= 1e9
      tick()
    end
  end)
end

return M
