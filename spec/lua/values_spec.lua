-- SPDX-License-Identifier: Apache-2.0
-- Typed values that C writes and reads (native/agent/values.c) against LuaJIT's
-- own encoder and decoder: each reads what the other has written, and C writes
-- the same bytes. Random values follow a seed, which is told when they differ;
-- PERIGEE_SEED repeats one. PERIGEE_SPEC_SCALE=1 takes a million of them.
local buffer = require "string.buffer"
local cases = require "spec.support.cases"
local ffi = require "ffi"
local made = require "spec.support.random_values"
local native = require "perigee.native"

local C = native.C
local random = math.random

local FIRST = 20261126
local ONLY = tonumber(os.getenv("PERIGEE_SEED"))
local ROUNDS = ONLY and 1 or 1e6 * cases.scale
local ROOM = 2 ^ 20

local encoder_t = ffi.typeof("struct perigee_encoder")
local decoder_t = ffi.typeof("struct perigee_decoder")
local value_t = ffi.typeof("struct perigee_value")
local room = ffi.new("uint8_t[?]", ROOM)

if not pcall(function() return ffi.C.spec_malloc end) then
  ffi.cdef [[
    void *spec_malloc(size_t) __asm__("malloc");
    void spec_free(void *) __asm__("free");
  ]]
end

-- ---- Values as text ---------------------------------------------------------

-- Returns a text that is the same for values that are. Cdata are no equal keys,
-- NaN is not equal to itself, and 0 is to -0, so the values are not compared.
local shown

