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
local futures = require "perigee.future"
local loop = require "perigee.loop"
local native = require "perigee.native"
local process = require "perigee.bench.process"

local LONGEST, TEXT = 4000, 1500
local FAULTS = 20 -- that a peer tells

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

-- Operations that wait for an event here, and those that the core has: where
-- the core has fewer, an event was lost.
local function in_flight()
  local here, core = 0, 0
  for _, engine in ipairs(loop.state.engines) do
    here, core = here + engine.flying, core + engine:stats().operations
  end
  return ("%d in flight here, %d in the core"):format(here, core)
end

local function tick()
  for entry in pairs(M.pending) do
    entry.left = entry.left - 1
    if entry.left < 0 and not entry.missed then
      entry.missed = true
      M.fault("missing end", "an operation (%s) has not ended (%s): %s",
              entry.kind, in_flight(), debug.traceback(entry.task))
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
  if not (M.plant and M.plant(event)) then finish(engine, event) end
end

--- Watches operations and events from now on. grace: seconds. plant(event):
-- whether an end is to be lost on purpose.
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
