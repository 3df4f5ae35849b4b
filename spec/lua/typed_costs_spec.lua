-- SPDX-License-Identifier: Apache-2.0
-- The costs of typed values with the installed LuaJIT. Payloads made by hand,
-- whose shapes would take much memory or time, are refused or decode within
-- what their bytes allow. Data that programs send is not refused.
local buffer = require "string.buffer"
local ffi = require "ffi"
local native = require "perigee.native"

local C = native.C
local band, rol, bxor, tobit = bit.band, bit.rol, bit.bxor, bit.tobit
local TOO_LARGE = C.PERIGEE_TOO_LARGE
local MOST = 2 ^ 17
-- LuaJIT's table of all strings: what a new string adds beyond the scanner's
-- count.
local INTERNED = 10

local function scan(bytes) return C.perigee_typed_scan(bytes, #bytes) end

-- ---- Payloads by hand -------------------------------------------------------

local double, int32 = ffi.new("double[1]"), ffi.new("int32_t[1]")
local number32 = ffi.new("uint32_t[1]")

local function count(out, n)
  if n < 0xe0 then return out:put(string.char(n)) end
  if n < 0x1fe0 then
    n = n - 0xe0
    return out:put(string.char(0xe0 + math.floor(n / 256), n % 256))
  end
  number32[0] = n
  return out:put("\255"):putcdata(number32, 4)
end

local function real(out, value)
  double[0] = value
  return out:put("\7"):putcdata(double, 8)
end

local function whole(out, value)
  int32[0] = value
  return out:put("\6"):putcdata(int32, 4)
end

local function text(out, value)
  return count(out, #value + 32):put(value)
end

-- n items by put(out, i), as the slots ("\10") or pairs ("\9") of a table.
local function table_of(tag, n, put)
  local out = count(buffer.new():put(tag), n)
  for i = 1, n do put(out, i) end
  return out:tostring()
end

local function list(n, put) return table_of("\10", n, put) end
local function map(n, put) return table_of("\9", n, put) end

-- ---- What LuaJIT does -------------------------------------------------------

-- From lj_tab.c: the place of a number in the hash part.
local function place(key)
  local words = ffi.cast("int32_t *", ffi.new("double[1]", key))
  local b = tobit(words[1] * 2)
  local a = bxor(words[0], b)
  b = rol(b, 14)
  a = tobit(a - b)
  b = bxor(rol(b, 5), a)
  return tobit(b - rol(a, 13))
end

-- Compiled code may decode twice (codec.lua).
local function decode(input)
  while #input > 0 do input:decode() end
end
jit.off(decode)

-- The memory of the decoded values, and the time per byte in nanoseconds.
local function cost(bytes)
  local input = buffer.new():set(bytes)
  collectgarbage()
  collectgarbage "stop"
  local before, began = collectgarbage "count", os.clock()
  local fine = pcall(decode, input)
  local time = (os.clock() - began) * 1e9 / #bytes
  local spent = (collectgarbage "count" - before) * 1024
  collectgarbage "restart"
  return spent, time, fine
end

local function check(name, bytes, strings)
  local status = scan(bytes)
  if status == TOO_LARGE then return false end
  assert.is_true(status > 0, name)
  local spent, _, fine = cost(bytes)
  assert.is_true(fine, name)
  local most = 8 * #bytes + 65536 + INTERNED * (strings or 0)
  assert.is_true(spent <= most, ("%s: %d bytes took %d"):format(name, #bytes,
                                                               spent))
  return true
end

-- ---- Shapes -----------------------------------------------------------------

local function key_of(width)
  return function(i)
    local bytes = {}
    for k = 1, width do
      bytes[k] = string.char(i % 256)
      i = math.floor(i / 256)
    end
    return table.concat(bytes)
  end
end

-- Name, bytes of an item, a function that writes it, strings in it.
local shapes = {
  { "nil", 1, function(out) out:put "\0" end },
  { "an empty table", 1, function(out) out:put "\8" end },
  { "a table of one slot", 3, function(out) out:put "\10\1\1" end },
  { "a table of one pair", 4, function(out) out:put "\9\1\1\1" end },
  { "a table as the key of one", 4, function(out) out:put "\9\1\8\8" end },
  { "a table of one number", 11, function(out, i)
    real(out:put "\10\1", i)
  end },
  { "an integer in a box", 9, function(out) out:put "\16perigee!" end },
  { "60 tables in one another", 121, function(out)
    out:put(("\10\1"):rep(60)):put "\1"
  end },
  { "60 tables and their numbers", 721, function(out, i)
    for _ = 1, 60 do real(out:put "\10\2", i) end
    out:put "\1"
  end },
}
for width = 1, 12 do
  local make = key_of(width)
  shapes[#shapes + 1] = { "a text of " .. width, width + 1, function(out, i)
    text(out, make(i))
  end, 1 }
  shapes[#shapes + 1] = { "a table of one text of " .. width, width + 3,
                          function(out, i)
    text(out:put "\10\1", make(i))
  end, 1 }
end
-- Each beside so many bytes that cost nothing: some are just not refused.
for pad = 1, 16 do
  shapes[#shapes + 1] = { "an empty table beside " .. pad, pad + 2,
                          function(out)
    text(out:put "\8", ("x"):rep(pad))
  end }
end

local maps = {
  { "whole keys", 6, function(out, i) whole(out, i * 40503):put "\1" end },
  { "real keys", 10, function(out, i) real(out, i / 3):put "\1" end },
  { "boxed keys", 10, function(out) out:put "\16perigee!\1" end },
  { "tables as keys", 2, function(out) out:put "\8\1" end },
  { "texts as keys", 7, function(out, i) text(out, ("%05d"):format(i)):put "\1"
  end, 1 },
}

describe("typed values", function()
  it("take 8 bytes for each of theirs, whatever their shape", function()
    local taken = 0
    for _, shape in ipairs(shapes) do
      local name, size, put, strings = unpack(shape)
      for _, bytes in ipairs { 100, 511, 700, 5000, 40000, MOST } do
        local n = math.max(1, math.floor(bytes / size))
        if check(name, list(n, put), (strings or 0) * n) then
          taken = taken + 1
        end
      end
    end
    assert.is_true(taken > 2 * #shapes)
  end)

  it("take no more as pairs, at every number of them", function()
    for _, shape in ipairs(maps) do
      local name, size, put, strings = unpack(shape)
      for _, n in ipairs { 1, 2, 3, 31, 33, 129, 1025, 8193, 32769,
                           math.floor(MOST / size) } do
        check(name, map(n, put), (strings or 0) * n)
      end
    end
  end)

  it("of a byte each are refused once they are many", function()
    assert.equal(1, scan(list(100, shapes[2][3])))
    assert.equal(1, scan(list(1000, shapes[2][3])))
    assert.equal(TOO_LARGE, scan(list(1200, shapes[2][3])))
    assert.equal(TOO_LARGE, scan(list(MOST, shapes[2][3])))
  end)

  it("are 250 at most", function()
    assert.equal(250, scan(("\0"):rep(250)))
    assert.equal(TOO_LARGE, scan(("\0"):rep(251)))
  end)

  it("may be many small tables, as programs send them", function()
    local function records(make)
      local made = {}
      for i = 1, 20000 do made[i] = make(i) end
      assert.equal(1, scan(buffer.encode(made)))
    end
    records(function(i) return { i } end)
    records(function(i) return { i, tostring(i) } end)
    records(function(i) return { x = i, y = i } end)
    records(function(i) return { id = i, name = "name " .. i } end)
    records(function(i) return { id = i, state = "open", tags = { "a", "b" } }
    end)
    records(function(i)
      return { key = "key" .. i, value = i, fresh = true }
    end)
    records(function(i) return "text " .. i end)
    records(function(i) return i % 2 == 0 end)
  end)
end)

describe("number keys", function()
  it("have their place where the scanner thinks they have", function()
    local keys, taken = {}, {}
    while #keys < 20 do
      local key = math.random(2 ^ 31) - 2 ^ 30 + (#keys % 2) / 2
      local at = band(place(key), 63)
      if not taken[at] then
        taken[at] = true
        keys[#keys + 1] = key
      end
    end
    -- Texts come last, as many as give the table 64 nodes.
    local bytes = map(33, function(out, i)
      if keys[i] then return real(out, keys[i]):put "\1" end
      return text(out, "text " .. i):put "\1"
    end)
    local seen = {}
    for key in pairs(buffer.decode(bytes)) do
      if type(key) == "number" then seen[#seen + 1] = key end
    end
    assert.equal(20, #seen)
    table.sort(keys, function(a, b)
      return band(place(a), 63) < band(place(b), 63)
    end)
    if seen[1] ~= keys[1] then -- from the last node to the first
      for i = 1, 10 do seen[i], seen[21 - i] = seen[21 - i], seen[i] end
    end
    assert.same(keys, seen)
  end)

  -- n keys with the first places, in a table of so many nodes.
  local function colliding(n, places)
    local nodes, key = 1, 0
    while nodes < n do nodes = nodes * 2 end
    return map(n, function(out)
      repeat key = key + 1
      until band(place(key), nodes - 1) < places
      real(out, key):put "\1"
    end)
  end

  it("that share a chain take long, and are refused", function()
    local bytes = colliding(4000, 1)
    local _, time = cost(bytes)
    local _, other = cost(map(4000, function(out, i) real(out, i):put "\1" end))
    assert.is_true(time > 10 * other, time .. ", " .. other) -- some 80 x
    assert.equal(TOO_LARGE, scan(bytes))
  end)

  it("are refused in small tables and where each has few", function()
    assert.equal(TOO_LARGE, scan(colliding(200, 1)))
    assert.equal(TOO_LARGE, scan(colliding(2000, 40)))
    local bytes = colliding(150, 1)
    assert.equal(1, scan(colliding(40, 1)))
    assert.equal(TOO_LARGE, scan(list(50, function(out) out:put(bytes) end)))
  end)

  it("of programs are not refused", function()
    local families = {
      function(i) return i end,
      function(i) return -i end,
      function(i) return i % 2 == 0 and i or -i end,
      function(i) return i * 1000 end,
      function(i) return i * 2 ^ 16 end,
      function(i) return i * 2 ^ 32 end,
      function(i) return i / 2 end,
      function(i) return i / 100 end,
      function(i) return 1 / i end,
      function(i) return 1.7e9 + i end,
      function(i) return 1.7e9 + i * 60 end,
      function(i) return 1.7e12 + i * 1000 end,
      function(i) return 2 ^ 52 + i end,
      function() return math.random() end,
      function() return math.random(2 ^ 31) end,
      function(i) return (i % 300) * 1000 + math.floor(i / 300) end,
    }
    for which, make in ipairs(families) do
      for _, n in ipairs { 33, 64, 100, 500, 4096, 30000 } do
        local bytes = map(n, function(out, i) real(out, make(i)):put "\1" end)
        assert.equal(1, scan(bytes), which .. " of " .. n)
      end
    end
  end)
end)

describe("strings", function()
  -- LuaJIT at first hashes only few bytes of each: they differ in the others.
  it("that share a chain at first are hashed anew by LuaJIT", function()
    for _, length in ipairs { 40, 64, 200 } do
      local n = math.floor(200000 / length)
      local same, other = ("a"):rep(length), ("b"):rep(length)
      local at = math.floor(length * 3 / 4) - 4
      local bytes = list(n, function(out, i)
        text(out, same:sub(1, at) .. ("%06d"):format(i) .. same:sub(at + 7))
      end)
      local free = list(n, function(out, i)
        text(out, ("%06d"):format(i) .. other:sub(7))
      end)
      local _, slow = cost(bytes)
      local _, fast = cost(free)
      assert.is_true(slow < 20 * fast + 20, length)
    end
  end)
end)