local function shown_table(t)
  local list = {}
  for k, v in pairs(t) do list[#list + 1] = shown(k) .. "=" .. shown(v) end
  table.sort(list)
  return "{" .. table.concat(list, ",") .. "}"
end

function shown(v)
  if type(v) == "table" then return shown_table(v) end
  if type(v) == "string" then return ("%q"):format(v) end
  if type(v) ~= "number" then return tostring(v) end
  if v ~= v then return "nan" end
  return v == 0 and 1 / v < 0 and "-0" or ("%.17g"):format(v)
end

local function shown_list(values)
  local list = {}
  for i = 1, values.n do list[i] = shown(values[i]) end
  return table.concat(list, " ")
end

-- ---- Lua's side -------------------------------------------------------------

local function decode(bytes)
  local input, values = buffer.new():set(bytes), { n = 0 }
  while #input > 0 do
    values.n = values.n + 1
    values[values.n] = input:decode()
  end
  return values
end

-- ---- C's side ---------------------------------------------------------------

local function begin(bytes)
  local d = decoder_t()
  assert(C.perigee_decode_begin(d, bytes, #bytes) == 0, native.detail(nil))
  return d
end

local read

-- Reads a table whose value was given: elements from index `first` on, pairs.
local function read_table(d, first, length, pairs)
  local t = {}
  for i = first, first + length - 1 do t[i] = read(d) end
  for _ = 1, pairs do
    local key = read(d)
    t[key] = read(d)
  end
  return t
end

local readers = {
  [C.PERIGEE_VALUE_NIL] = function() return nil end,
  [C.PERIGEE_VALUE_BOOLEAN] = function(v) return v.boolean end,
  [C.PERIGEE_VALUE_NUMBER] = function(v) return v.number end,
  [C.PERIGEE_VALUE_INT64] = function(v) return v.int64 end,
  [C.PERIGEE_VALUE_UINT64] = function(v) return v.uint64 end,
  [C.PERIGEE_VALUE_STRING] = function(v)
    return ffi.string(v.string, v.length)
  end,
  [C.PERIGEE_VALUE_TABLE] = function(v, d)
    return read_table(d, 1 - v.from_zero, tonumber(v.length),
                      tonumber(v.pairs))
  end,
}

-- Makes a Lua value of the decoder's next one.
function read(d)
  local v = value_t()
  assert(C.perigee_decode(d, v) == 1, native.detail(nil))
  return readers[v.kind](v, d)
end

local function read_all(bytes)
  local d, values = begin(bytes), { n = 0 }
  while d.at < d.length do
    values.n = values.n + 1
    values[values.n] = read(d)
  end
  assert(C.perigee_decode(d, value_t()) == 0)
  assert(d.values == values.n)
  return values
end

local function fresh()
  local e = encoder_t()
  C.perigee_encode_begin(e, room, ROOM)
  return e
end

local function written(e)
  local length = C.perigee_encode_end(e)
  assert(length >= 0, native.detail(nil))
  return ffi.string(room, length)
end

-- Decodes bytes, and encodes each value as it comes.
local function passed_on(bytes)
  local d, e, v = begin(bytes), fresh(), value_t()
  local got = C.perigee_decode(d, v)
  while got == 1 do
    C.perigee_encode_value(e, v)
    got = C.perigee_decode(d, v)
  end
  assert(got == 0, native.detail(nil))
  return written(e)
end

local write

-- How many values of a table go as elements: any number of those that it has
-- from index 1 on, and nils among them.
local function split(t)
  local most = 0
  for k in pairs(t) do
    if type(k) == "number" and k > most and k < 20 and k % 1 == 0 then
      most = k
    end
  end
  return random(0, most)
end

local function write_table(e, t)
  local last, zero = split(t), random(2) == 1
  if not zero and last == 0 and random(2) == 1 then last = -1 end
  local from = zero and 0 or 1
  local rest = {}
  for k in pairs(t) do
    if not (type(k) == "number" and k >= from and k <= last and k % 1 == 0) then
      rest[#rest + 1] = k
    end
  end
  local v = value_t()
  v.kind, v.from_zero = C.PERIGEE_VALUE_TABLE, zero and 1 or 0
  v.length, v.pairs = math.max(last - from + 1, 0), #rest
  C.perigee_encode_value(e, v)
  for i = from, last do write(e, t[i]) end
  for _, k in ipairs(rest) do
    write(e, k)
    write(e, t[k])
  end
end

-- Encodes a Lua value by the functions of C.
function write(e, v)
  local kind = type(v)
  if kind == "table" then return write_table(e, v) end
  if kind == "nil" then return C.perigee_encode_nil(e) end
  if kind == "boolean" then return C.perigee_encode_boolean(e, v) end
  if kind == "number" then return C.perigee_encode_number(e, v) end
  if kind == "string" then return C.perigee_encode_string(e, v, #v) end
  if ffi.istype("int64_t", v) then return C.perigee_encode_int64(e, v) end
  return C.perigee_encode_uint64(e, v)
end

local function write_all(values)
  local e = fresh()
  for i = 1, values.n do write(e, values[i]) end
  assert(e.values == values.n and e.owed == 0)
  return written(e)
end

-- ---- Both -------------------------------------------------------------------

-- Some builds of LuaJIT write numbers that are integers as such.
local SAME_BYTES = buffer.encode(1):byte() == 7

local function compare(sent)
  local bytes, text = made.encode(sent), shown_list(sent)
  assert.equal(text, shown_list(read_all(bytes)))
  local again = passed_on(bytes)
  if SAME_BYTES then assert.equal(bytes, again) end
  assert.equal(text, shown_list(decode(again)))
  assert.equal(text, shown_list(decode(write_all(sent))))
end

-- Calls f for each seed of this run, and tells the seed with which it fails.
local function each_seed(f)
  for i = 1, ROUNDS do
    local seed = ONLY or FIRST + i
    math.randomseed(seed)
    local fine, why = pcall(f)
    if not fine then
      error(("PERIGEE_SEED=%d: %s"):format(seed, tostring(why.message or why)))
    end
  end
end

-- Walks over a copy of the exact length in memory of malloc's, so that a
-- sanitizer notices an access behind it; without a scan before, the way of data
-- that came with an event. Returns how it ends, and how many values came.
local function walk(bytes, scanned)
  local copy = ffi.cast("uint8_t *", ffi.C.spec_malloc(#bytes + 1)) + 1
  ffi.copy(copy, bytes, #bytes)
  local d, v, items = decoder_t(), value_t(), 0
  local status = 0
  if scanned then
    status = C.perigee_decode_begin(d, copy, #bytes)
  else
    d.data, d.length = copy, #bytes
  end
  if status == 0 then
    repeat
      status = C.perigee_decode(d, v)
      items = items + status
      if status == 1 and v.kind == C.PERIGEE_VALUE_STRING then
        assert(#ffi.string(v.string, v.length) <= #bytes)
      end
    until status ~= 1 or items > #bytes
  end
  ffi.C.spec_free(copy - 1)
  return status, d.values
end

local function check_damaged(bytes)
  local count = C.perigee_typed_scan(bytes, #bytes)
  local status, values = walk(bytes, true)
  assert.equal(math.min(count, 0), status)
  if count >= 0 then assert.equal(count, values) end
  status = walk(bytes, false)
  assert.is_true(status == 0 or status == C.PERIGEE_PROTOCOL)
  if count >= 0 then assert.equal(0, status) end
end

describe("typed values in C", function()
  it("are those of Lua, both ways", function()
    each_seed(function() compare(made.values()) end)
  end)

  it("are so at the limits", function()
    local many = { n = 250 }
    for i = 1, 250 do many[i] = i % 3 == 0 and { i } or i end
    compare(many)
    compare { n = 1, made.nested(64) }
    compare { n = 3, ("x"):rep(70000), "\0", ("\0\255"):rep(5000) }
    compare { n = 4, 2 ^ 63, -2 ^ 63, 0x7fffffffffffffffLL,
              0xffffffffffffffffULL }
    local long = {}
    for i = 1, 9000 do long[i] = i % 7 == 0 and tostring(i) or i end
    compare { n = 1, long }
    local wide = {}
    for i = 1, 300 do wide["key " .. i] = { i } end
    compare { n = 1, wide }
  end)

  it("that are cut off end in an error, and are never read behind", function()
    math.randomseed(FIRST)
    for _ = 1, 100 do
      local bytes = made.encode(made.values())
      for length = 0, #bytes, math.ceil(#bytes / 200 + 0.01) do
        check_damaged(bytes:sub(1, length))
      end
    end
  end)

  it("that are damaged end in an error, or are others", function()
    each_seed(function()
      check_damaged(made.damage(made.encode(made.values())))
      check_damaged(made.noise())
    end)
  end)
end)
