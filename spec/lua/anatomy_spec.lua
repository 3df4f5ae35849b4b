-- SPDX-License-Identifier: Apache-2.0
-- The parts of a call from the stamps of both sides (bench/anatomy.lua).
local anatomy = require "bench.lib.anatomy"
local ffi = require "ffi"
local folders = require "bench.lib.folders"
local stamps = require "bench.lib.stamps"

local BASE = 1000000ULL

describe("the anatomy of a call", function()
  local folder

  before_each(function() folder = folders.new() end)
  after_each(function() folders.remove(folder) end)

  -- Writes a file of stamps, { point, tick, point, tick, ... }.
  local function file(name, list)
    local words = ffi.new("uint64_t[?]", #list / 2 + 4)
    for i = 1, #list, 2 do
      words[(i - 1) / 2] = (BASE + list[i + 1]) * 32 + list[i]
    end
    local path = folder .. "/" .. name
    local out = assert(io.open(path, "wb"))
    out:write(ffi.string(words, ffi.sizeof(words)))
    out:close()
    return path
  end

  -- Sixteen calls, of which one has a second look at a record.
  local function both_sides()
    local caller, server = {}, {}
    local function add(to, ...)
      for _, value in ipairs { ... } do to[#to + 1] = value end
    end
    for i = 0, 15 do
      local at = 1000 * i
      add(caller, stamps.ASKED, at, stamps.CALLED, at + 10, stamps.PUBLISHED,
          at + 30, stamps.WROTE, at + 170)
      add(server, stamps.SEEN, at + 130, stamps.GIVEN, at + 150,
          stamps.HANDLER, at + 160, stamps.HANDLED, at + 165,
          stamps.PUBLISHED, at + 180)
      if i == 12 then add(caller, stamps.READ, at + 200) end
      add(caller, stamps.SEEN, at + 300, stamps.GIVEN, at + 320, stamps.DONE,
          at + 340 + i)
    end
    return anatomy.read({ file("1", server), file("2", caller) }, BASE)
  end

  it("has parts that add up to its time", function()
    local caller, server = both_sides()
    local told = anatomy.split(caller, server, 0.5)
    local sum = 0
    for _, part in ipairs(told.parts) do sum = sum + part.middling end
    assert.are.equal(10, #told.parts)
    assert.near((340 + 8) / 2, sum, 2)
    assert.are.same({ name = "caller published > server seen",
                      meaning = "seen by the peer", p50 = 50, middling = 50 },
                    told.parts[3])
  end)

  it("is that of the calls that go the usual way", function()
    local caller, server = both_sides()
    local told = anatomy.split(caller, server, 1)
    assert.are.equal(13, told.calls) -- the first two are left out
    assert.are.equal(13 / 14, told.share)
  end)

  it("tells what a send takes apart, as the peer may be faster", function()
    local caller, server = both_sides()
    assert.are.equal(140, anatomy.split(caller, server, 1).sends.caller)
  end)

  it("with many under way is split by side, without a rest", function()
    local caller = both_sides()
    local sum = 0
    for _, part in ipairs(anatomy.shares(caller, 1, anatomy.ended(caller))) do
      sum = sum + part.mean
    end
    local whole = caller.ticks[caller.count - 1] - caller.ticks[0]
    assert.are.equal(16, anatomy.ended(caller))
    assert.near(whole / 16, sum, whole / 16 * 0.1)
  end)

  it("wants a side that asks and one that serves", function()
    local one = file("1", { stamps.SEEN, 1 })
    local other = file("2", { stamps.SEEN, 2 })
    assert.has_error(function() anatomy.read({ one, other }, BASE) end)
  end)
end)

describe("bench/anatomy.lua", function()
  it("measures no C programs over verbs, which they do not know", function()
    local pipe = io.popen("luajit bench/anatomy.lua --mode inplace,raw-c \z
      --transport shm,verbs 2>&1; echo status $?")
    local text = pipe:read "*a"
    pipe:close()
    assert.matches("modes between C programs go over shm and tcp\n", text)
    assert.is_nil(text:find("status 0", 1, true))
  end)
end)
