-- SPDX-License-Identifier: Apache-2.0
-- The pictures of a comparison: a line for each peer, both axes logarithmic.
-- The first peer's is twice as thick; those of peers that are more than there
-- are colours are dashed.

local chart = require "perigee.bench.chart"

local M = {}

-- Returns a line for each peer, its points from the smallest size on, in the
-- order of the rows.
local function lines_of(rows, mode, field)
  local list, by = {}, {}
  for _, row in ipairs(rows) do
    if row.mode == mode and row[field] then
      local line = by[row.peer]
      if not line then
        line = { name = row.peer, points = {}, dots = true, thick = #list == 0,
                 colour = #list % chart.COLOURS + 1,
                 dashed = #list >= chart.COLOURS }
        by[row.peer], list[#list + 1] = line, line
      end
      table.insert(line.points, { row.size, row[field] })
    end
  end
  for _, line in ipairs(list) do
    table.sort(line.points, function(a, b) return a[1] < b[1] end)
  end
  return list
end

local function shown(value) return ("%g"):format(value) end

--- Returns the picture of a field of the rows of a mode as text, or nil if
-- there is nothing to draw. title: of the field.
function M.draw(rows, mode, field, title)
  local lines = lines_of(rows, mode, field)
  return #lines > 0 and chart.draw {
    title = title,
    description = title .. ", over size, of each peer; both axes \z
                           logarithmic. The CSV files have the numbers.",
    x = chart.sizes(mode == "echo" and "bytes each way" or "bytes", lines),
    y = chart.decades(title, lines, shown), lines = lines, ends = true,
  } or nil
end

local PICTURES = {
  { "echo", "latency", "p50_us", "p50 of an echo, us" },
  { "echo", "bandwidth", "gb_per_s", "there and back, GB/s" },
  { "put", "latency-put", "p50_us", "p50 of a put, us" },
  { "put", "bandwidth-put", "gb_per_s", "put, GB/s" },
  { "get", "latency-get", "p50_us", "p50 of a get, us" },
  { "get", "bandwidth-get", "gb_per_s", "got, GB/s" },
}

--- Calls write(path, text) for each picture of which there are rows; returns
-- true, or nil and why not.
function M.write(folder, rows, write)
  for _, one in ipairs(PICTURES) do
    local picture = M.draw(rows, one[1], one[3], one[4])
    if picture then
      local fine, why = write(("%s/%s.svg"):format(folder, one[2]), picture)
      if not fine then return nil, why end
    end
  end
  return true
end

return M
