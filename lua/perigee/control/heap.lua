-- SPDX-License-Identifier: Apache-2.0
--- Collects what crowds leave behind in Lua's heap, in short steps while the
-- server has nothing else to do. Lua's collector would wait until the heap has
-- doubled, and a server that knows much has a large one.
--
-- Other memory goes back to the system as well once many names have gone.
--
-- A server that has no moment to spare collects beside its work once the heap
-- has grown by as much. Until then it leaves the heap to Lua's own collector,
-- because collecting all the time took a quarter of the time of requests.
local collector = require "perigee.runtime.collector"
local loop = require "perigee.runtime.loop"

local M = {}

local MORE = 4096                       -- KiB beyond what a collection left
local MANY = 2000                       -- names that have gone since, and
local LULL = 0.5e9                      -- nanoseconds without another one
local STEP = 2e5                        -- nanoseconds of work at a time
local CYCLES = 2                        -- the first may have been under way
local KIB = 16                          -- of one collector step

--- trim: a function that gives memory back that is not Lua's.
function M.new(trim)
  return { left = collectgarbage "count", cycles = 0, gone = 0, last = 0,
           since = 0, trims = false, trim = trim }
end

local function is_large(heap)
  return collectgarbage "count" >= heap.left + MORE
end

-- Have many gone, and is that over?
local function is_quiet(heap, gone)
  if gone ~= heap.last then heap.last, heap.since = gone, loop.now() end
  return gone >= heap.gone + MANY and loop.now() >= heap.since + LULL
end

local function is_due(heap, gone)
  heap.trims = is_quiet(heap, gone)
  if heap.trims then heap.gone = gone end
  return heap.trims or is_large(heap)
end

--- Does a little beside the work, if there is much to collect.
function M.keep_up(heap)
  if not is_large(heap) then return end
  collector.owe()
  collector.pay()
end

--- Does a step, if one is due. Is another one? gone: how many names have gone
-- since the server began.
function M.collect(heap, gone)
  if heap.cycles == 0 then
    if not is_due(heap, gone) then return false end
    heap.cycles = CYCLES
  end
  local over = loop.now() + STEP
  repeat
    if collectgarbage("step", KIB) then heap.cycles = heap.cycles - 1 end
  until heap.cycles == 0 or loop.now() > over
  if heap.cycles == 0 then
    heap.left = collectgarbage "count"
    if heap.trims then heap.trim() end
  end
  return heap.cycles > 0
end

return M
