-- SPDX-License-Identifier: Apache-2.0
-- Finds out from what holders of names noted whether two ever had the same name
-- at a time. All times are CLOCK_BOOTTIME in seconds, which the processes of a
-- host share. A line is one of:
--
--   has NAME BEGAN AT        it was asked for at BEGAN, and given by AT
--   renewed NAME BEGAN AT    the same of a renewal
--   ends NAME AT             it is given back after AT
--   lost NAME AT             the registry says that another has it
--
-- A holder has a name from the answer on, as far as it can know: until it gives
-- it back, hears that it is lost, is killed, or, where names have a TTL, that
-- time has passed since it asked for the last renewal that was answered.
local M = {}

local function close(list, current, at)
  local to = math.min(at, current.limit)
  if to > current.from then
    list[#list + 1] = { name = current.name, who = current.who,
                        from = current.from, to = to }
  end
end

local function renewed(list, current, began, at, ttl)
  if current.limit < at then            -- it knew of nothing for a while
    close(list, current, at)
    current.from = at
  end
  current.limit = math.max(current.limit, began + ttl)
end

--- Adds to list the intervals of what one holder noted, who was killed at the
-- given time. ttl: seconds, math.huge if names have none.
function M.read(list, who, lines, killed, ttl)
  local current
  for line in lines do
    local what, name, a, b = line:match "^(%l+) (%S+) (%S+) ?(%S*)$"
    a, b = tonumber(a), tonumber(b)
    if what == "has" then
      current = { name = name, who = who, from = b, limit = a + ttl }
    elseif current and what == "renewed" then
      renewed(list, current, a, b, ttl)
    elseif current then
      close(list, current, a)
      current = nil
    end
  end
  if current then close(list, current, killed) end
end

local function by_time(a, b)
  if a.name ~= b.name then return a.name < b.name end
  return a.from < b.from
end

--- The overlaps of intervals: { name, seconds, first, second }. Sorts list.
function M.find(list)
  local found, last = {}, nil
  table.sort(list, by_time)
  for _, one in ipairs(list) do
    if last and last.name == one.name and one.from < last.to then
      found[#found + 1] = { name = one.name, first = last, second = one,
                            seconds = math.min(one.to, last.to) - one.from }
    end
    if not last or last.name ~= one.name or one.to > last.to then
      last = one
    end
  end
  return found
end

return M
