-- SPDX-License-Identifier: Apache-2.0
-- The two pictures of echoes: time over size, and Perigee's time over that of
-- the best rival over size, by shared memory and by TCP.

local chart = require "perigee.bench.chart"

local M = {}

local PATHS = { { "shm", "shared memory", false }, { "tcp", "TCP", true } }
local SIZES = "bytes each way"
local HALF = 0.5 -- the step of ratios; at least so much above 1 is shown

-- "0.1 us", "10 ms"
local function duration(us)
  if us >= 1e6 then return ("%g s"):format(us / 1e6) end
  return us >= 1e3 and ("%g ms"):format(us / 1e3) or ("%g us"):format(us)
end

local function points_of(echoes, field)
  local points = {}
  for i, one in ipairs(echoes) do points[i] = { one.size, one[field] } end
  return points
end

-- Returns a line for each path and each of the ways, { field, words, colour }.
local function lines_of(measured, ways)
  local lines = {}
  for _, path in ipairs(PATHS) do
    for _, way in ipairs(ways) do
      lines[#lines + 1] = { name = way[2] .. ", " .. path[2], colour = way[3],
        dashed = path[3], points = points_of(measured[path[1]], way[1]) }
    end
  end
  return lines
end

local function axis_of_ratios(lines)
  local _, high = chart.bounds(lines, 2)
  high = math.max(1 + HALF, math.ceil(high / HALF) * HALF)
  return { title = "Perigee over the best rival: below 1 Perigee wins",
           low = 0, high = high, ticks = chart.steps(0, high, HALF, 1) }
end

-- Returns the text of both pictures, time and ratio, or nil in place of one of
-- which nothing was measured. measured: shm and tcp, echoes of rows.lua.
function M.draw(measured)
  local times = lines_of(measured, { { "raw", "raw", 1 },
    { "inplace", "in place", 2 }, { "rival", "best rival", 3 } })
  local ratios = lines_of(measured, { { "raw_ratio", "raw", 1 },
                                      { "inplace_ratio", "in place", 2 } })
  return chart.bounds(times, 2) and chart.draw {
    title = "Time of an echo, from Lua, beside the best rival from C",
    description = "p50 over size, both axes logarithmic; the table of \z
                   figures.md has the same as numbers.",
    x = chart.sizes(SIZES, times),
    y = chart.decades("p50 of an echo", times, duration), lines = times,
  }, chart.bounds(ratios, 2) and chart.draw {
    title = "Perigee's time over that of the best rival",
    description = "Ratio of p50 over size, with a line at 1; the table of \z
                   figures.md has the same as numbers.",
    x = chart.sizes(SIZES, ratios), y = axis_of_ratios(ratios), lines = ratios,
    rule = 1,
  }
end

return M
