-- SPDX-License-Identifier: Apache-2.0
-- Prints rows as aligned text, each as soon as it is measured.

local M = {}

local COLUMNS = {
  { "mean", "mean_us", 10 }, { "p50", "p50_us", 10 },
  { "p99", "p99_us", 10 }, { "p99.9", "p999_us", 10 },
  { "calls/s", "calls_per_s", 10, 0 }, { "GB/s", "gb_per_s", 8 },
  { "floor p50", "floor_p50_us", 10 }, { "ratio", "ratio", 7, 2 },
}

-- Formats three significant digits, never in scientific notation.
local function number(value, digits)
  if not value then return "-" end
  if digits then return ("%%.%df"):format(digits):format(value) end
  if value >= 100 then return ("%.0f"):format(value) end
  return (value >= 10 and "%.1f" or value >= 1 and "%.2f" or "%.3f")
         :format(value)
end

M.number = number

function M.size(bytes)
  for _, unit in ipairs { { 2 ^ 30, "G" }, { 2 ^ 20, "M" }, { 2 ^ 10, "K" } } do
    if bytes >= unit[1] and bytes % unit[1] == 0 then
      return ("%d%s"):format(bytes / unit[1], unit[2])
    end
  end
  return ("%d"):format(bytes)
end

local WIDTH = 18 -- of the first column, unless told

local function first(name, size, width)
  return ("%-" .. (width or WIDTH) .. "s %6s"):format(name, size)
end

function M.header(key, width)
  local line = { first(key, "size", width) }
  for _, column in ipairs(COLUMNS) do
    line[#line + 1] = ("%" .. column[3] .. "s"):format(column[1])
  end
  return table.concat(line, " ") .. "   (us)"
end

function M.line(key, row, width)
  local name = row.stride and row[key] .. "/" .. row.stride or row[key]
  if row.rank then name = name .. " " .. row.rank end
  if row.kind then
    name = name .. " " .. (row.kind == row.peer_kind and row.kind
                           or row.kind .. "," .. row.peer_kind)
  end
  local line = { first(name, M.size(row.size), width) }
  for _, column in ipairs(COLUMNS) do
    line[#line + 1] = ("%" .. column[3] .. "s")
                      :format(number(row[column[2]], column[4]))
  end
  return table.concat(line, " ")
end

return M
