-- SPDX-License-Identifier: Apache-2.0
-- Finds out from what holders of names noted whether two ever had the same name
-- at a time. All times are CLOCK_BOOTTIME in seconds, which the processes of a
-- host share. A line is one of:
--
--   acts NAME AT BY   `held` was looked at between AT and BY, and true
--   ends NAME         it was not, or the holder was told of the end, or will
--                     give it back
--
-- A holder has a name from the first act to the last one before an end.
local M = {}

local function close(list, current)
  if current and current.to > current.from then list[#list + 1] = current end
end

--- Adds to list the intervals of what one holder noted.
function M.read(list, who, lines)
  local current
  for line in lines do
    local what, name, at, by = line:match "^(%l+) (%S+) ?(%S*) ?(%S*)$"
    at, by = tonumber(at), tonumber(by)
    if what == "acts" and by then
      current = current or { name = name, who = who, from = by, to = at }
      current.to = at
    elseif what == "ends" then
      close(list, current)
      current = nil
    end
  end
  close(list, current)
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
