-- SPDX-License-Identifier: Apache-2.0
-- Measures the floor and the program in turns, beginning and ending with the
-- floor. Turns are short, so that both see the machine in the same state.
-- The processes of the other sleep while one runs.

local ffi = require "ffi"
local histogram = require "perigee.bench.histogram"
local process = require "bench.lib.process"
local statistics = require "bench.lib.statistics"

local M = {}

local CAPACITY = 2 ^ 21
local SETTLE = 0.005
-- Not in Lua's heap: with 16 MiB there the collector would wait for as much
-- garbage, which has left the caches by then.
ffi.cdef "void *calloc(size_t count, size_t size);"
local samples = ffi.cast("double *", ffi.C.calloc(CAPACITY, 8))

-- Runs a round of `step(samples, capacity, until_ns)`, which fills in the
-- duration of each call and returns the number of calls, and, if calls
-- overlap, the ns that they took together.
function M.round(step, seconds, warm_up)
  step(samples, 3, 0)
  step(samples, CAPACITY, process.now() + (warm_up or seconds / 8) * 1e9)
  local pool = histogram.new()
  local calls, ns = step(samples, CAPACITY, process.now() + seconds * 1e9)
  pool:add_all(samples, calls)
  return { histogram = pool, calls = calls, seconds = (ns or pool.sum) / 1e9 }
end

-- Returns the bursts of the best of several floors: the one with the lowest
-- median over all bursts.
local function better(bursts)
  local pools = {}
  for _, burst in ipairs(bursts) do
    for what, pool in pairs(burst) do
      pools[what] = pools[what] or histogram.new()
      pools[what]:merge(pool)
    end
  end
  local best
  for what, pool in pairs(pools) do
    if not best or pool:quantile(0.5) < pools[best]:quantile(0.5) then
      best = what
    end
  end
  local chosen = {}
  for i, burst in ipairs(bursts) do chosen[i] = burst[best] end
  return chosen, best
end

-- Runs the floor's burst once the worker has gone to sleep; nil and why if
-- there is none.
local function burst(floor, options, seconds)
  if options.meet then options.meet() end
  process.sleep((options.spin or 0) + SETTLE)
  return floor(seconds)
end

-- Completes `row` from options.turns turns. floor: nil, or a function of
-- seconds that returns { what = histogram }; if it returns nil and a reason,
-- the row has no floor. why: why there is no floor, where `floor` is nil.
-- row.by_rate: the floor gives a rate, so rates are compared. options.meet:
-- nil, or waits until the bench's other processes have come to the same point.
function M.measure(row, options, step, floor, why)
  local seconds = (row.seconds or options.seconds) / options.turns
  local rounds, bursts = {}, {}
  step(samples, 3, 0) -- a session opens its further sockets during polls
  if floor then bursts[1], why = burst(floor, options, seconds) end
  for turn = 1, options.turns do
    if options.meet then options.meet() end
    rounds[turn] = M.round(step, seconds, options.warm_up)
    if bursts[turn] then -- after a failed burst the one before counts again
      bursts[turn + 1] = burst(floor, options, seconds) or bursts[turn]
    end
  end
  row.seconds = nil
  if #bursts <= options.turns then
    row.no_floor, row.by_rate = why, nil
    return statistics.row(row, rounds)
  end
  local chosen, what = better(bursts)
  row.floor = what
  return statistics.row(row, rounds, chosen)
end

return M
