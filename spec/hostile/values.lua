-- SPDX-License-Identifier: Apache-2.0
-- Typed bytes that no codec would make: LuaJIT's string.buffer data, put
-- together by hand (native/base/typed.c describes the grammar).
local ffi = require "ffi"
local buffer = require "string.buffer"

local M = {}

M.encode, M.decode = buffer.encode, buffer.decode

-- The encoding of a tag or a count.
function M.number(n)
  if n < 0xe0 then return string.char(n) end
  if n < 0x1fe0 then
    n = n - 0xe0
    return string.char(0xe0 + bit.rshift(n, 8), bit.band(n, 255))
  end
  return "\255" .. ffi.string(ffi.new("uint32_t[1]", n), 4)
end

M.NIL, M.TRUE = "\0", "\2"
M.EMPTY = string.char(8) -- an empty table

local double = ffi.new("union { double value; uint32_t half[2]; }")

-- A number, given as the two halves of its bits.
function M.double(low, high)
  double.half[0], double.half[1] = low, high
  return "\7" .. ffi.string(double, 8)
end

-- A table of n array slots with the same bytes.
function M.array(n, bytes)
  return string.char(8 + 2) .. M.number(n) .. bytes:rep(n)
end

-- A table of n pairs; bytes are those of all keys and values.
function M.pairs(n, bytes)
  return string.char(8 + 1) .. M.number(n) .. bytes
end

-- Nested tables; the innermost has so many slots.
function M.nested(depth, slots)
  local bytes = M.array(slots, M.EMPTY)
  for _ = 2, depth do bytes = M.array(1, bytes) end
  return bytes
end

-- n strings of three bytes, all different.
function M.words(n)
  local parts = {}
  for i = 1, n do
    parts[i] = string.char(32 + 3, i % 256, math.floor(i / 256) % 256,
                           math.floor(i / 65536))
  end
  return string.char(8 + 2) .. M.number(n) .. table.concat(parts)
end

-- ---- Keys that collide -----------------------------------------------------

local rol, ror, bxor, band = bit.rol, bit.ror, bit.bxor, bit.band

-- The halves of a number whose hash in LuaJIT has its lowest `bits` bits zero.
-- lj_tab.c hashes low and 2 * high by
--
--   low ^= high; high = rol(high, 14); low -= high; high = rol(high, 5);
--   high ^= low; high -= rol(low, 13)
--
-- so for any `low` after the third step there is a `high` that fits.
function M.collision(seed, bits)
  local mask = bit.lshift(1, bits) - 1
  local wanted = band(bxor(rol(seed, 13), seed), mask)
  local high = ror(wanted, 19)
  if band(high, 1) ~= 0 then return nil end -- twice a number is even
  local low = bxor(bit.tobit(seed + rol(high, 14)), high)
  high = bit.rshift(high, 1)
  if band(bit.rshift(high, 20), 0x7ff) == 0x7ff then return nil end -- a NaN
  return low, high
end

-- A table of about n pairs whose keys have the same hash.
function M.flood(n, salt)
  local bits = math.ceil(math.log(n) / math.log(2)) + 1
  local parts, count, seed = {}, 0, salt or 1
  while count < n do
    seed = bit.tobit(seed * 5 + 0x3779b9)
    local low, high = M.collision(seed, bits)
    if low then
      count = count + 1
      parts[count] = M.double(low, high) .. M.TRUE
    end
  end
  return M.pairs(count, table.concat(parts))
end

-- n strings with the same sparse hash in LuaJIT, which reads only the first and
-- last four bytes and two places between.
function M.strings(n)
  local parts = {}
  local length = 64
  for i = 1, n do
    local text = ("x"):rep(4) .. ("%08x"):format(i)
    text = text .. ("x"):rep(length - #text)
    parts[i] = M.number(32 + length) .. text
  end
  return string.char(8 + 2) .. M.number(n) .. table.concat(parts)
end

return M
