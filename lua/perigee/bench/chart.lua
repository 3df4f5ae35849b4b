-- SPDX-License-Identifier: Apache-2.0
-- Charts of lines as text of SVG. Colours follow the reader's scheme, light or
-- dark, by a media query; the back is drawn, too, because a page may have
-- another scheme than its reader's browser.
--
-- A chart: title, description (for who does not see it), x and y, lines, and
-- rule (a value of y at which a line is drawn across) or nil. If it has `ends`,
-- each name stands at the end of its line, tied to it by a thin one, which
-- suits many lines; otherwise there is a legend. An axis: title, low, high, log
-- (its scale is logarithmic), ticks, a list of { value, text }. A line: name,
-- colour (1 to COLOURS), dashed, thick, dots (at its points), points, a list of
-- { x, y }, from left to right. A point without y is missing: the line is
-- broken there.
local text = require "perigee.bench.table"

local M = {}

local LEFT, BOTTOM = 64, 46            -- margins, pixels
local LEGEND, ROW = 46, 20             -- its top, the height of a row
local SAMPLE = 30                      -- of a line, in the legend
local TITLE = 22                       -- where it stands
local NAME, TIE = 16, 40               -- of names at ends: height, distance

M.COLOURS = 8

local STYLE = [[
<style>
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif;
  fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.back { fill: #ffffff; }
path { fill: none; stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.rule { stroke: #59636e; }
.dashed { stroke-dasharray: 5 5; }
.c1 { stroke: #0969da; }
.c2 { stroke: #1a7f37; }
.c3 { stroke: #bc4c00; }
.c4 { stroke: #8250df; }
.c5 { stroke: #7d6500; }
.c6 { stroke: #bf3989; }
.c7 { stroke: #00838f; }
.c8 { stroke: #59636e; }
.thick { stroke-width: 4; }
.dots { stroke-width: 6; }
.tie { stroke-width: 0.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .back { fill: #0d1117; }
  .grid { stroke: #3d444d; }
  .rule { stroke: #9198a1; }
  .c1 { stroke: #4493f8; }
  .c2 { stroke: #3fb950; }
  .c3 { stroke: #f0883e; }
  .c4 { stroke: #ab7df8; }
  .c5 { stroke: #d4a72c; }
  .c6 { stroke: #f778ba; }
  .c7 { stroke: #39c5cf; }
  .c8 { stroke: #9198a1; }
}
</style>
]]

-- ---- Scales ----------------------------------------------------------------

-- Returns where a value is between the ends of an axis: 0 at its low end, 1 at
-- its high one. What is outside is drawn at the end that is nearer.
function M.share(axis, value)
  local low, high = axis.low, axis.high
  if axis.log then
    low, high, value = math.log(low), math.log(high), math.log(value)
  end
  return math.max(0, math.min(1, (value - low) / (high - low)))
end

-- Returns the powers of a base from low to high, each with what shown(value)
-- says of it.
function M.powers(low, high, base, shown)
  local ticks = {}
  local first = math.ceil(math.log(low) / math.log(base) - 1e-9)
  local last = math.floor(math.log(high) / math.log(base) + 1e-9)
  for power = first, last do
    ticks[#ticks + 1] = { base ^ power, shown(base ^ power) }
  end
  return ticks
end

-- Returns the multiples of a step from low to high, with as many digits behind
-- the point.
function M.steps(low, high, step, digits)
  local ticks = {}
  for i = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) do
    local value = i * step + 0 -- not -0
    ticks[#ticks + 1] = { value, ("%." .. digits .. "f"):format(value) }
  end
  return ticks
end

-- Returns the least and the greatest of what lines have: column 1 or 2 of their
-- points. nil if they have nothing.
function M.bounds(lines, column)
  local low, high
  for _, line in ipairs(lines) do
    for _, point in ipairs(line.points) do
      local value = point[2] and point[column]
      if value then
        low = math.min(low or value, value)
        high = math.max(high or value, value)
      end
    end
  end
  return low, high
end

-- Returns the logarithmic axis of the sizes that lines have, all above 0.
function M.sizes(title, lines)
  local low, high = M.bounds(lines, 1)
  high = math.max(high, 2 * low)
  return { title = title, low = low, high = high, log = true,
           ticks = M.powers(low, high, high / low > 64 and 4 or 2, text.size) }
end

-- Returns the ticks of an axis of whole powers of ten: these; where there are
-- few of them, twice and five times these, too.
local function ticks_of_decades(low, high, shown)
  local ticks = M.powers(low, high, 10, shown)
  for i = 1, #ticks < 4 and #ticks - 1 or 0 do
    for _, step in ipairs { 2, 5 } do
      local value = step * ticks[i][1]
      ticks[#ticks + 1] = { value, shown(value) }
    end
  end
  return ticks
end

-- Returns the logarithmic axis of the values that lines have, all above 0, in
-- whole powers of ten. shown(value): what it says at each tick.
function M.decades(title, lines, shown)
  local low, high = M.bounds(lines, 2)
  low = 10 ^ math.floor(math.log10(low))
  high = 10 ^ math.ceil(math.log10(high * 1.0001))
  return { title = title, low = low, high = high, log = true,
           ticks = ticks_of_decades(low, high, shown) }
end

-- ---- Pieces ----------------------------------------------------------------

local ESCAPES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;",
                  ['"'] = "&quot;" }

local function escaped(words) return (words:gsub('[&<>"]', ESCAPES)) end

local function label(x, y, words, more)
  return ('<text x="%.1f" y="%.1f"%s>%s</text>\n')
         :format(x, y, more and " " .. more or "", escaped(words))
end

local function straight(class, x1, y1, x2, y2)
  return ('<path class="%s" d="M%.1f,%.1fL%.1f,%.1f"/>\n')
         :format(class, x1, y1, x2, y2)
end

-- Returns how many entries of the legend stand side by side.
local function columns_of(lines) return #lines % 3 == 0 and 3 or 2 end

-- Where the chart's values are: functions from a value to pixels, and the ends.
local function frame_of(chart)
  local frame = { width = 720, height = 420, left = LEFT }
  if chart.ends then
    frame.width, frame.top = 1100, TITLE + 40
    frame.height = math.max(700, (#chart.lines + 1) * NAME + 2 * BOTTOM)
    frame.right = frame.width - 240
  else
    local rows = math.ceil(#chart.lines / columns_of(chart.lines))
    frame.top, frame.right = LEGEND + rows * ROW + 22, frame.width - 20
    frame.height = frame.height + math.max(0, rows - 3) * ROW
  end
  frame.bottom = frame.height - BOTTOM
  function frame.x(value)
    return frame.left + M.share(chart.x, value) * (frame.right - frame.left)
  end
  function frame.y(value)
    return frame.bottom - M.share(chart.y, value) * (frame.bottom - frame.top)
  end
  return frame
end

-- The grid, its numbers and the titles of both axes.
local function add_axes(parts, chart, frame)
  for _, tick in ipairs(chart.x.ticks) do
    local x = frame.x(tick[1])
    parts[#parts + 1] = straight("grid", x, frame.top, x, frame.bottom)
    parts[#parts + 1] = label(x, frame.bottom + 18, tick[2],
                              'text-anchor="middle"')
  end
  for _, tick in ipairs(chart.y.ticks) do
    local y = frame.y(tick[1])
    parts[#parts + 1] = straight("grid", frame.left, y, frame.right, y)
    parts[#parts + 1] = label(frame.left - 8, y + 4, tick[2],
                              'text-anchor="end"')
  end
  parts[#parts + 1] = label((frame.left + frame.right) / 2, frame.height - 8,
                            chart.x.title, 'text-anchor="middle"')
  parts[#parts + 1] = label(8, frame.top - 12, chart.y.title)
end

local function class_of(line)
  return ("c%d%s%s"):format(line.colour, line.dashed and " dashed" or "",
                            line.thick and " thick" or "")
end

local function add_legend(parts, lines, frame)
  local columns = columns_of(lines)
  local width = frame.right / columns
  for i, line in ipairs(lines) do
    local x = 8 + (i - 1) % columns * width
    local y = LEGEND + math.floor((i - 1) / columns) * ROW
    parts[#parts + 1] = straight(class_of(line), x, y - 4, x + SAMPLE, y - 4)
    parts[#parts + 1] = label(x + SAMPLE + 8, y, line.name)
  end
end

-- Returns the lines that have points, each with where it ends, from the top on.
local function ends_of(lines, frame)
  local list = {}
  for _, line in ipairs(lines) do
    local last
    for _, point in ipairs(line.points) do last = point[2] and point or last end
    if last then
      list[#list + 1] = { line = line, x = frame.x(last[1]),
                          y = frame.y(last[2]) }
    end
  end
  table.sort(list, function(a, b) return a.y < b.y end)
  return list
end

-- Merges the last group of names with those before it that it would lie on.
local function merge(groups)
  while #groups > 1 and groups[#groups].at < groups[#groups - 1].at do
    local last = table.remove(groups)
    local other = groups[#groups]
    other.at = (other.at * other.n + last.at * last.n) / (other.n + last.n)
    other.n = other.n + last.n
  end
end

-- Gives each end the height of its name: as near as names fit that lie NAME
-- apart.
local function place_names(list, frame)
  local groups, i = {}, 0
  for k, one in ipairs(list) do
    groups[#groups + 1] = { at = one.y - k * NAME, n = 1 }
    merge(groups)
  end
  for _, group in ipairs(groups) do
    local at = math.max(frame.top - NAME / 2,
                        math.min(group.at, frame.bottom - #list * NAME))
    for _ = 1, group.n do
      i = i + 1
      list[i].name = at + i * NAME
    end
  end
end

local function add_names(parts, lines, frame)
  local list = ends_of(lines, frame)
  place_names(list, frame)
  for _, one in ipairs(list) do
    local x = frame.right + TIE
    parts[#parts + 1] = straight(("c%d tie"):format(one.line.colour), one.x,
                                 one.y, x, one.name)
    parts[#parts + 1] = label(x + 6, one.name + 4, one.line.name)
  end
end

-- Returns the path through the points, broken where one is missing. Each piece
-- begins with a step of nothing, so that a point that is alone is a dot.
local function path_of(points, frame)
  local words, drawing = {}, false
  for _, point in ipairs(points) do
    if point[2] then
      words[#words + 1] = (drawing and "L%.1f,%.1f" or "M%.1f,%.1fh0")
                          :format(frame.x(point[1]), frame.y(point[2]))
    end
    drawing = point[2] ~= nil
  end
  return table.concat(words)
end

local function add_lines(parts, chart, frame)
  if chart.rule then
    local y = frame.y(chart.rule)
    parts[#parts + 1] = straight("rule", frame.left, y, frame.right, y)
  end
  for _, line in ipairs(chart.lines) do
    local path = path_of(line.points, frame)
    if path ~= "" then
      parts[#parts + 1] = ('<path class="%s" d="%s"/>\n')
                          :format(class_of(line), path)
      if line.dots then
        parts[#parts + 1] = ('<path class="c%d dots" d="%s"/>\n')
                            :format(line.colour, (path:gsub("L", "M")
                              :gsub("h0", ""):gsub("M[^M]+", "%0h0")))
      end
    end
  end
end

-- ---- The whole -------------------------------------------------------------

local HEAD = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" \z
  width="%d" height="%d" role="img" aria-labelledby="title about">\n\z
  <title id="title">%s</title>\n<desc id="about">%s</desc>\n%s\z
  <rect class="back" width="%d" height="%d"/>\n'

-- Returns the chart as the text of a file.
function M.draw(chart)
  local frame = frame_of(chart)
  local width, height = frame.width, frame.height
  local parts = { HEAD:format(width, height, width, height,
    escaped(chart.title), escaped(chart.description), STYLE, width, height) }
  parts[#parts + 1] = label(8, TITLE, chart.title, 'class="title"')
  local name = chart.ends and add_names or add_legend
  name(parts, chart.lines, frame)
  add_axes(parts, chart, frame)
  add_lines(parts, chart, frame)
  return table.concat(parts) .. "</svg>\n"
end

return M
