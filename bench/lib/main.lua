-- SPDX-License-Identifier: Apache-2.0
-- The run of a bench. Each mode has a driver and a worker process of its own,
-- so that no mode runs on compiled traces or in memory left by another. With
-- several modes the bench starts itself once for each. With --processes N it
-- starts itself N times for each mode, and the rounds and bursts of these
-- processes begin together.

local cjson = require "cjson"
local kinds = require "bench.lib.kinds"
local process = require "bench.lib.process"
local report = require "bench.lib.report"
local statistics = require "bench.lib.statistics"

local M = {}

-- Returns this bench's command line with more options behind it; of several
-- equal options the last one counts.
local function command(...)
  local words = process.interpreter()
  for i = 0, #arg do words[#words + 1] = arg[i] end
  for _, word in ipairs { "--child-of", process.pid(), ... } do
    words[#words + 1] = word
  end
  return words
end

local function in_child(out, mode)
  local child = assert(process.spawn(command("--mode", mode)))
  for line in child:lines() do out:take(line) end
  if child:wait() ~= 0 then error(mode .. " has failed", 0) end
end

-- ---- Several processes at once ---------------------------------------------

-- Collects the child's rows until it waits for the others (true) or ends
-- (false).
local function comes(child, rows)
  for line in child:lines() do
    local record = cjson.decode(line)
    if record.what == "meet" then return true end
    if record.what == "row" then
      rows[#rows + 1] = record.values[1]
    elseif record.what == "carried_by" then
      rows.transport = record.values[1]
    end
  end
  return false
end

local function start_several(given, mode)
  local children, cores = {}, process.cores()
  for i = 1, given.processes do
    local pin = ("%d,%d"):format((given.pin[1] + 2 * (i - 1)) % cores,
                                 (given.pin[2] + 2 * (i - 1)) % cores)
    local part = given.connect and i - 1 or 0
    children[i] = assert(process.spawn(
      command("--mode", mode, "--pin", pin, "--part", part)))
  end
  return children
end

-- Lets the children go on together whenever all of them have come to the same
-- point.
local function in_children(out, given, mode)
  local children, rows, going = start_several(given, mode), {}, true
  for i = 1, #children do rows[i] = {} end
  while going do
    local waiting = {}
    for i, child in ipairs(children) do
      if comes(child, rows[i]) then waiting[#waiting + 1] = child end
    end
    for _, child in ipairs(waiting) do child:tell "\n" end
    going = #waiting > 0
  end
  for _, child in ipairs(children) do
    if child:wait() ~= 0 then error(mode .. " has failed", 0) end
  end
  out:carried_by(rows[1].transport)
  for k = 1, #rows[1] do out:row(statistics.together(rows, k)) end
end

local function meet()
  print(cjson.encode { what = "meet" })
  io.flush()
  io.read()
end

-- Ends a bench whose memory this machine does not have.
local function check_kinds(bench, key, given)
  local why = given.kind and not given.child_of and kinds.missing(given)
  if not why then return end
  report.new(bench, key, given):not_run(why)
  os.exit(kinds.NOT_RUN)
end

local function run(bench, key, given, measure)
  check_kinds(bench, key, given)
  if given.child_of then
    process.die_with_parent(given.child_of)
    if given.processes > 1 then given.meet = meet end
  end
  local out = report.new(bench, key, given)
  if given.child_of or #given.mode == 1 and given.processes == 1 then
    measure(given, out)
  else
    for _, mode in ipairs(given.mode) do
      if given.processes > 1 then
        in_children(out, given, mode)
      else
        in_child(out, mode)
      end
    end
  end
  out:finish()
end

-- measure(given, report) measures the modes of `given`. An error that it
-- raises is printed and ends the bench with status 1.
function M.run(bench, key, given, measure)
  local fine, message = pcall(run, bench, key, given, measure)
  if fine then return end
  io.stderr:write(bench, ": ", tostring(message), "\n")
  os.exit(1)
end

return M
