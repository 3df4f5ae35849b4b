-- SPDX-License-Identifier: Apache-2.0
-- Charts of lines as SVG (lua/perigee/bench/chart.lua).
local chart = require "perigee.bench.chart"
local plot = require "perigee.bench.plot"

-- A chart from 1 to 100 by 0 to 2, with these lines.
local function drawn(lines, more)
  local one = { title = "a < b & c", description = "what it shows",
    x = { title = "bytes", low = 1, high = 100, log = true,
          ticks = { { 1, "1" }, { 10, "10" }, { 100, "100" } } },
    y = { title = "time", low = 0, high = 2, ticks = chart.steps(0, 2, 1, 1) },
    lines = lines }
  for name, value in pairs(more or {}) do one[name] = value end
  return chart.draw(one)
end

local function line(points)
  return { { name = "raw", colour = 1, points = points } }
end

-- Returns the path of the first line of a chart.
local function path_of(text)
  return text:match '<path class="c1" d="([^"]*)"/>\n</svg>'
end

describe("an axis", function()
  it("has its low end at 0 and its high one at 1", function()
    local axis = { low = 64, high = 64 * 2 ^ 20, log = true }
    assert.near(0, chart.share(axis, 64), 1e-12)
    assert.near(1, chart.share(axis, 64 * 2 ^ 20), 1e-12)
    assert.near(0.5, chart.share(axis, 64 * 2 ^ 10), 1e-12)
    assert.near(0.25, chart.share({ low = 0, high = 2 }, 0.5), 1e-12)
  end)

  it("shows what is outside at the nearer end", function()
    assert.equal(1, chart.share({ low = 0, high = 2 }, 7))
    assert.equal(0, chart.share({ low = 1, high = 2, log = true }, 0.1))
  end)

  it("has ticks at the powers of a base, those at its ends, too", function()
    local ticks = chart.powers(64, 1024, 4, function(value)
      return value .. " B"
    end)
    assert.same({ { 64, "64 B" }, { 256, "256 B" }, { 1024, "1024 B" } }, ticks)
    ticks = chart.powers(0.1, 20, 10, tostring)
    assert.equal(3, #ticks)
    assert.near(0.1, ticks[1][1], 1e-12)
    assert.near(10, ticks[3][1], 1e-12)
  end)

  it("has ticks at multiples of a step, and none below nothing", function()
    assert.same({ { 0, "0.0" }, { 0.5, "0.5" }, { 1, "1.0" } },
                chart.steps(0, 1.2, 0.5, 1))
  end)
end)

describe("a chart", function()
  it("is 720 pixels wide and says what it shows to who does not see it",
     function()
    local text = drawn(line { { 1, 1 } })
    assert.matches('^<svg [^>]*viewBox="0 0 720 %d+" [^>]*role="img"', text)
    assert.matches('<title id="title">a &lt; b &amp; c</title>', text, 1, true)
    assert.matches('<desc id="about">what it shows</desc>', text, 1, true)
    assert.is_nil(text:find("a < b", 1, true))
  end)

  it("has colours of both schemes for each class that it uses", function()
    local text = drawn({ { name = "a", colour = 1, points = { { 1, 1 } } },
                         { name = "b", colour = 3, dashed = true,
                           points = { { 1, 1 } } } }, { rule = 1 })
    local light, dark = text:match "<style>(.*)@media[^{]*{(.*)</style>"
    for class in text:gmatch 'class="(%w+)' do
      for _, scheme in ipairs { light, dark } do
        assert.is_true(class == "title"
                       or scheme:find("." .. class .. " {", 1, true) ~= nil,
                       class)
      end
    end
  end)

  it("names its axes, their ticks and its lines", function()
    local text = drawn(line { { 1, 1 } })
    for _, words in ipairs { "bytes", "time", "raw", "10", "100", "2.0" } do
      assert.matches(">" .. words .. "</text>", text, 1, true)
    end
  end)

  it("draws a line through its points, to the right and up", function()
    local x1, y1, x2, y2 = path_of(drawn(line { { 1, 0 }, { 100, 2 } }))
      :match "^M(%S+),(%S+)h0L(%S+),(%S+)$"
    assert.is_true(tonumber(x1) < tonumber(x2) and tonumber(x2) < 720)
    assert.is_true(tonumber(y1) > tonumber(y2) and tonumber(y2) > 0)
  end)

  it("breaks a line where a value is missing", function()
    local path = path_of(drawn(line { { 1, 1 }, { 2, 1 }, { 4, nil }, { 8, 1 },
                                      { 16, nil } }))
    assert.matches("^M[^ML]+L[^ML]+M[^ML]+$", path)
  end)

  it("leaves a line without values out, but for its name", function()
    local text = drawn(line { { 1, nil } })
    assert.is_nil(path_of(text))
    assert.matches(">raw</text>", text, 1, true)
  end)

  it("has as many colours as it says", function()
    for colour = 1, chart.COLOURS do
      local text = drawn { { name = "a", colour = colour, points = {} } }
      assert.matches((".c%d {"):format(colour), text, 1, true)
    end
  end)

  it("draws a dot at each point of a line that wants dots", function()
    local text = drawn { { name = "a", colour = 1, dots = true,
                           points = { { 1, 1 }, { 2, 1 }, { 4, 2 } } } }
    local dots = text:match '<path class="c1 dots" d="([^"]*)"/>'
    assert.matches("^M[^ML]+h0M[^ML]+h0M[^ML]+h0$", dots)
  end)
end)

describe("axes that are made of lines", function()
  local lines = { { points = { { 64, 0.3 }, { 128, 40 }, { 256, nil } } } }

  it("have all sizes and values inside", function()
    local sizes = chart.sizes("bytes", lines)
    assert.same({ 64, 128 }, { sizes.low, sizes.high })
    local values = chart.decades("us", lines, tostring)
    assert.near(0.1, values.low, 1e-12)
    assert.near(100, values.high, 1e-9)
  end)

  it("have ticks between powers of ten where these are few", function()
    local ticks = chart.decades("us", lines, tostring).ticks
    assert.equal(4, #ticks)
    lines[1].points[2][2] = 4
    ticks = chart.decades("us", lines, tostring).ticks
    local values = {}
    for i, tick in ipairs(ticks) do values[i] = ("%g"):format(tick[1]) end
    table.sort(values)
    assert.same({ "0.1", "0.2", "0.5", "1", "10", "2", "5" }, values)
  end)

  it("are no axes of one size alone", function()
    local one = chart.sizes("bytes", { { points = { { 64, 1 } } } })
    assert.is_true(one.high > one.low)
  end)
end)

describe("bench.plot", function()
  local rows = { { name = "echo", size = 128, p50_us = 2, floor_p50_us = 1 },
                 { name = "echo", size = 64, p50_us = 1 } }

  it("draws p50 and the floor of each mode, from the smallest size on",
     function()
    local text = plot.draw("name", rows)
    assert.matches(">echo</text>", text, 1, true)
    assert.matches(">echo, floor</text>", text, 1, true)
    local x1, x2 = text:match '<path class="c1" d="M([^,]+),[^L]+L([^,]+),'
    assert.is_true(tonumber(x1) < tonumber(x2))
  end)

  it("leaves out what a logarithmic axis has no place for", function()
    local more = { rows[1], rows[2], { name = "echo", size = 32, p50_us = 0 },
                   { name = "connect", size = 0, p50_us = 9 } }
    assert.equal(plot.draw("name", rows), plot.draw("name", more))
    assert.is_nil(plot.draw("name", { { name = "a", size = 0, p50_us = 9 } }))
  end)

  it("tells that there is nothing to draw, or no such folder", function()
    local fine, why = plot.write("/nowhere/x.svg", "name", {})
    assert.is_nil(fine)
    assert.equal("no row has a size and a p50 above 0", why)
    fine, why = plot.write("/nowhere/x.svg", "name", rows)
    assert.is_nil(fine)
    assert.matches("/nowhere/x.svg", why, 1, true)
  end)
end)
