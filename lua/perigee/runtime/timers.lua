-- SPDX-License-Identifier: Apache-2.0
--- Timers: a binary heap of tables with a field `at`, in nanoseconds. This
-- module keeps the index in the heap in their field `place`, so that removal is
-- as cheap as insertion: most timers are removed before they are due.
local M = {}

local heap, count = {}, 0

local function put(entry, place)
  heap[place] = entry
  entry.place = place
end

local function rise(entry, place)
  while place > 1 do
    local parent = (place - place % 2) / 2
    if heap[parent].at <= entry.at then break end
    put(heap[parent], place)
    place = parent
  end
  put(entry, place)
end

local function sink(entry, place)
  while 2 * place <= count do
    local child = 2 * place
    if child < count and heap[child + 1].at < heap[child].at then
      child = child + 1
    end
    if heap[child].at >= entry.at then break end
    put(heap[child], place)
    place = child
  end
  put(entry, place)
end

--- Adds entry, whose field `at` is set.
function M.add(entry)
  count = count + 1
  rise(entry, count)
end

--- Removes entry if it is in the heap.
function M.remove(entry)
  local place = entry.place
  if not place then return end
  entry.place = nil
  local last = heap[count]
  heap[count] = nil
  count = count - 1
  if last == entry then return end
  if place > 1 and last.at < heap[(place - place % 2) / 2].at then
    rise(last, place)
  else
    sink(last, place)
  end
end

--- The earliest time, or math.huge if there are no entries.
function M.earliest()
  return count > 0 and heap[1].at or math.huge
end

--- Removes and returns an entry whose time is at most now, or nil.
function M.due(now)
  local entry = heap[1]
  if entry and entry.at <= now then
    M.remove(entry)
    return entry
  end
end

return M
