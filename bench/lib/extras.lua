-- SPDX-License-Identifier: Apache-2.0
-- What bench/rpc.lua measures besides calls of a given size: connecting,
-- waking a sleeping server, other sessions beside, and what idling and calling
-- use up.

local calls = require "bench.lib.calls"
local floor = require "bench.lib.floor"
local perftest = require "bench.lib.perftest"
local process = require "bench.lib.process"
local resources = require "bench.lib.resources"
local rounds = require "bench.lib.rounds"
local tcp = require "bench.lib.tcp"
local wrong = require "bench.lib.payload".wrong

local now = process.now

local M = {}

local CONNECT_BYTES, ECHO = 2 ^ 18, 64
local QUIET, SETTLE = 0.0003, 0.1

local function floor_of(run, program, size)
  if run.given.no_floor then return nil end
  if run.transport == "verbs" then
    if program ~= "floor_wake" then return nil, "none for RDMA" end
    return perftest.of(run, { program = "ib_send_lat", size = size, scale = 2,
                              events = true })
  end
  if run.transport == "tcp" then
    if program == "floor_wake" then return tcp.wake(run, size) end
    return tcp.bare(run, "connect", size)
  end
  return floor.of(program, run.given, {}, size)
end

-- connect: the time until the session can be called. Closing it is not timed.
function M.connect(run)
  local side = run.side
  local function step(samples, capacity, until_ns)
    local n, ended = 0
    repeat
      local begin = now()
      local session = side:connect "idle.sock"
      ended = now()
      session:close()
      samples[n] = ended - begin
      n = n + 1
    until n >= capacity or ended >= until_ns
    return n
  end
  run.report:progress "connect"
  run.report:row(rounds.measure(
    { mode = "connect", size = 0, window = 1, sessions = 1 }, run.given, step,
    floor_of(run, "floor_connect", CONNECT_BYTES)))
end

-- sleeping: an inplace call of 64 B to a server that has gone to sleep. The
-- row tells how often each side slept for a call. Each sample takes two calls:
-- one is timed, and all bytes of the other are compared.
function M.sleeping(run)
  local call = calls.inplace(run.proxy, ECHO)
  local one = require "ffi".new "double[2]"
  local asked, here, there = 0, 0, 0
  local function step(samples, capacity, until_ns)
    local n, mine = 0, run.engine:stats().sleeps
    local theirs = run.proxy:sleeps()
    repeat
      process.sleep(QUIET)
      call(one, 1, 0)
      samples[n] = one[0]
      n = n + 1
    until n >= capacity or now() >= until_ns
    asked, here = asked + 2 * n, here + run.engine:stats().sleeps - mine
    there = there + run.proxy:sleeps() - theirs
    return n
  end
  run.report:progress("sleeping", ECHO)
  local row = rounds.measure(
    { mode = "sleeping", size = ECHO, window = 1, sessions = 1 }, run.given,
    step, floor_of(run, "floor_wake", ECHO))
  row.driver_sleeps, row.worker_sleeps = here / asked, there / asked
  run.report:row(row)
end

-- sessions: an inplace call of 64 B while 63 other sessions are idle; its
-- floor is the same call without them.
function M.beside(run)
  local count = run.given.sessions > 1 and run.given.sessions or 64
  local step = calls.inplace(run.proxy, ECHO)
  local function alone(seconds)
    run.side:set_idle(0)
    local round = rounds.round(step, seconds)
    run.side:set_idle(count - 1)
    return { ["one session"] = round.histogram }
  end
  run.report:progress("beside", ECHO)
  run.report:row(rounds.measure(
    { mode = "beside", size = ECHO, window = 1, sessions = count }, run.given,
    step, not run.given.no_floor and alone or nil))
  run.side:set_idle(run.given.sessions - 1)
end

-- Returns what this process and the worker used together (`both`), or only the
-- worker.
local function used(run, key, both)
  local there, err = run.proxy:resources()
  if not there then wrong("resources", err) end
  return there[key] + (both and resources.used()[key] or 0)
end

-- idle: processor time of a server with 10 sessions that has nothing to do but
-- heartbeats. This side sends them, too.
function M.idle(run)
  local seconds = math.max(run.given.seconds, 2)
  local sleep = require "perigee".sleep
  run.report:progress "idle"
  run.side:set_idle(9)
  sleep(SETTLE)
  local before = used(run, "cpu")
  sleep(SETTLE)
  local base = used(run, "cpu") - before
  before = used(run, "cpu")
  sleep(SETTLE + seconds)
  local share = (used(run, "cpu") - before - base) / seconds
  run.side:set_idle(run.given.sessions - 1)
  run.report:figure("idle_cpu_percent", math.max(share * 100, 0),
                    "idle server with 10 sessions: %.3f %% of a core")
end

-- memory: what one more idle session takes, both sides together.
function M.memory(run)
  local count = 64
  run.report:progress "memory"
  run.side:set_idle(count)
  run.side:set_idle(0)
  local before = used(run, "memory", true)
  run.side:set_idle(count)
  local bytes = (used(run, "memory", true) - before) / count
  run.side:set_idle(run.given.sessions - 1)
  run.report:figure("idle_session_bytes", bytes,
                    "an idle session, both sides: %.0f bytes")
end

-- Returns the bytes that a call leaves to the collector, the mean of `count`
-- calls.
local function allocated(step, count)
  local samples = require "ffi".new("double[?]", count)
  step(samples, count, math.huge)
  collectgarbage()
  collectgarbage "stop"
  local before = collectgarbage "count"
  step(samples, count, math.huge)
  local kib = collectgarbage "count" - before
  collectgarbage "restart"
  return kib * 1024 / count
end

-- allocations: the Lua memory that each call of 64 B takes.
function M.allocations(run)
  local count = 100000
  local kinds = {
    { "inplace", calls.inplace(run.proxy, ECHO) },
    { "raw", calls.raw(run.proxy, ECHO, run.engine) },
    { "typed", calls.typed(run.proxy) },
  }
  for _, kind in ipairs(kinds) do
    jit.flush()
    run.report:progress("allocations of " .. kind[1])
    run.report:figure("lua_bytes_per_call_" .. kind[1],
                      allocated(kind[2], count),
                      "Lua allocation, " .. kind[1] .. ": %.2f bytes a call")
  end
end

return M
