-- SPDX-License-Identifier: Apache-2.0
local units = require "perigee.runtime.units"

describe("units", function()
  it("reads sizes, binary unless a B stands alone behind the letter", function()
    for text, bytes in pairs {
      ["0"] = 0, ["4096"] = 4096, ["64K"] = 65536, ["64k"] = 65536,
      ["64KiB"] = 65536, ["1.5 GiB"] = 1.5 * 2 ^ 30, ["64KB"] = 64000,
      ["16M"] = 2 ^ 24, ["1T"] = 2 ^ 40, ["7B"] = 7,
    } do
      assert.equal(bytes, (units.size(text)), text)
    end
    assert.equal(512, (units.size(512)))
  end)

  it("tells what is no size", function()
    for _, text in ipairs { "", "K", "1X", "1.3", "-1", "1 2", {}, true } do
      local size, why = units.size(text)
      assert.is_nil(size)
      assert.equal("string", type(why))
    end
  end)

  it("reads times", function()
    for text, seconds in pairs {
      ["0.5"] = 0.5, ["200ms"] = 0.2, ["2s"] = 2, ["1m"] = 60, ["1h"] = 3600,
    } do
      assert.equal(seconds, (units.time(text)), text)
    end
    assert.is_true(math.abs(units.time("20us") - 2e-5) < 1e-12)
    for _, text in ipairs { "", "ms", "1 fortnight", {} } do
      assert.is_nil((units.time(text)))
    end
  end)

  it("writes both", function()
    assert.equal("64 KiB", units.format_size(65536))
    assert.equal("1.5 GiB", units.format_size(1.5 * 2 ^ 30))
    assert.equal("7 B", units.format_size(7))
    assert.equal("1.5 ms", units.format_time(0.0015))
    assert.equal("2 s", units.format_time(2))
    assert.equal("no limit", units.format_time(math.huge))
  end)
end)
