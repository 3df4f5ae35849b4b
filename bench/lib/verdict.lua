-- SPDX-License-Identifier: Apache-2.0
-- The goals of a figure, and whether it reaches them. `one` has reach and
-- beyond (nil: no such goal), unit, and more_is_better for rates.

local M = {}

-- Returns "beyond", "reached", "missed", or "" if there is no goal.
function M.of(one, value)
  if not one.reach then return "" end
  local function within(limit)
    if one.more_is_better then return value >= limit end
    return value <= limit
  end
  if one.beyond and within(one.beyond) then return "beyond" end
  return within(one.reach) and "reached" or "missed"
end

-- Returns the goals as text: "1.25 x, beyond 1.1 x".
function M.wanted(one)
  if not one.reach then return "-" end
  local beyond = one.beyond
                 and (", beyond %g %s"):format(one.beyond, one.unit) or ""
  return ("%g %s%s"):format(one.reach, one.unit, beyond)
end

return M
