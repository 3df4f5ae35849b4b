-- SPDX-License-Identifier: Apache-2.0
--- Decodes string.buffer data that is too large to be decoded at once
-- (portions.lua): it can stop after any item and go on later. It gives the same
-- values as LuaJIT's own decoder and, like that, raises if a table gives one
-- key twice.
--
-- native/base/typed.c describes the format. Its scan has accepted the bytes:
-- they are complete, at most 64 tables deep, and the memory of their values is
-- bounded. Otherwise decoding would raise at most a few bytes beyond their end.
local new_table = require "table.new"
local ffi = require "ffi"

local band, min = bit.band, math.min
local bytes_t = ffi.typeof "const uint8_t *"
local int32_t = ffi.typeof "const int32_t *"
local uint32_t = ffi.typeof "const uint32_t *"
local double_t = ffi.typeof "const double *"
local int64_t = ffi.typeof "const int64_t *"
local uint64_t = ffi.typeof "const uint64_t *"
local cast, text = ffi.cast, ffi.string

local M = {}

local NIL, FALSE, TRUE, INT, NUM, TAB, TAB_END = 0, 1, 2, 6, 7, 8, 14
local INT64, UINT64, STRING = 16, 17, 32
local EXPONENT, FRACTION = 0x7ff00000, 0xfffff
local NAN = 0 / 0
local RUN = 64                          -- most flags decoded as one item
local SLOT, NODE = 8, 24                -- bytes of LuaJIT's tables
local LARGE = 2 ^ 17                    -- bytes of a table that begins a step

--- Returns a decoder of length bytes at pointer, which must stay until it is
-- done. Its values come into d.values, d.n of them.
--
-- By depth, for each table that is being filled: slots is its next slot; left
-- counts the items still to come, first slots, then keys and values in turn;
-- pairs is how many of its items are keys and values; keys is the key whose
-- value comes next.
function M.new(pointer, length)
  local values = {}
  return {
    pointer = cast(bytes_t, pointer), at = 0, length = length,
    values = values, n = 0, depth = 0,
    tables = { [0] = values }, slots = { [0] = 1 }, left = { [0] = 2 ^ 52 },
    pairs = { [0] = 0 }, keys = {}, alone = false,
  }
end

-- Reads a number of two or five bytes whose first byte is given. Returns it and
-- the offset behind it.
local function long(p, at, first)
  if first < 0xff then
    return (first - 0xe0) * 256 + p[at] + 0xe0, at + 1
  end
  return tonumber(cast(uint32_t, p + at)[0]), at + 4
end

local function number(p, at)
  local first = p[at]
  if first < 0xe0 then return first, at + 1 end
  return long(p, at + 1, first)
end

-- Reads a number. All NaNs become one, because LuaJIT takes the bits of some
-- others for pointers.
local function real(p)
  local high = cast(int32_t, p)[1]
  if band(high, EXPONENT) == EXPONENT
    and (cast(int32_t, p)[0] ~= 0 or band(high, FRACTION) ~= 0) then
    return NAN
  end
  return cast(double_t, p)[0]
end

-- Reads the value of fixed length behind a tag. Returns it and the offset
-- behind it.
local function scalar(p, at, tag)
  if tag == INT then return cast(int32_t, p + at)[0], at + 4 end
  if tag == NUM then return real(p + at), at + 8 end
  if tag == TRUE then return true, at end
  if tag == FALSE then return false, at end
  if tag == INT64 then return cast(int64_t, p + at)[0], at + 8 end
  if tag == UINT64 then return cast(uint64_t, p + at)[0], at + 8 end
  return nil, at
end

-- Puts a value into the innermost open table, as a slot, a key or a value.
local function place(d, value)
  local depth = d.depth
  local t, left = d.tables[depth], d.left[depth]
  d.left[depth] = left - 1
  if left > d.pairs[depth] then
    local slot = d.slots[depth]
    t[slot] = value
    d.slots[depth] = slot + 1
  elseif left % 2 == 0 then
    if t[value] ~= nil then error("a table gives one key twice", 0) end
    d.keys[depth] = value
  else
    t[d.keys[depth]] = value
  end
end

-- LuaJIT allocates a large table at once. Returns true if the present step
-- should end before this table, so that the next step begins with it.
local function comes_too_late(d, slots, pairs)
  d.alone = not d.alone and slots * SLOT + pairs * NODE > LARGE
  return d.alone
end

-- Begins a table whose tag has been read: places it, and makes it the one that
-- is filled. Returns the offset of its first item, or nil if the next step has
-- to begin with this table.
local function enter(d, at, shape)
  local p, slots, pairs = d.pointer, 0, 0
  if shape >= 2 then slots, at = number(p, at) end
  if shape % 2 == 1 then pairs, at = number(p, at) end
  if comes_too_late(d, slots, pairs) then return nil end
  local room = slots                  -- counts slot 0, which new_table adds
  if room > 1 then room = room - 1 end
  local t, first = new_table(room, pairs), shape >= 4 and 1 or 0
  place(d, t)
  local depth = d.depth + 1
  d.depth = depth
  d.tables[depth], d.slots[depth] = t, first
  d.pairs[depth] = 2 * pairs
  d.left[depth] = 2 * pairs + slots - (slots > 0 and first or 0)
  return at
end

local function leave(d)
  local depth, left = d.depth, d.left
  while depth > 0 and left[depth] == 0 do
    d.tables[depth], d.keys[depth] = nil, nil
    depth = depth - 1
  end
  d.depth = depth
end

local function check(d, at)
  if at > d.length then error("typed bytes end too early", 0) end
end

-- Reads a run of nils, falses and trues of a list from offset at on, in a loop
-- of its own, because no other items have as many values per byte. Returns the
-- offset behind them.
local function flags(d, at)
  local depth = d.depth
  local t, slot, p = d.tables[depth], d.slots[depth], d.pointer + at
  local most = min(RUN, d.left[depth] - d.pairs[depth], d.length - at)
  local n = 0
  while n < most do
    local tag = p[n]
    if tag > TRUE then break end
    if tag ~= NIL then t[slot + n] = tag == TRUE end
    n = n + 1
  end
  d.slots[depth] = slot + n
  d.left[depth] = d.left[depth] - n
  return at + n
end

-- Decodes the next item, or a run of flags. Returns false if the next step has
-- to begin with it.
local function item(d)
  local p = d.pointer
  local tag, at = number(p, d.at)
  if tag >= STRING then
    local length = tag - STRING
    check(d, at + length)
    place(d, text(p + at, length))
    at = at + length
  elseif tag >= TAB and tag < TAB_END then
    at = enter(d, at, tag - TAB)
    if not at then return false end
  elseif tag <= TRUE and d.left[d.depth] > d.pairs[d.depth] then
    at = flags(d, d.at)
  else
    local value
    value, at = scalar(p, at, tag)
    place(d, value)
  end
  check(d, at)
  d.at = at
  if d.left[d.depth] == 0 then leave(d) end
  return true
end

--- Decodes up to n items. Returns whether there are more, and whether the next
-- step takes long by itself, so that others should have their turn first.
function M.step(d, n)
  local length = d.length
  for _ = 1, n do
    if d.at >= length then
      d.n = d.slots[0] - 1
      return false, false
    end
    if not item(d) then return true, true end
  end
  return true, false
end

return M
