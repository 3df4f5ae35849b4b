-- SPDX-License-Identifier: Apache-2.0
-- The two pictures of echoes: time over size, and Perigee's time over that of
-- the best rival over size, by shared memory and by TCP.

local chart = require "bench.lib.chart"
local text = require "perigee.bench.table"

local M = {}

local PATHS = { { "shm", "shared memory", false }, { "tcp", "TCP", true } }
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

-- Returns the least and the greatest of what the lines have: column 1 or 2 of
-- their points. nil if they have nothing.
local function bounds(lines, column)
  local low, high
  for _, line in ipairs(lines) do
    for _, point in ipairs(line.points) do
      local value = point[2] and point[column]
      if value then
        low = math.min(low or value, value)
        high = math.max(high or value, value)
      end
    end
  end
  return low, high
end

local function axis_of_sizes(lines)
  local low, high = bounds(lines, 1)
  high = math.max(high, 2 * low)
  return { title = "bytes each way", low = low, high = high, log = true,
           ticks = chart.powers(low, high, high / low > 64 and 4 or 2,
                                text.size) }
end

local function axis_of_times(lines)
  local low, high = bounds(lines, 2)
  low = 10 ^ math.floor(math.log10(low))
  high = 10 ^ math.ceil(math.log10(high * 1.0001))
  return { title = "p50 of an echo", low = low, high = high, log = true,
           ticks = chart.powers(low, high, 10, duration) }
end

local function axis_of_ratios(lines)
  local _, high = bounds(lines, 2)
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
  return bounds(times, 2) and chart.draw {
    title = "Time of an echo, from Lua, beside the best rival from C",
    description = "p50 over size, both axes logarithmic; the table of \z
                   figures.md has the same as numbers.",
    x = axis_of_sizes(times), y = axis_of_times(times), lines = times,
  }, bounds(ratios, 2) and chart.draw {
    title = "Perigee's time over that of the best rival",
    description = "Ratio of p50 over size, with a line at 1; the table of \z
                   figures.md has the same as numbers.",
    x = axis_of_sizes(ratios), y = axis_of_ratios(ratios), lines = ratios,
    rule = 1,
  }
end

return M
