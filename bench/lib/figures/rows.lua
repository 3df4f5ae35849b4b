-- SPDX-License-Identifier: Apache-2.0
-- The arithmetic of the figures: from the rows of all documents to Perigee
-- beside the quickest of the others, and to steps from a size to twice of it.

local plan = require "bench.lib.figures.plan"
local statistics = require "bench.lib.statistics"

local M = {}

-- The most that twice the bytes may take; above that it is a cliff.
M.CLIFF = 2.3

-- Whether a row is of another system.
function M.is_rival(row)
  return row.peer and row.floor ~= true and not row.peer:find "^perigee"
end

-- JSON's null is no value.
local function number(value)
  return type(value) == "number" and value or nil
end

-- Returns the row of compare.lua of a peer, nil if it was not measured.
function M.find(rows, peer, mode, size)
  for _, row in ipairs(rows) do
    if row.peer == peer and row.mode == mode and row.size == size
       and number(row.p50_us) then
      return row
    end
  end
end

-- Returns the row of the other system that has the least value of the field by
-- that path; more: the greatest. nil if none was measured.
function M.best(rows, path, mode, size, field, more)
  local best
  for _, row in ipairs(rows) do
    if M.is_rival(row) and row.path == path and row.mode == mode
       and row.size == size and number(row[field])
       and (not best or (row[field] > best[field]) == (more or false)) then
      best = row
    end
  end
  return best
end

local function over(a, b) return a and b and a / b or nil end

-- Returns what was measured of echoes of a size by a path: raw, inplace, floor,
-- floor_inplace and rival (p50 in us), name of the rival, ratios over it and
-- the floors, and line (ns there and back). What is missing is nil.
local function echo(rows, path, size)
  local entry = { size = size }
  for _, what in ipairs(plan.WAYS) do
    local row = M.find(rows, plan.OURS[path][what], "echo", size)
    entry[what] = row and row.p50_us
    entry.line = entry.line or row and number(row.line_ns)
  end
  local best = M.best(rows, path, "echo", size, "p50_us")
  entry.rival, entry.name = best and best.p50_us, best and best.peer
  entry.raw_ratio = over(entry.raw, entry.rival)
  entry.inplace_ratio = over(entry.inplace, entry.rival)
  entry.raw_floor = over(entry.raw, entry.floor)
  entry.inplace_floor = over(entry.inplace, entry.floor_inplace)
  return entry
end

-- Were both measured with the cores equally near?
local function alike(one, other)
  return one.line and other.line and (one.line == other.line
         or statistics.near(one.line, other.line))
end

-- Returns the echoes by a path, one for each size of which any was measured,
-- with raw_twice and inplace_twice: the time for twice the bytes over that for
-- these, if the cores were equally near.
function M.echoes(rows, path, sizes)
  local list, by = {}, {}
  for _, size in ipairs(sizes) do
    local one = echo(rows, path, size)
    if one.raw or one.inplace or one.rival then
      list[#list + 1], by[size] = one, one
    end
  end
  for _, one in ipairs(list) do
    local twice = by[2 * one.size] or {}
    if not alike(one, twice) then twice = {} end
    one.raw_twice = over(twice.raw, one.raw)
    one.inplace_twice = over(twice.inplace, one.inplace)
  end
  return list
end

-- ---- In short --------------------------------------------------------------

-- Returns the greatest value of a field, and the size that it is of.
local function greatest(echoes, field)
  local most, size
  for _, one in ipairs(echoes) do
    if one[field] and (not most or one[field] > most) then
      most, size = one[field], one.size
    end
  end
  return most, size
end

-- Returns of raw or inplace echoes: count, of those that have a ratio; ahead,
-- of those at 1.00 or below; mean, the geometric one of ratios; the greatest
-- ratio and its size; the greatest step and its size; cliffs, the number of
-- steps above CLIFF. nil if there is no ratio.
function M.summary(echoes, way)
  local told, sum = { count = 0, ahead = 0, cliffs = 0 }, 0
  for _, one in ipairs(echoes) do
    local ratio, step = one[way .. "_ratio"], one[way .. "_twice"]
    if ratio then
      told.count, sum = told.count + 1, sum + math.log(ratio)
      told.ahead = told.ahead + (ratio <= 1 and 1 or 0)
    end
    told.cliffs = told.cliffs + (step and step > M.CLIFF and 1 or 0)
  end
  if told.count == 0 then return nil end
  told.mean = math.exp(sum / told.count)
  told.ratio, told.ratio_size = greatest(echoes, way .. "_ratio")
  told.step, told.step_size = greatest(echoes, way .. "_twice")
  return told
end

-- ---- Calls and transfers ---------------------------------------------------

local function processor(row) return row.cpu_client_us + row.cpu_server_us end

local function p50(row) return row.p50_us end

local function millions(row) return row.calls_per_s / 1e6 end

-- Words, unit, mode, size, our peer, which other peer (nil: the best of the
-- others over shared memory), what is compared, and by which field the best is
-- found; more: more of it is better.
local CALLS = {
  { "64 under way, in two batches, from Lua", "M/s", "pipelined", 64,
    "perigee-batched", nil, millions, "calls_per_s", true },
  { "64 prepared calls under way, from Lua", "M/s", "pipelined", 64,
    "perigee-posted", nil, millions, "calls_per_s", true },
  { "64 under way, a future each, from Lua", "M/s", "pipelined", 64, "perigee",
    nil, millions, "calls_per_s", true },
  { "64 under way, in batches, from C", "M/s", "pipelined", 64,
    "perigee-c-batched", nil, millions, "calls_per_s", true },
  { "64 under way, from C", "M/s", "pipelined", 64, "perigee-c", nil, millions,
    "calls_per_s", true },
  { "fan-out to eight servers, from Lua", "us", "fanout", 64, "perigee",
    "perigee-c", p50 },
  { "fan-out to eight servers, from Lua", "us", "fanout", 65536, "perigee",
    "perigee-c", p50 },
  { "1000 calls a second, processor time of both sides, from Lua", "us",
    "paced", 64, "perigee", "unix", processor },
  { "the same from C", "us", "paced", 64, "perigee-c", "unix", processor },
  { "one-sided put with a fresh table", "us", "put", 64, "perigee-fresh", nil,
    p50, "p50_us" },
  { "one-sided put, prepared", "us", "put", 64, "perigee-prepared", nil, p50,
    "p50_us" },
}

-- Returns the rows of calls and transfers that were measured: what, unit, size,
-- ours, theirs (nil: nobody's), name (whose that is), ratio, more.
function M.calls(rows)
  local list = {}
  for _, each in ipairs(CALLS) do
    local what, unit, mode, size, peer, other, value, field, more
      = unpack(each, 1, 9)
    local own = M.find(rows, peer, mode, size)
    local best = other and M.find(rows, other, mode, size)
                 or field and M.best(rows, "shm", mode, size, field, more)
    if own then
      local theirs = best and value(best) or nil
      list[#list + 1] = { what = what, unit = unit, size = size, more = more,
        ours = value(own), theirs = theirs, name = best and best.peer,
        ratio = over(value(own), theirs) }
    end
  end
  return list
end

return M
