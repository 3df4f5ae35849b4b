-- SPDX-License-Identifier: Apache-2.0
--- The keys of a table as texts, sorted; none of what is no table.
local function sorted(map)
  local names = {}
  for name in pairs(type(map) == "table" and map or {}) do
    names[#names + 1] = tostring(name)
  end
  table.sort(names)
  return names
end
jit.off(sorted)                 -- its loop over pairs(), see check.lua

return sorted
