-- SPDX-License-Identifier: Apache-2.0
-- Payloads of the soak. Each says who made it (the peer's number), in which
-- life of that peer, and which of its payloads it is, and has a checksum over
-- all its bytes. The bytes behind the head follow from the head, so no two
-- payloads are alike.

local ffi = require "ffi"
local bit = require "bit"

ffi.cdef [[
typedef struct {
  uint32_t who, life, serial, length, salt, sum;
} perigee_soak_head;
]]

local bxor, rol, tobit = bit.bxor, bit.rol, bit.tobit
local lshift, rshift = bit.lshift, bit.rshift
local head_t = ffi.typeof "perigee_soak_head *"
local words_t = ffi.typeof "int32_t *"
local copied = ffi.new "perigee_soak_head"

local SHORTEST = ffi.sizeof "perigee_soak_head"
local HEAD_WORDS = SHORTEST / 4
local STEP = 0x61c88647

local M = { SHORTEST = SHORTEST }

-- One round of xorshift: each word of the body follows from the one before.
local function following(word)
  word = bxor(word, lshift(word, 13))
  word = bxor(word, rshift(word, 17))
  return bxor(word, lshift(word, 5))
end

local function fill_body(pointer, length, word)
  local words, count = ffi.cast(words_t, pointer), rshift(length, 2)
  for i = HEAD_WORDS, count - 1 do
    word = following(word)
    words[i] = word
  end
  for i = count * 4, length - 1 do pointer[i] = i % 251 end
end

-- A change of any one word changes the sum, as each step can be undone.
local function sum_of(pointer, length)
  local words, count = ffi.cast(words_t, pointer), rshift(length, 2)
  local sum = length
  for i = 0, HEAD_WORDS - 2 do
    sum = tobit(rol(bxor(sum, words[i]), 5) + STEP)
  end
  for i = HEAD_WORDS, count - 1 do
    sum = tobit(rol(bxor(sum, words[i]), 5) + STEP)
  end
  for i = count * 4, length - 1 do
    sum = tobit(rol(bxor(sum, pointer[i]), 5) + STEP)
  end
  return sum
end

--- Fills `length` bytes (at least SHORTEST, below 2^31) with a payload.
function M.fill(pointer, length, who, life, serial)
  local head = ffi.cast(head_t, pointer)
  head.who, head.life, head.serial = who, life, serial
  head.length, head.salt = length, (serial * 2654435 + who) % 2 ^ 31 + 1
  fill_body(pointer, length, tobit(head.salt))
  ffi.cast(words_t, pointer)[HEAD_WORDS - 1] = sum_of(pointer, length)
end

-- Tells which bytes of the body are not those that follow from the head, of
-- which a copy is in `copied`.
local function wrong_bytes(pointer, length)
  local is = ffi.string(pointer, length)
  local right = ffi.new("uint8_t[?]", length)
  ffi.copy(right, copied, SHORTEST)
  fill_body(right, length, tobit(copied.salt))
  local first, last, count = nil, nil, 0
  for i = SHORTEST, length - 1 do
    if is:byte(i + 1) ~= right[i] then
      first, last, count = first or i, i, count + 1
    end
  end
  if not first then return "the head differs" end
  return ("%d bytes differ, %d to %d; there is %s"):format(count, first, last,
    (is:sub(first + 1, first + 32):gsub(".", function(byte)
      return ("%02x"):format(byte:byte())
    end)))
end

--- Returns the who, life and serial of a payload; or nil and what is wrong.
function M.read(pointer, length)
  if length < SHORTEST then
    return nil, ("%d bytes have come"):format(length)
  end
  ffi.copy(copied, pointer, SHORTEST)
  if copied.length ~= length then
    return nil, ("%d bytes have come, of a payload of %d"):format(length,
      copied.length)
  elseif sum_of(pointer, length) ~= tobit(copied.sum) then
    return nil, ("wrong bytes in payload %d of peer %d, %d bytes: %s"):format(
      copied.serial, copied.who, length, wrong_bytes(pointer, length))
  end
  return copied.who, copied.life, copied.serial
end

--- Returns nil if the payload is this one, else what is wrong.
function M.differs(pointer, length, who, life, serial)
  local is, of, which = M.read(pointer, length)
  if not is then return of end
  if is == who and of == life and which == serial then return nil end
  return ("payload %d of peer %d (life %d) came for %d of peer %d (life %d)")
    :format(which, is, of, serial, who, life)
end

return M
