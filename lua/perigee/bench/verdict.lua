-- SPDX-License-Identifier: Apache-2.0
-- What a figure is to reach, and whether it does. `one` has reach and beyond
-- (nil: none), unit, and more_is_better for rates.

local M = {}

-- "beyond", "reached", "missed", or "" where nothing is to be reached.
function M.of(one, value)
  if not one.reach then return "" end
  local function within(limit)
    if one.more_is_better then return value >= limit end
    return value <= limit
  end
  if one.beyond and within(one.beyond) then return "beyond" end
  return within(one.reach) and "reached" or "missed"
end

-- As text: "1.25 x, beyond 1.1 x".
function M.wanted(one)
  if not one.reach then return "-" end
  local beyond = one.beyond
                 and (", beyond %g %s"):format(one.beyond, one.unit) or ""
  return ("%g %s%s"):format(one.reach, one.unit, beyond)
end

return M
