-- SPDX-License-Identifier: Apache-2.0
-- Programs that are measured in turns: children of a bench, which run the same
-- script with option --role. The bench sends a child a line with a number of
-- seconds, and the child answers with a line of what it measured. The others
-- rest meanwhile.
local ffi = require "ffi"
local histogram = require "perigee.bench.histogram"
local process = require "bench.lib.process"

local M = {}

local SAMPLES = 1e6

--- Splits a text at commas and spaces.
function M.words(list)
  local all = {}
  for word in list:gmatch "[^,%s]+" do all[#all + 1] = word end
  return all
end

-- ---- A child ---------------------------------------------------------------

--- Prints a line for the bench.
function M.tell(line)
  io.write(line, "\n")
  io.flush()
end

--- Takes turns until the bench ends. Each calls step(samples, capacity,
-- until_ns), which returns how many samples it took, in ns. The first tenth of
-- each turn has no samples.
function M.take(step)
  local samples = ffi.new("double[?]", SAMPLES)
  step(samples, SAMPLES, process.now() + 2e8)
  M.tell "there"
  for line in io.lines() do
    local seconds = tonumber(line)
    step(samples, SAMPLES, process.now() + seconds * 1e8)
    local taken = histogram.new()
    taken:add_all(samples, step(samples, SAMPLES,
                                process.now() + seconds * 1e9))
    M.tell(("%.0f %.0f %.0f %d"):format(taken:mean(), taken:quantile(0.5),
                                        taken:quantile(0.99), taken.count))
  end
end

-- ---- The bench -------------------------------------------------------------

local children = {}

--- Starts this script in a role, with options (a table of names and values),
-- in a network namespace if one is given. Returns the child and its first
-- line.
function M.start(role, options, namespace)
  local command = namespace and { "nsenter", "--net=" .. namespace } or {}
  for _, word in ipairs(process.interpreter()) do
    command[#command + 1] = word
  end
  for _, word in ipairs { arg[0], "--role", role, "--parent", process.pid() } do
    command[#command + 1] = word
  end
  for name, value in pairs(options) do
    command[#command + 1] = "--" .. name
    command[#command + 1] = value
  end
  local child = assert(process.spawn(command))
  children[#children + 1] = child
  return child, child:line() or error("a " .. role .. " did not start", 0)
end

--- Ends all children.
function M.stop()
  while #children > 0 do table.remove(children):stop() end
end

--- Has a child take a turn; returns mean, p50 and p99 in ns, and count.
function M.turn(child, seconds)
  child:tell(seconds .. "\n")
  local mean, p50, p99, count =
    (child:line() or ""):match "^(%d+) (%d+) (%d+) (%d+)$"
  if not mean then error("a client ended", 0) end
  return { mean = tonumber(mean), p50 = tonumber(p50), p99 = tonumber(p99),
           count = tonumber(count) }
end

--- Returns the median of a figure over several turns, divided by 1000.
function M.middle(turns, name)
  local values = {}
  for i, one in ipairs(turns) do values[i] = one[name] end
  table.sort(values)
  return values[math.ceil(#values / 2)] / 1e3
end

return M
