-- SPDX-License-Identifier: Apache-2.0
--- Collects what crowds leave behind in Lua's heap, in short steps while the
-- server has nothing else to do. Lua's collector would wait until the heap has
-- doubled, and a server that knows much has a large one.
local loop = require "perigee.loop"

local M = {}

local MORE = 4096                       -- KiB beyond what a collection left
local STEP = 2e5                        -- nanoseconds of work at a time
local CYCLES = 2                        -- the first may have been under way
local KIB = 16                          -- of one collector step

function M.new() return { left = collectgarbage "count", cycles = 0 } end

--- Does a step, if one is due. Is another one?
function M.collect(heap)
  if heap.cycles == 0 then
    if collectgarbage "count" < heap.left + MORE then return false end
    heap.cycles = CYCLES
  end
  local over = loop.now() + STEP
  repeat
    if collectgarbage("step", KIB) then heap.cycles = heap.cycles - 1 end
  until heap.cycles == 0 or loop.now() > over
  if heap.cycles == 0 then heap.left = collectgarbage "count" end
  return heap.cycles > 0
end

return M
