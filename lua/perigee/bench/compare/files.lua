-- SPDX-License-Identifier: Apache-2.0
-- The files of a comparison: a CSV for each peer, one JSON, and two pictures.

local cjson = require "cjson"
local figures = require "perigee.bench.compare.figures"
local json = require "perigee.bench.json"

local M = {}

local function write(path, text)
  local file, why = io.open(path, "w")
  if not file then return nil, why end
  file:write(text)
  return file:close()
end

local function csv_cell(value)
  if value == nil then return "" end
  if type(value) == "number" then return ("%.9g"):format(value) end
  value = tostring(value)
  if not value:find '[",\n]' then return value end
  return '"' .. value:gsub('"', '""') .. '"'
end

local function csv(rows)
  local lines = { table.concat(figures.FIELDS, ",") }
  for _, row in ipairs(rows) do
    local cells = {}
    for i, name in ipairs(figures.FIELDS) do cells[i] = csv_cell(row[name]) end
    lines[#lines + 1] = table.concat(cells, ",")
  end
  return table.concat(lines, "\n") .. "\n"
end

local function by_peer(rows)
  local order, by = {}, {}
  for _, row in ipairs(rows) do
    if not by[row.peer] then
      by[row.peer] = {}
      order[#order + 1] = row.peer
    end
    table.insert(by[row.peer], row)
  end
  return order, by
end

-- Returns the document. head: what was measured on, with what options.
function M.document(head, rows)
  local texts = {}
  for i, row in ipairs(rows) do texts[i] = json.object(row, figures.FIELDS) end
  return ('{"bench":"compare","machine":%s,"options":%s,"rows":[\n%s\n]}\n')
         :format(json.object(head.machine, { "cpu", "cores", "kernel" }),
                 cjson.encode(head.options), table.concat(texts, ",\n"))
end

-- ---- Pictures --------------------------------------------------------------

local HEAD = [[
set terminal svg size 1000,800 dynamic font "sans,11"
set output %s
set logscale xy
set format x "%%.0s%%c"
set xlabel "bytes each way"
set ylabel %s
set grid
unset key
set linetype 5 linecolor rgb "#8a7000"
set xrange [%d:%d]
set yrange [1e%d:1e%d]
]]

local function quote(text) return "'" .. text:gsub("'", "''") .. "'" end

-- Returns the points of each peer, smallest size first.
local function curves(rows, field)
  local order, by = by_peer(rows)
  local all, least, most = {}, math.huge, 0
  for _, name in ipairs(order) do
    local points = {}
    for _, row in ipairs(by[name]) do
      if row.mode == "echo" and row[field] then
        points[#points + 1] = { row.size, row[field] }
        least, most = math.min(least, row.size), math.max(most, row.size)
      end
    end
    table.sort(points, function(a, b) return a[1] < b[1] end)
    if #points > 0 then all[#all + 1] = { name = name, points = points } end
  end
  return all, least, most
end

local LABEL = 15 / 720 -- a label's share of the picture's height

-- Returns the powers of ten below and above all values.
local function decades(all)
  local least, most = math.huge, 0
  for _, curve in ipairs(all) do
    for _, point in ipairs(curve.points) do
      least, most = math.min(least, point[2]), math.max(most, point[2])
    end
  end
  local low = math.floor(math.log10(least))
  return low, math.max(low + 1, math.ceil(math.log10(most)))
end

-- Sets the labels (powers of ten) at the lines' ends, in the order of the
-- values, so that none lies on another and none above the picture.
local function place_labels(all, low, high)
  local order, gap = {}, (high - low) * LABEL
  for i, curve in ipairs(all) do
    order[i] = curve
    curve.label = math.log10(curve.points[#curve.points][2])
  end
  table.sort(order, function(a, b) return a.label < b.label end)
  for i = 2, #order do
    order[i].label = math.max(order[i].label, order[i - 1].label + gap)
  end
  local above = high - gap / 2
  for i = #order, 1, -1 do
    order[i].label = math.min(order[i].label, above)
    above = order[i].label - gap
  end
end

-- Returns the gnuplot program of a picture, or nil if there is nothing to draw.
function M.script(path, rows, field, title)
  local all, least, most = curves(rows, field)
  if #all == 0 then return nil end
  local low, high = decades(all)
  place_labels(all, low, high)
  local right = math.max(most, least * 2)
  local parts = { HEAD:format(quote(path), quote(title), least, right * 16,
                              low, high) }
  local plots = {}
  for i, curve in ipairs(all) do
    local lines = { ("$curve%d << EOD"):format(i) }
    for _, point in ipairs(curve.points) do
      lines[#lines + 1] = ("%d %.6g"):format(point[1], point[2])
    end
    lines[#lines + 1] = "EOD"
    parts[#parts + 1] = table.concat(lines, "\n") .. "\n"
    parts[#parts + 1] = ("set label %d %s at %d, %.6g left tc lt %d\n"):format(
      i, quote(curve.name), right * 1.15, 10 ^ curve.label, i)
    plots[i] = ("$curve%d with linespoints lt %d pt 7 ps 0.4"):format(i, i)
  end
  return table.concat(parts) .. "plot " .. table.concat(plots, ", ") .. "\n"
end

local function draw(script)
  local pipe = io.popen("gnuplot 2>/dev/null", "w")
  pipe:write(script)
  pipe:close()
end

local function is_there(path)
  local file = io.open(path)
  return file and file:close()
end

local PICTURES = {
  { "latency.svg", "p50_us", "p50 of an echo, us" },
  { "bandwidth.svg", "gb_per_s", "there and back, GB/s" },
}

-- ---- The folder ------------------------------------------------------------

-- Makes the folder; returns true, or nil and why nothing can be written there.
function M.prepare(folder)
  os.execute(("mkdir -p '%s' 2>/dev/null"):format(folder:gsub("'", "'\\''")))
  local path = folder .. "/compare.json"
  local fine, why = write(path, "")
  if not fine then return nil, why end
  os.remove(path)
  return true
end

-- Writes all; returns true, or nil and what could not be written.
function M.write(folder, head, rows)
  local order, by = by_peer(rows)
  local fine, why = write(folder .. "/compare.json", M.document(head, rows))
  for _, name in ipairs(order) do
    if fine then
      fine, why = write(("%s/%s.csv"):format(folder, name), csv(by[name]))
    end
  end
  if not fine then return nil, why end
  for _, picture in ipairs(PICTURES) do
    local path = folder .. "/" .. picture[1]
    local script = M.script(path, rows, picture[2], picture[3])
    if script then
      draw(script)
      if not is_there(path) then
        return nil, "gnuplot drew nothing; .ci/deps bench installs it"
      end
    end
  end
  return true
end

return M
