-- SPDX-License-Identifier: Apache-2.0
--- Typed values on the wire are string.buffer data, one value after another up
-- to the end of the data. A slice among them travels as a nil in its place, and
-- its place (counted from 1) follows as one more value after the last. An error
-- of Perigee's travels as a table with a mark (errors.lua).
--
-- The core has copied and scanned incoming data (PERIGEE_TYPED) before Lua
-- decodes it, so the memory and the time that this takes are bounded by the
-- data's length (native/base/typed.h). Decoding may still raise if a table
-- gives one key twice. Large data is decoded in portions (portions.lua).
local collector = require "perigee.runtime.collector"
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"
local slices = require "perigee.memory.slice"

local buffer = require "string.buffer"
local ffi = require "ffi"

local C = native.C
local PROTOCOL = C.PERIGEE_PROTOCOL
local stands, note = slices.stands, collector.note
local is_slice, beside = slices.is_slice, slices.beside
local is_error, MARK, min = errors.is_error, errors.MARK, math.min
local int64_t, uint64_t = ffi.typeof("int64_t"), ffi.typeof("uint64_t")

local M = {}

local KEEP, MOST = 2 ^ 16, 256          -- bytes of a buffer, and buffers, kept
local VALUES = 250                      -- at most; a slice's place is one value
local pool, pooled = {}, 0

--- An empty buffer; release gives it back once the core is done with it.
function M.acquire()
  if pooled == 0 then return buffer.new() end
  local out = pool[pooled]
  pooled = pooled - 1
  return out
end

function M.release(out)
  if #out > KEEP then out:free() else out:reset() end
  if pooled == MOST then return end
  pooled = pooled + 1
  pool[pooled] = out
end

-- Runs the encoder in an uncompiled function, in a coroutine of its own. When a
-- function that compiled code calls raises, LuaJIT puts the message where the
-- stack last ended, which may be in a caller's frame by then. The coroutine is
-- there because compiled code gives up at a call of an uncompiled function, but
-- can end at a resume and go on after it.
local function attempts(out, value)
  while true do
    local fine, why = pcall(out.encode, out, value)
    out, value = nil, nil -- luacheck: ignore 311 (for the collector)
    out, value = coroutine.yield(fine, why)
  end
end
jit.off(attempts)

local encoder = coroutine.create(attempts)

-- Appends value. Returns true, or false and the encoder's message.
local function try(out, value)
  local alone, fine, why = coroutine.resume(encoder, out, value)
  errors.pass(alone and why or fine)
  if alone then return fine, why end
  -- A finalizer runs this while the encoder is at work on another value.
  return coroutine.wrap(attempts)(out, value)
end

