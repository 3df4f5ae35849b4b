-- SPDX-License-Identifier: Apache-2.0
-- The distance between the two cores, in ns: the p50 of a ping-pong of one
-- cache line. It changes in a virtual machine, whose cores wander. A burst
-- counts if the distance fits before and after it: if it is within the range
-- that --line names, else if it is near the median of all that were taken.

local floor = require "bench.lib.floor"
local process = require "bench.lib.process"
local statistics = require "bench.lib.statistics"

local M = {}

local PROBE_SIZE, PROBE_SECONDS = 64, 0.005
-- In seconds: for which a distance that was taken holds; between looks for one
-- that fits, and for how long.
local FRESH, PAUSE, PATIENCE = 0.05, 0.2, 60

local taken, taken_at = {}, nil -- all distances; when the last was taken
local patient = true

-- Returns the distance now; 0 where both sides share a core, for there is none.
function M.take(given)
  if given.one_core then return 0 end
  local best = math.huge
  for _, pool in pairs(floor.burst("floor_echo", given, {}, PROBE_SECONDS,
                                   PROBE_SIZE)) do
    best = math.min(best, pool:quantile(0.5))
  end
  taken[#taken + 1] = best
  taken_at = process.now()
  return best
end

-- Returns what tells whether a distance fits: it is about the middle of these.
function M.about(distances)
  local middle = statistics.median(distances)
  return function(ns) return statistics.near(ns, middle) end
end

-- The same of --line, else of all that were taken.
function M.fitting(given)
  local range = given.line
  if not range then return M.about(taken) end
  return function(ns) return range[1] <= ns and ns <= range[2] end
end

-- Returns whether a burst counts.
function M.fits(burst, fitting)
  return burst.before == 0
         or fitting(burst.before) and fitting(burst.after)
end

-- Waits for a distance that fits, until its patience has an end; from then on
-- nobody waits. ns: that of now.
local function await(given, ns)
  local limit = process.now() + PATIENCE * 1e9
  while not M.fitting(given)(ns) do
    if process.now() > limit then
      patient = false
      break
    end
    process.sleep(PAUSE)
    ns = M.take(given)
  end
  return ns
end

-- Returns the distance before a burst, which may be that behind the one before.
-- any: it does not matter how near the cores are.
function M.before(given, any)
  local fresh = taken_at and process.now() - taken_at < FRESH * 1e9
  local ns = fresh and taken[#taken] or M.take(given)
  local waits = given.line and patient and not any and ns ~= 0
  return waits and await(given, ns) or ns
end

-- "0-250" --> { 0, 250 }; "250" is the same.
function M.range(text)
  local least, most = text:match "^(%d+)%-(%d+)$"
  least, most = tonumber(least or 0), tonumber(most or text)
  if not most or most <= least then
    return nil, ("'%s' is no range of ns, as in 0-250"):format(text)
  end
  return { least, most }
end

return M
