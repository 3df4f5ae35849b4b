-- SPDX-License-Identifier: Apache-2.0
-- Charts of lines as text of SVG, 720 pixels wide. Colours follow the reader's
-- scheme, light or dark, by a media query; the back is drawn, too, because a
-- page may have another scheme than its reader's browser.
--
-- A chart: title, description (for who does not see it), x and y, lines, and
-- rule (a value of y at which a line is drawn across) or nil. An axis: title,
-- low, high, log (its scale is logarithmic), ticks, a list of { value, text }.
-- A line: name, colour (1 to 3), dashed, points, a list of { x, y }, from left
-- to right. A point without y is missing: the line is broken there.

local M = {}

local WIDTH, HEIGHT = 720, 420
local LEFT, RIGHT, BOTTOM = 64, 20, 46 -- margins, pixels
local LEGEND, ROW = 46, 20             -- its top, the height of a row
local SAMPLE = 30                      -- of a line, in the legend

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
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .back { fill: #0d1117; }
  .grid { stroke: #3d444d; }
  .rule { stroke: #9198a1; }
  .c1 { stroke: #4493f8; }
  .c2 { stroke: #3fb950; }
  .c3 { stroke: #f0883e; }
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

-- ---- Pieces ----------------------------------------------------------------

local ESCAPES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;",
                  ['"'] = "&quot;" }

local function escaped(text) return (text:gsub('[&<>"]', ESCAPES)) end

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
  local rows = math.ceil(#chart.lines / columns_of(chart.lines))
  local frame = { left = LEFT, right = WIDTH - RIGHT, bottom = HEIGHT - BOTTOM,
                  top = LEGEND + rows * ROW + 22 }
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
  parts[#parts + 1] = label((frame.left + frame.right) / 2, HEIGHT - 8,
                            chart.x.title, 'text-anchor="middle"')
  parts[#parts + 1] = label(8, frame.top - 12, chart.y.title)
end

local function class_of(line)
  return ("c%d%s"):format(line.colour, line.dashed and " dashed" or "")
end

local function add_legend(parts, lines)
  local columns = columns_of(lines)
  local width = (WIDTH - RIGHT) / columns
  for i, line in ipairs(lines) do
    local x = 8 + (i - 1) % columns * width
    local y = LEGEND + math.floor((i - 1) / columns) * ROW
    parts[#parts + 1] = straight(class_of(line), x, y - 4, x + SAMPLE, y - 4)
    parts[#parts + 1] = label(x + SAMPLE + 8, y, line.name)
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
  local parts = { HEAD:format(WIDTH, HEIGHT, WIDTH, HEIGHT,
    escaped(chart.title), escaped(chart.description), STYLE, WIDTH, HEIGHT) }
  parts[#parts + 1] = label(8, 22, chart.title, 'class="title"')
  add_legend(parts, chart.lines)
  add_axes(parts, chart, frame)
  add_lines(parts, chart, frame)
  return table.concat(parts) .. "</svg>\n"
end

return M
