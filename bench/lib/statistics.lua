-- SPDX-License-Identifier: Apache-2.0
-- What is reported of the samples, and which rounds count.
--
-- The latency between two cores of a virtual machine changes over time (by a
-- factor of four within seconds). So the floor and the program take turns, and
-- a round of the program counts only if the floor's bursts before and after it
-- agree with the floor's median. Both pools of samples then come from the same
-- state of the machine.

local histogram = require "perigee.bench.histogram"

local TOLERANCE = 1.25

local M = {}

local function median(values)
  local sorted = {}
  for i, value in ipairs(values) do sorted[i] = value end
  table.sort(sorted)
  return sorted[math.ceil(#sorted / 2)]
end

local function near(value, middle)
  return value <= middle * TOLERANCE and value * TOLERANCE >= middle
end

M.median, M.near = median, near

-- `bursts` has the floor's histograms, one more than there are rounds. Returns
-- the numbers of the rounds that count: all, if the floor never settled.
function M.agreeing(bursts)
  local p50, kept, all = {}, {}, {}
  for i, burst in ipairs(bursts) do p50[i] = burst:quantile(0.5) end
  local middle = median(p50)
  for i = 1, #bursts - 1 do
    all[i] = i
    if near(p50[i], middle) and near(p50[i + 1], middle) then
      kept[#kept + 1] = i
    end
  end
  return #kept > 0 and kept or all
end

local function pooled(list, chosen)
  local pool = histogram.new()
  for _, i in ipairs(chosen) do pool:merge(list[i].histogram or list[i]) end
  return pool
end

local function floor_pool(bursts, kept)
  local used, chosen = {}, {}
  for _, i in ipairs(kept) do used[i], used[i + 1] = true, true end
  for i = 1, #bursts do
    if used[i] then chosen[#chosen + 1] = i end
  end
  return pooled(bursts, chosen)
end

-- For a floor that is a rate: compares the time of a call at the median of the
-- rounds' rates, with as many under way, with the floor's.
local function by_rate(row, rounds, kept)
  local times = {}
  for i, round in ipairs(kept) do
    times[i] = rounds[round].seconds / rounds[round].calls * 1e6 * row.window
  end
  row.floor_gb_per_s = row.size * row.window / row.floor_p50_us / 1e3
  row.ratio = median(times) / row.floor_p50_us
  row.by_rate = nil
end

-- Makes a row from rounds ({ histogram, seconds, calls }) and the floor's
-- bursts (nil: there is no floor). row.size is the payload of one call.
function M.row(row, rounds, bursts)
  local kept = {}
  for i = 1, #rounds do kept[i] = i end
  if bursts then kept = M.agreeing(bursts) end
  local pool = pooled(rounds, kept)
  local seconds, calls = 0, 0
  for _, i in ipairs(kept) do
    seconds, calls = seconds + rounds[i].seconds, calls + rounds[i].calls
  end
  row.calls = calls
  row.mean_us = pool:mean() / 1e3
  row.p50_us = pool:quantile(0.5) / 1e3
  row.p99_us = pool:quantile(0.99) / 1e3
  row.p999_us = pool:quantile(0.999) / 1e3
  row.calls_per_s = calls / seconds
  row.gb_per_s = row.calls_per_s * row.size / 1e9
  row.rounds, row.rounds_kept = #rounds, #kept
  if bursts then
    local floor = floor_pool(bursts, kept)
    row.floor_p50_us = floor:quantile(0.5) / 1e3
    row.floor_p99_us = floor:quantile(0.99) / 1e3
    row.floor_calls_per_s = (row.window or 1) * 1e9 / floor:mean()
    row.ratio = row.p50_us / row.floor_p50_us
    if row.by_rate then by_rate(row, rounds, kept) end
  end
  return row
end

-- Makes one row of row k of several processes: the sum of rates, the mean of
-- times, and the largest time of the tail.
function M.together(all, k)
  local row = {}
  for name, value in pairs(all[1][k]) do row[name] = value end
  local calls = 0
  for _, rows in ipairs(all) do calls = calls + rows[k].calls end
  local function combined(name, how)
    local total, most = 0, 0
    for _, rows in ipairs(all) do
      local one = rows[k]
      if not one[name] then return nil end
      most = math.max(most, one[name])
      total = total + one[name] * (how == "mean" and one.calls / calls or 1)
    end
    return how == "most" and most or total
  end
  for _, name in ipairs { "mean_us", "p50_us", "floor_p50_us", "ratio" } do
    row[name] = combined(name, "mean")
  end
  for _, name in ipairs { "p99_us", "p999_us", "floor_p99_us" } do
    row[name] = combined(name, "most")
  end
  for _, name in ipairs { "calls", "calls_per_s", "gb_per_s", "floor_gb_per_s",
                          "floor_calls_per_s",
                          "rounds", "rounds_kept" } do
    row[name] = combined(name, "sum")
  end
  row.processes = #all
  return row
end

return M