local function encode_text(out, value)
  if try(out, value) then return nil end
  return ("a string of %d bytes, for which there is no room"):format(#value)
end

local function encode_table(out, value)
  if is_error(value) then value = errors.packed(value) end
  local before = #out
  local fine, why = try(out, value)
  local what = not fine and slices.named(value)
  if not fine and what ~= "a table" then
    return what
  elseif not fine then
    return "a table with something in it that cannot travel ("
      .. tostring(why):gsub("^.-:%d+: ", "") .. ")"
  end
  local start = out:ref()
  if C.perigee_typed_scan(start + before, #out - before) == PROTOCOL then
    return "a table that cannot travel: a pointer or a complex number is in "
      .. "it, or it is more than 64 tables deep"
  end
end

-- Appends a value that is not nil, a boolean, a number or a string.
local function encode_other(out, value)
  local kind = type(value)
  if kind == "table" then return encode_table(out, value) end
  if kind == "cdata" then
    if ffi.istype(int64_t, value) or ffi.istype(uint64_t, value) then
      out:encode(value)
      return nil
    end
    return "a cdata other than int64 and uint64, which cannot travel"
  end
  return "a " .. kind .. ", which cannot travel"
end

-- Appends value. Returns what is wrong with it, or nil.
local function encode(out, value)
  local kind = type(value)
  if kind == "string" and #value > KEEP then return encode_text(out, value) end
  if kind == "number" or kind == "string" or kind == "boolean"
    or kind == "nil" then
    out:encode(value)
    return nil
  end
  return encode_other(out, value)
end

local function pack_list(out, n, ...)
  local slice, place
  for i = 1, n do
    local value = select(i, ...)
    local why
    if stands(value) then
      if slice then return "a second slice (one can travel)", i end
      why = not is_slice(value) and beside(value)
      if why then return why, i end
      slice, place = value, i
      out:encode(nil)
    else
      why = encode(out, value)
    end
    if why then return why, i end
  end
  if n + (slice and 1 or 0) > VALUES then
    return ("one too many: %d values travel at most, with a slice among them "
      .. "%d"):format(VALUES, VALUES - 1), n
  end
  if slice then out:encode(place) end
  return nil, slice
end

--- Appends values to out. Returns nil and the slice (or list of slices) among
-- them, if there is one; or a text on what is wrong with a value, and that
-- value's place.
function M.pack(out, ...)
  local n = select("#", ...)
  if n == 0 then return nil end
  if n > 3 then return pack_list(out, n, ...) end
  local a, b, c = ...
  if stands(a) or stands(b) or stands(c) then
    return pack_list(out, n, ...)
  end
  local why = encode(out, a)
  if why then return why, 1 end
  if n == 1 then return nil end
  why = encode(out, b)
  if why then return why, 2 end
  if n == 2 then return nil end
  why = encode(out, c)
  if why then return why, 3 end
end

local inbox = buffer.new()
local nothing = ffi.new("double[1]", -0.0)

-- Never compiled (see attempts), because the decoder raises on a table that
-- gives one key twice.
local TABLE, TABLE_END = 8, 14          -- tags (native/base/typed.c)

local function decode_table()
  local value = inbox:decode()
  return value[MARK] ~= nil and errors.unpacked(value) or value
end
jit.off(decode_table)

--- Makes errors of those of n values that stand for errors.
function M.revive(values, n)
  for i = 1, min(n, VALUES) do
    local value = values[i]
    if type(value) == "table" and value[MARK] ~= nil then
      values[i] = errors.unpacked(value)
    end
  end
end

-- Decodes the next value. LuaJIT's compiled code reads a decoded number only
-- where it is used, and the next decoding may have overwritten it by then
-- (`p:f(1) < p:f(2)` compared 2 with 2). A sum is computed at once and kept, so
-- -0 is added, which changes no number. The -0 comes from memory, so that the
-- compiler cannot drop the addition.
local function decode()
  local tag = inbox:ref()[0]
  if tag >= TABLE and tag < TABLE_END then return decode_table() end
  local value = inbox:decode()
  if type(value) == "number" then return value + nothing[0] end
  return value
end

local function decode_small()
  local values, n = {}, 0
  while #inbox > 0 do
    if n == VALUES then error("more than 250 values came", 0) end
    n = n + 1
    values[n] = decode()
  end
  return values, n
end

-- Compiled code guesses the type of the next value. A wrong guess makes it
-- throw the decoded value away and decode it again, which would take twice the
-- memory that the scanner has counted. So this is not compiled.
local function decode_large()
  local values, n = {}, 0
  while #inbox > 0 do
    n = n + 1
    values[n] = inbox:decode()
  end
  M.revive(values, n)
  return values, n
end
jit.off(decode_large)

local LARGE = 512                       -- bytes

local function decode_all(pointer, length)
  note(length)
  inbox:set(pointer, length)
  if length > LARGE then return decode_large() end
  return decode_small()
end

--- Returns the values in length bytes at pointer, which the core goes on
-- owning.
function M.unpack(pointer, length)
  if length > LARGE then
    local values, n = decode_all(pointer, length)
    return unpack(values, 1, n)
  end
  note(length)
  inbox:set(pointer, length)
  if length == 0 then return end
  local a = decode()
  if #inbox == 0 then return a end
  local b = decode()
  if #inbox == 0 then return a, b end
  local c = decode()
  if #inbox == 0 then return a, b, c end
  local d = decode()
  if #inbox == 0 then return a, b, c, d end
  local values, n = decode_small()
  return a, b, c, d, unpack(values, 1, n)
end

--- The last of n values that came with a slice is the slice's place. Removes it
-- from values, and sets the fields place and n (the number of values left).
-- Returns values, or nil if the last one is no place.
function M.placed(values, n)
  local place = values[n]
  if n == 0 or n > VALUES then return nil end
  values[n] = nil
  n = n - 1
  if type(place) ~= "number" or place % 1 ~= 0 or place < 1 or place > n then
    return nil
  end
  values.n, values.place = n, place
  return values
end

--- Decodes data that came with a slice. Returns the values as M.placed does, or
-- nil if they name no place for the slice. Raises nothing but an interrupt.
function M.unpack_slice(pointer, length)
  local fine, values, n = pcall(decode_all, pointer, tonumber(length))
  if not fine then
    errors.pass(values)
    return nil
  end
  return M.placed(values, n)
end

return M
