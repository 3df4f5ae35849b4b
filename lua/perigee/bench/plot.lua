-- SPDX-License-Identifier: Apache-2.0
-- p50 and floor over size, both axes logarithmic: a picture in SVG.

local chart = require "perigee.bench.chart"

local M = {}

local FIELDS = { { "p50_us", "", false }, { "floor_p50_us", ", floor", true } }

local function groups(key, rows)
  local order, by = {}, {}
  for _, row in ipairs(rows) do
    local name = row[key]
    if not by[name] then
      by[name] = {}
      order[#order + 1] = name
    end
    table.insert(by[name], row)
  end
  return order, by
end

-- A logarithmic axis has no place for 0, which the size of a row without a
-- payload is.
local function points_of(rows, field)
  local points = {}
  for _, row in ipairs(rows) do
    local value = row[field]
    if value and value > 0 and row.size > 0 then
      points[#points + 1] = { row.size, value }
    end
  end
  table.sort(points, function(a, b) return a[1] < b[1] end)
  return points
end

local function lines_of(key, rows)
  local lines, order, by = {}, groups(key, rows)
  for i, name in ipairs(order) do
    for _, field in ipairs(FIELDS) do
      local points = points_of(by[name], field[1])
      if #points > 0 then
        lines[#lines + 1] = { name = name .. field[2], points = points,
                              colour = (i - 1) % chart.COLOURS + 1,
                              dashed = field[3], dots = true }
      end
    end
  end
  return lines
end

-- Returns the picture as text; nil: no row has anything that is drawn.
function M.draw(key, rows)
  local lines = lines_of(key, rows)
  return #lines > 0 and chart.draw {
    title = "p50 over size",
    description = "p50, and that of the floor, over size, both axes \z
                   logarithmic.",
    x = chart.sizes("bytes", lines),
    y = chart.decades("p50, us", lines, function(value)
      return ("%g"):format(value)
    end),
    lines = lines,
  } or nil
end

-- Returns true, or nil and why not.
function M.write(path, key, rows)
  local text = M.draw(key, rows)
  if not text then return nil, "no row has a size and a p50 above 0" end
  local file, message = io.open(path, "w")
  if not file then return nil, message end
  file:write(text)
  return file:close()
end

return M
