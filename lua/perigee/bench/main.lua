-- SPDX-License-Identifier: Apache-2.0
-- How a bench runs: each mode in processes of its own, driver and worker, so
-- that no mode runs on the compiled traces, or in the memory, that another one
-- left. With several modes the bench starts itself for each.

local process = require "perigee.bench.process"
local report = require "perigee.bench.report"

local M = {}

-- The own command line with other options behind it; the last one counts.
local function command(mode)
  local words = process.interpreter()
  for i = 0, #arg do words[#words + 1] = arg[i] end
  for _, word in ipairs { "--mode", mode, "--child-of", process.pid() } do
    words[#words + 1] = word
  end
  return words
end

local function in_child(out, mode)
  local child = assert(process.spawn(command(mode)))
  for line in child.line, child do out:take(line) end
  if child:wait() ~= 0 then error(mode .. " has failed", 0) end
end

local function run(bench, key, given, measure)
  if given.child_of then process.die_with_parent(given.child_of) end
  local out = report.new(bench, key, given)
  if #given.mode == 1 then
    measure(given, out)
  else
    for _, mode in ipairs(given.mode) do in_child(out, mode) end
  end
  out:finish()
end

-- measure(given, report) measures the modes of `given`; what it raises is
-- printed and ends the bench with status 1.
function M.run(bench, key, given, measure)
  local fine, message = pcall(run, bench, key, given, measure)
  if fine then return end
  io.stderr:write(bench, ": ", tostring(message), "\n")
  os.exit(1)
end

return M
