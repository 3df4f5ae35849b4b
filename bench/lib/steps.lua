-- SPDX-License-Identifier: Apache-2.0
-- Reads what bench/steps.c wrote: stretches of instructions, each as runs of
-- one part. Parts are lua, core, and device, which is the device's library.

local process = require "bench.lib.process"

local M = {}

local PROVIDER, PROVIDER_ELSE = "rdmav%d+%.so", "/libmlx[45]%.so" -- rdma-core's

-- Returns the part that an instruction belongs to; nil: to that of its caller.
local function part_of(object)
  if object:find(PROVIDER) or object:find(PROVIDER_ELSE) then
    return "device"
  end
  if object:find "core%.so$" then return "core" end
  if object == "compiled" or object:find "/luajit[^/]*$" then return "lua" end
end

-- Adds an instruction to the runs: { part, count, systems, offsets }.
local function add(runs, part, offset)
  local run = runs[#runs]
  if not run or part and part ~= run.part then
    run = { part = part or "lua", count = 0, systems = 0, offsets = {} }
    runs[#runs + 1] = run
  end
  run.count = run.count + 1
  if offset and part == "core" then
    run.offsets[#run.offsets + 1] = offset
  elseif not offset then
    run.systems = run.systems + 1
  end
end

-- Returns the stretches in a file.
function M.read(path)
  local all, runs = {}, {}
  for line in io.lines(path) do
    local offset, object = line:match "^(%x+) (%S+)$"
    if line == "end" then
      all[#all + 1], runs = runs, {}
    elseif offset then
      add(runs, part_of(object), tonumber(offset, 16))
    else
      add(runs, part_of(line:match "(%S+)$"))
    end
  end
  return all
end

-- Returns the first and the last run in the device's library, and how many
-- there were.
local function visits(runs)
  local first, last, count = nil, nil, 0
  for i, run in ipairs(runs) do
    if run.part == "device" then
      first, last, count = first or i, i, count + 1
    end
  end
  return first, last, count
end

-- Sums the instructions of a part over a range of runs; `what`: sums that
-- field instead.
function M.sum(runs, from, to, part, what)
  local total = 0
  for i = from, to do
    if runs[i].part == part then total = total + runs[i][what or "count"] end
  end
  return total
end

-- Returns the median of the stretches with the fewest visits of the device's
-- library: those with a post and one poll that found something. The others
-- polled in vain or had to post receives again.
function M.typical(all)
  for _, runs in ipairs(all) do
    runs.total = 0
    for _, run in ipairs(runs) do runs.total = runs.total + run.count end
    runs.first, runs.last, runs.visits = visits(runs)
  end
  table.sort(all, function(a, b)
    if a.visits ~= b.visits then return a.visits < b.visits end
    return a.total < b.total
  end)
  local same = 0
  while all[same + 1] and all[same + 1].visits == all[1].visits do
    same = same + 1
  end
  return all[math.ceil(same / 2)]
end

-- ---- Functions of the core -------------------------------------------------

local function symbols()
  local list = {}
  local core = package.searchpath("perigee.core", package.cpath)
  local nm = assert(process.spawn { "nm", "-S", "--defined-only", core })
  for text in nm:rest():gmatch "[^\n]+" do
    local at, size, name = text:match "^(%x+) (%x+) [tT] ([^.%s]+)"
    if at then
      list[#list + 1] = { tonumber(at, 16), tonumber(size, 16), name }
    end
  end
  nm:wait()
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

local function name_of(list, offset)
  local low, high = 1, #list
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if list[middle][1] <= offset then low = middle else high = middle - 1 end
  end
  local one = list[low]
  return one and offset < one[1] + one[2] and one[3] or "?"
end

-- Returns the functions in a range of runs, those with the most instructions
-- first, as a list of { name, instructions }.
function M.functions(runs, from, to)
  local list, counts, order = symbols(), {}, {}
  for i = from, to do
    for _, offset in ipairs(runs[i].offsets) do
      local name = name_of(list, offset)
      if not counts[name] then order[#order + 1] = name end
      counts[name] = (counts[name] or 0) + 1
    end
  end
  table.sort(order, function(a, b) return counts[a] > counts[b] end)
  for i, name in ipairs(order) do order[i] = { name, counts[name] } end
  return order
end

return M
