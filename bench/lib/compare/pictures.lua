-- SPDX-License-Identifier: Apache-2.0
-- The pictures of a comparison, drawn by gnuplot: a line for each peer, both
-- axes logarithmic, with its name at the end, tied to it by a thin line. The
-- first peer's is twice as thick.

local text = require "perigee.bench.table"

local M = {}

local WIDTH, HEIGHT, MARGINS = 1100, 700, 90 -- pixels
local LABEL = 15                             -- pixels that a name is high
local COLOURS = 8                            -- then lines are dashed
local ROOM = 1.12                            -- above and below all points

local HEAD = [[
set terminal svg size %d,%d dynamic font "sans,11" background "white"
set output %s
set logscale xy
set xlabel %s
set ylabel %s
set grid xtics ytics
unset key
unset mxtics
set linetype 5 linecolor rgb "#8a7000"
set rmargin 28
set xrange [%d:%d]
set yrange [%.6g:%.6g]
set xtics (%s)
set ytics (%s)
]]

local function quote(words) return "'" .. words:gsub("'", "''") .. "'" end

-- ---- What is drawn ---------------------------------------------------------

-- Returns a curve for each peer, its points from the smallest size on, in the
-- order of the rows.
local function curves_of(rows, mode, field)
  local list, by = {}, {}
  for _, row in ipairs(rows) do
    if row.mode == mode and row[field] then
      local curve = by[row.peer]
      if not curve then
        curve = { name = row.peer, points = {} }
        by[row.peer], list[#list + 1] = curve, curve
      end
      table.insert(curve.points, { row.size, row[field] })
    end
  end
  for _, curve in ipairs(list) do
    table.sort(curve.points, function(a, b) return a[1] < b[1] end)
    curve.last = curve.points[#curve.points]
  end
  return list
end

-- Returns the least and the greatest size, and value.
local function bounds(list)
  local box = { math.huge, 0, math.huge, 0 }
  for _, curve in ipairs(list) do
    for _, point in ipairs(curve.points) do
      box[1], box[2] = math.min(box[1], point[1]), math.max(box[2], point[1])
      box[3], box[4] = math.min(box[3], point[2]), math.max(box[4], point[2])
    end
  end
  box[2] = math.max(box[2], 2 * box[1])
  box[3], box[4] = box[3] / ROOM, box[4] * ROOM
  return unpack(box)
end

-- ---- Tics ------------------------------------------------------------------

local function tics_of_sizes(list)
  local tics, seen = {}, {}
  for _, curve in ipairs(list) do
    for _, point in ipairs(curve.points) do
      local size = point[1]
      if not seen[size] then
        tics[#tics + 1] = ("%s %d"):format(quote(text.size(size)), size)
      end
      seen[size] = true
    end
  end
  return table.concat(tics, ", ")
end

-- Powers of ten; where there are few of them, twice and five times these, too.
local function tics_of_values(low, high)
  local steps = math.log10(high / low) < 4 and { 1, 2, 5 } or { 1 }
  local tics = {}
  for decade = math.floor(math.log10(low)), math.ceil(math.log10(high)) do
    for _, step in ipairs(steps) do
      local value = step * 10 ^ decade
      local shown = ("%%.%df"):format(decade < 0 and -decade or 0)
      tics[#tics + 1] = ("'%s' %.6g"):format(shown:format(value), value)
    end
  end
  return table.concat(tics, ", ")
end

-- ---- Names -----------------------------------------------------------------

-- Merges the last group of names with those before it that it would lie on.
local function settle(groups)
  while #groups > 1 and groups[#groups].at < groups[#groups - 1].at do
    local last = table.remove(groups)
    local other = groups[#groups]
    other.at = (other.at * other.n + last.at * last.n) / (other.n + last.n)
    other.n = other.n + last.n
  end
end

-- Gives each curve the height of its name (a power of ten), in the order of the
-- curves' ends, as near to these as names fit that have a distance of gap.
local function place_names(list, low, high, gap)
  local order, groups, i = { unpack(list) }, {}, 0
  table.sort(order, function(a, b) return a.last[2] < b.last[2] end)
  for k, curve in ipairs(order) do
    groups[#groups + 1] = { at = math.log10(curve.last[2]) - k * gap, n = 1 }
    settle(groups)
  end
  for _, group in ipairs(groups) do
    local at = math.max(low - gap / 2, math.min(group.at,
                                                high - (#order + 0.5) * gap))
    for _ = 1, group.n do
      i = i + 1
      order[i].label = at + i * gap
    end
  end
end

-- ---- The program -----------------------------------------------------------

local function add_curve(parts, i, curve)
  local lines = { ("$curve%d << EOD"):format(i) }
  for _, point in ipairs(curve.points) do
    lines[#lines + 1] = ("%d %.6g"):format(point[1], point[2])
  end
  lines[#lines + 1] = "EOD\n"
  local colour = (i - 1) % COLOURS + 1
  local dash = math.floor((i - 1) / COLOURS) % 4 + 1
  parts[#parts + 1] = table.concat(lines, "\n")
  parts[#parts + 1] = ("set label %d %s at graph 1.07, first %.6g left tc lt \z
                        %d\n"):format(i, quote(curve.name), 10 ^ curve.label,
                                      colour)
  parts[#parts + 1] = ("set arrow %d from %d, %.6g to graph 1.065, first %.6g \z
                        nohead lt %d lw 0.4\n"):format(i, curve.last[1],
                        curve.last[2], 10 ^ curve.label, colour)
  return ("$curve%d with linespoints lt %d dt %d lw %d pt 7 ps 0.4")
         :format(i, colour, dash, i == 1 and 2 or 1)
end

--- Returns the gnuplot program that draws a field of the rows of a mode, or nil
-- if there is nothing to draw. title: of the field.
function M.script(path, rows, mode, field, title)
  local list = curves_of(rows, mode, field)
  if #list == 0 then return nil end
  local left, right, low, high = bounds(list)
  local height = math.max(HEIGHT, (#list + 1) * LABEL + MARGINS)
  place_names(list, math.log10(low), math.log10(high),
              math.log10(high / low) * LABEL / (height - MARGINS))
  local parts = { HEAD:format(WIDTH, height, quote(path),
    quote(mode == "echo" and "bytes each way" or "bytes"), quote(title),
    left, right, low, high, tics_of_sizes(list), tics_of_values(low, high)) }
  local plots = {}
  for i, curve in ipairs(list) do plots[i] = add_curve(parts, i, curve) end
  return table.concat(parts) .. "plot " .. table.concat(plots, ", ") .. "\n"
end

local PICTURES = {
  { "echo", "latency", "p50_us", "p50 of an echo, us" },
  { "echo", "bandwidth", "gb_per_s", "there and back, GB/s" },
  { "put", "latency-put", "p50_us", "p50 of a put, us" },
  { "put", "bandwidth-put", "gb_per_s", "put, GB/s" },
  { "get", "latency-get", "p50_us", "p50 of a get, us" },
  { "get", "bandwidth-get", "gb_per_s", "got, GB/s" },
}

local function draw(script, path)
  local pipe = io.popen("gnuplot 2>/dev/null", "w")
  pipe:write(script)
  pipe:close()
  local file = io.open(path)
  return file and file:close()
end

--- Draws all pictures of which there are rows; returns true, or nil and why
-- not.
function M.write(folder, rows)
  for _, one in ipairs(PICTURES) do
    local path = ("%s/%s.svg"):format(folder, one[2])
    local script = M.script(path, rows, one[1], one[3], one[4])
    if script and not draw(script, path) then
      return nil, "gnuplot drew nothing; .ci/deps bench installs it"
    end
  end
  return true
end

return M
