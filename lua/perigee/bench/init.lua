-- SPDX-License-Identifier: Apache-2.0
--- Sweeps of a program's own services: how long calls take, by size, in turns.
-- `require "perigee.bench"`; examples/sweep.lua is a whole one.
--
-- Cases take turns (a, b, ..., b, a, ...), since a machine that is slow for a
-- while is then slow for all of them. The head of a turn has no samples.
-- A row has `name`, `size`, `calls`, `mean_us`, `p50_us`, `p99_us`, `p999_us`,
-- `calls_per_s`, `gb_per_s` (payload one way) and, of a case with a floor,
-- `floor_p50_us` and `ratio` (p50 over the floor's).
-- @module bench
-- @usage
-- local bench = require "perigee.bench"
-- local sweep = bench.sweep { seconds = 0.02, turns = 2 }
-- for _, size in ipairs(bench.sizes "64,4K") do
--   local bytes = ("x"):rep(size)
--   sweep:add("echo", size, function() assert(calc:echo(bytes)) end)
-- end
-- local rows = sweep:run()
-- print(#rows, rows[2].name, rows[2].size)                      --> 2 echo 4096
local check = require "perigee.runtime.check"
local csv = require "perigee.bench.csv"
local histograms = require "perigee.bench.histogram"
local json = require "perigee.bench.json"
local native = require "perigee.native"
local plots = require "perigee.bench.plot"
local text = require "perigee.bench.table"
local units = require "perigee.runtime.units"

local M = {}

local KEY = "name"
local function turns(value)
  if check.is_count(value) and value > 0 then return nil end
  return "an integer of at least 1"
end
local SCHEMA = { seconds = check.seconds, turns = turns,
                 progress = check.callable }

--- A sweep: cases that are measured in turns (`bench.sweep`).
-- @classmod Sweep
local Sweep = {}
Sweep.__index = Sweep

--- The sizes of a text of sizes with commas between.
-- @function bench.sizes
-- @tparam string list as in "64,4K,1M"
-- @treturn table a list of bytes; or nil and a message if one is no size
-- @waits no
-- @usage
-- print(unpack(require "perigee.bench".sizes "64,4K"))         --> 64 4096
function M.sizes(list)
  local all = {}
  for word in list:gmatch "[^,%s]+" do
    local size, why = units.size(word)
    if not size then return nil, why end
    all[#all + 1] = size
  end
  return all
end

--- A sweep in which there is no case yet.
-- @function bench.sweep
-- @tparam[opt] table options
-- @tparam[opt=0.5] number options.seconds of each case, over all its turns
-- @tparam[opt=8] number options.turns into which they are divided
-- @tparam[opt] function options.progress is called with each row's name and
--   size before its turns of a round
-- @treturn Sweep
-- @waits no
-- @usage
-- local bench = require "perigee.bench"
-- local rows = bench.sweep { seconds = 0.02, turns = 1 }
--   :add("add", 8, function() assert(calc:add(1, 2)) end):run()
-- print(rows[1].name, rows[1].p50_us > 0)                      --> add true
function M.sweep(options)
  options = check.options(options, SCHEMA, "bench.sweep", 2)
  return setmetatable({ cases = {}, seconds = options.seconds or 0.5,
                        turns = options.turns or 8,
                        progress = options.progress or function() end }, Sweep)
end

--- Adds a case.
-- @function Sweep:add
-- @tparam string name of its row
-- @tparam number size bytes of payload of a call, for the row's rate; 0: none
-- @tparam function f makes one call, checks its result, and raises if it is
--   wrong, which ends the sweep
-- @tparam[opt] function floor does the least that could be had, in turns with f
-- @treturn Sweep itself
-- @waits no
-- @usage
-- local bench = require "perigee.bench"
-- local sweep = bench.sweep { seconds = 0.02, turns = 1 }
-- sweep:add("add", 8, function() assert(calc:add(1, 2)) end,
--           function() return 1 + 2 end)               -- the floor
-- print(sweep:run()[1].ratio > 0)                               --> true
function Sweep:add(name, size, f, floor)
  local case = { row = { name = name, size = size }, f = f, floor = floor,
                 times = histograms.new(), floors = histograms.new() }
  self.cases[#self.cases + 1] = case
  return self
end

local function call_until(f, deadline, times)
  repeat
    local before = native.clock()
    f()
    local now = native.clock()
    if times then times:add(now - before) end
  until now >= deadline
end

local function take_turn(f, seconds, times)
  local now = native.clock()
  call_until(f, now + seconds * 1e9 / 8)
  call_until(f, native.clock() + seconds * 1e9, times)
end

local function round(sweep, backwards)
  local n, seconds = #sweep.cases, sweep.seconds / sweep.turns
  for i = 1, n do
    local case = sweep.cases[backwards and n + 1 - i or i]
    sweep.progress(case.row.name, case.row.size)
    take_turn(case.f, seconds, case.times)
    if case.floor then take_turn(case.floor, seconds, case.floors) end
  end
end

local function completed(case)
  local row, times = case.row, case.times
  row.calls, row.mean_us = times.count, times:mean() / 1e3
  row.p50_us = times:quantile(0.5) / 1e3
  row.p99_us = times:quantile(0.99) / 1e3
  row.p999_us = times:quantile(0.999) / 1e3
  row.calls_per_s = 1e6 / row.mean_us
  row.gb_per_s = row.calls_per_s * row.size / 1e9
  if case.floor then
    row.floor_p50_us = case.floors:quantile(0.5) / 1e3
    row.ratio = row.p50_us / row.floor_p50_us
  end
  return row
end

--- Runs all cases in turns.
-- @function Sweep:run
-- @treturn table a list of rows, in the order in which cases were added
-- @waits as long as the cases' seconds, and an eighth of that
-- @usage
-- local bench = require "perigee.bench"
-- local sweep = bench.sweep { seconds = 0.02, turns = 1 }
-- sweep:add("add", 8, function() assert(calc:add(1, 2)) end)
-- print(#sweep:run())                                           --> 1
function Sweep:run()
  for turn = 1, self.turns do round(self, turn % 2 == 0) end
  local rows = {}
  for i, case in ipairs(self.cases) do rows[i] = completed(case) end
  return rows
end

--- Prints rows as a table.
-- @function bench.print
-- @tparam table rows
-- @waits no
-- @usage
-- local bench = require "perigee.bench"
-- bench.print {}                    -- the head of the table alone
function M.print(rows)
  print(text.header(KEY))
  for _, row in ipairs(rows) do print(text.line(KEY, row)) end
end

--- Rows as JSON: a list of objects. It takes lua-cjson.
-- @function bench.json
-- @tparam table rows
-- @treturn string
-- @waits no
-- @usage
-- local bench = require "perigee.bench"
-- print(bench.json {})                                         --> []
function M.json(rows)
  local texts = {}
  for i, row in ipairs(rows) do
    texts[i] = json.object(row, { KEY, unpack(json.FIELDS) })
  end
  return "[" .. table.concat(texts, ",") .. "]"
end

--- Writes rows as a file of comma-separated values, with a line of names.
-- @function bench.csv
-- @tparam string path
-- @tparam table rows
-- @treturn boolean true; or nil and a message
-- @waits no
-- @usage
-- local bench = require "perigee.bench"
-- local path = os.tmpname()
-- print(bench.csv(path, {}))                                   --> true
-- os.remove(path)
function M.csv(path, rows) return csv.write(path, KEY, rows) end

--- Draws p50, and the floor's, over size: a file in SVG.
-- @function bench.plot
-- @tparam string path
-- @tparam table rows
-- @treturn boolean true; or nil and a message
-- @waits no
-- @usage
-- local bench = require "perigee.bench"
-- local path = os.tmpname()
-- print(bench.plot(path, { { name = "add", size = 64, p50_us = 0.5 } }))
-- --> true
-- os.remove(path)
function M.plot(path, rows) return plots.write(path, KEY, rows) end

return M
