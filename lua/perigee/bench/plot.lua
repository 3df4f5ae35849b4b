-- SPDX-License-Identifier: Apache-2.0
-- p50 and floor over size, both axes logarithmic, drawn by gnuplot.

local M = {}

local HEAD = [[
set terminal svg size 900,600 dynamic font "sans,12"
set output %s
set logscale xy
set format x "%%.0s%%c"
set xlabel "bytes"
set ylabel "p50, us"
set key left top
set grid
]]

local function quote(text) return "'" .. text:gsub("'", "''") .. "'" end

local function block(name, rows, field)
  local lines = { "$" .. name .. " << EOD" }
  for _, row in ipairs(rows) do
    if row[field] then
      lines[#lines + 1] = ("%d %.6g"):format(row.size, row[field])
    end
  end
  lines[#lines + 1] = "EOD"
  return #lines > 2 and table.concat(lines, "\n") .. "\n" or nil
end

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

function M.script(path, key, rows)
  local parts, plots = { HEAD:format(quote(path)) }, {}
  local order, by = groups(key, rows)
  for i, name in ipairs(order) do
    for field, style in pairs { p50_us = "dt 1", floor_p50_us = "dt 3" } do
      local data = ("%s%d"):format(field, i)
      local text = block(data, by[name], field)
      if text then
        local title = field == "p50_us" and name or name .. ", floor"
        parts[#parts + 1] = text
        plots[#plots + 1] = ("$%s with linespoints lc %d %s title %s")
                            :format(data, i, style, quote(title))
      end
    end
  end
  table.sort(plots)
  return table.concat(parts) .. "plot " .. table.concat(plots, ", ") .. "\n"
end

-- Returns true, or nil and why not.
function M.write(path, key, rows)
  local pipe, message = io.popen("gnuplot", "w")
  if not pipe then return nil, message end
  pipe:write(M.script(path, key, rows))
  pipe:close()
  local file = io.open(path)
  if not file then return nil, "gnuplot drew nothing; is it installed?" end
  file:close()
  return true
end

return M
