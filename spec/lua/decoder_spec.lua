-- SPDX-License-Identifier: Apache-2.0
-- The decoder for large data gives the same values as LuaJIT's own, however the
-- data is cut into portions.
local buffer = require "string.buffer"
local decoder = require "perigee.typed.decoder"
local ffi = require "ffi"
local new_table = require "table.new"
local values = require "spec.hostile.values"

local random = math.random

-- Decodes bytes in steps of n items; returns the values and their number.
local function decoded(bytes, n)
  local d = decoder.new(bytes, #bytes)
  while decoder.step(d, n) do end
  return d.values, d.n
end

-- Decodes with LuaJIT; not compiled, as it may raise (codec.lua).
local function decoded_by_luajit(bytes)
  local input, list, n = buffer.new():set(bytes), {}, 0
  while #input > 0 do
    n = n + 1
    list[n] = input:decode()
  end
  return list, n
end
jit.off(decoded_by_luajit)

-- ---- Comparing values ------------------------------------------------------

local same

-- Compares pairs by key. Keys that are neither numbers nor strings have no
-- order, and are equal if their values are.
local function same_pairs(a, b)
  local count, odd = 0, {}
  for key, value in pairs(a) do
    count = count + 1
    if type(key) == "table" or type(key) == "cdata" then
      odd[#odd + 1] = { key, value }
    elseif not same(value, b[key]) then
      return false
    end
  end
  for key, value in pairs(b) do
    count = count - 1
    if type(key) == "table" or type(key) == "cdata" then
      for i, pair in ipairs(odd) do
        if same(pair[1], key) and same(pair[2], value) then
          table.remove(odd, i)
          break
        end
      end
    end
  end
  return count == 0 and #odd == 0
end

function same(a, b)
  if type(a) ~= type(b) then return false end
  if type(a) == "table" then return same_pairs(a, b) end
  if type(a) == "cdata" then
    return tostring(a) == tostring(b) -- with LL or ULL
  end
  if type(a) == "number" and a == 0 then return b == 0 and 1 / a == 1 / b end
  return a == b or (a ~= a and b ~= b)
end

local function assert_same(bytes)
  local want, n = decoded_by_luajit(bytes)
  for _, items in ipairs { 1, 7, 1000 } do
    local got, count = decoded(bytes, items)
    assert.equal(n, count)
    assert.is_true(same(want, got))
  end
end

-- ---- Random values ---------------------------------------------------------

local SCALARS = {
  function() return nil end,
  function() return random(2) == 1 end,
  function() return random(-2 ^ 31, 2 ^ 31 - 1) end,
  function() return random(0, 300) end,
  function() return (random() - 0.5) * 10 ^ random(-300, 300) end,
  function() return ({ 0 / 0, -(0 / 0), 1 / 0, -1 / 0, -0.0, 0, 2 ^ 53,
                       5e-324 })[random(8)] end,
  function() return ("\0x"):rep(random(0, 10)) .. random(1000) end,
  function() return ("y"):rep(({ 0, 191, 192, 8127, 8128 })[random(5)]) end,
  function() return ffi.new("int64_t", random(-2 ^ 31, 2 ^ 31)) * 2 ^ 31 end,
  function() return ffi.new("uint64_t", -random(1000)) end,
}

local value

local function key(depth)
  while true do
    local k = value(depth)
    if k ~= nil and k == k then return k end
  end
end

local function table_of(depth)
  local t = new_table(random(0, 9), random(0, 9))
  if random(3) == 1 then t[0] = value(depth) end
  for i = 1, random(0, 8) do t[i] = value(depth) end
  for _ = 1, random(0, 8) do t[key(depth)] = value(depth) end
  return t
end

function value(depth)
  if depth > 0 and random(3) == 1 then return table_of(depth - 1) end
  return SCALARS[random(#SCALARS)]()
end

describe("the decoder for what is large", function()
  it("gives what LuaJIT's gives, of any values", function()
    math.randomseed(os.time())
    for _ = 1, 200 do
      local out = buffer.new()
      for _ = 1, random(0, 5) do out:encode(value(random(0, 4))) end
      assert_same(out:tostring())
    end
  end)

  it("gives what LuaJIT's gives, of tables of each form and size", function()
    for _, n in ipairs { 0, 1, 2, 223, 224, 225, 8159, 8160, 8161, 70000 } do
      local from_one, from_zero, map, both = {}, {}, {}, {}
      for i = 1, n do
        from_one[i], from_zero[i - 1], both[i] = i, tostring(i), i + 0.5
        map["k" .. i], both[-i] = i % 2 == 0, i
      end
      for _, t in ipairs { from_one, from_zero, map, both } do
        assert_same(buffer.encode(t))
      end
    end
    local deep = {}
    for _ = 1, 63 do deep = { deep, x = {} } end
    assert_same(buffer.encode(deep))
  end)

  it("gives what LuaJIT's gives, of bytes that it would not write", function()
    assert_same(values.array(1, values.NIL) .. values.array(3, values.NIL))
    assert_same(string.char(8 + 4, 1) .. string.char(8 + 5, 1, 1)
      .. values.TRUE .. values.double(0, 0))
    assert_same(string.char(8 + 1, 2) .. values.EMPTY .. values.TRUE
      .. values.array(2, values.EMPTY) .. values.EMPTY)
  end)

  it("gives what LuaJIT's gives, of flags however they are cut", function()
    for _, n in ipairs { 1, 63, 64, 65, 129, 1000 } do
      local list, out = {}, buffer.new()
      for i = 1, n do
        local kind = random(n < 100 and 4 or 40)
        list[i] = string.char(random(3) - 1) .. (kind == 1 and "\33a" or "")
      end
      local bytes = table.concat(list)
      local count = #bytes - select(2, bytes:gsub("\33a", ""))
      out:put(values.array(1, ""):sub(1, 1), values.number(count), bytes)
      out:put("\12", values.number(count + 1), bytes, "\2\1\0")
      assert_same(out:tostring())
      assert_same(bytes)
    end
  end)

  it("makes a large table in a step of its own", function()
    local bytes = "\2" .. values.array(2 ^ 15, values.TRUE) .. "\2"
    local d = decoder.new(bytes, #bytes)
    assert.same({ true, true }, { decoder.step(d, 1000) })
    assert.equal(1, d.at)
    assert.is_true((decoder.step(d, 1)))
    assert.is_true(d.at > 1)
    while decoder.step(d, 1000) do end
    assert.equal(3, d.n)
    assert.equal(2 ^ 15 - 1, #d.values[2]) -- and slot 0
  end)

  -- LuaJIT would crash if it took a NaN for a table at the address in its bits.
  it("makes one NaN of all that there are", function()
    for high = 0, 2 ^ 17 - 1 do
      local bits = bit.tobit(0xfff80000 + high * 4 + (high % 4))
      for _, n in ipairs(decoded(values.double(0x1234567, bits)
        .. values.double(1, 0x7ff00000) .. values.double(0, 0xfff80000), 9)) do
        assert(type(n) == "number" and n ~= n)
      end
    end
    assert.equal(1 / 0, decoded(values.double(0, 0x7ff00000), 9)[1])
    assert.equal(-1 / 0, decoded(values.double(0, 0xfff00000), 9)[1])
  end)

  it("raises on a table that gives one key twice, as LuaJIT's does", function()
    local twice = values.pairs(2, ("\33a\2"):rep(2))
    local first = string.char(8 + 3, 2, 1) .. "\0\2" .. "\6\1\0\0\0\2"
    for _, bytes in ipairs { twice, first, values.array(2, twice) } do
      assert.is_false((pcall(decoded_by_luajit, bytes)))
      local fine, why = pcall(decoded, bytes, 100)
      assert.is_false(fine)
      assert.equal("a table gives one key twice", why)
    end
  end)

  it("raises on what is cut short", function()
    local whole = buffer.encode { "some", 1.5, x = { 1, 2 }, y = 3LL }
    for n = 1, #whole - 1 do
      local part = ffi.new("uint8_t[?]", #whole + 16)
      ffi.copy(part, whole, n)
      local d = decoder.new(part, n)
      pcall(function() while decoder.step(d, 3) do end end)
      assert.is_true(d.at <= n)
    end
  end)
end)
