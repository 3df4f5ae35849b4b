-- SPDX-License-Identifier: Apache-2.0
-- The scanner of typed payloads against LuaJIT's own encoder and decoder. It
-- accepts everything that the encoder makes of allowed values. The decoder
-- takes everything that it accepts without harm, in memory bounded by the
-- number of bytes.
local buffer = require "string.buffer"
local ffi = require "ffi"
local native = require "perigee.native"

local ROUNDS = 1500
local BYTES_PER_BYTE, SLACK = 8, 65536

local random = math.random

local function scan(bytes)
  return native.C.perigee_typed_scan(bytes, #bytes)
end

-- Encodes values one after another, as arguments are sent.
local function encode(values)
  local out = buffer.new()
  for i = 1, values.n do out:encode(values[i]) end
  return out:tostring()
end

local function decode(bytes, count)
  local input = buffer.new():set(bytes)
  for _ = 1, count do input:decode() end
  return #input
end

-- The cost of decoding to the end, with the collector stopped.
local function cost(bytes, count)
  collectgarbage()
  collectgarbage("stop")
  local before = collectgarbage("count")
  local fine, left = pcall(decode, bytes, count)
  local spent = (collectgarbage("count") - before) * 1024
  collectgarbage("restart")
  return spent, fine, left
end

-- ---- Random values ----------------------------------------------------------

local lengths = { 0, 1, 2, 7, 190, 191, 192, 193, 500, 8127, 8128, 9000 }
local numbers = { 0, -0.0, 1, -1, 1.5, 1 / 0, -1 / 0, 0 / 0, 2 ^ 31, -2 ^ 31,
  2 ^ 53, 1e-300 }

local function text()
  local length = random(8) == 1 and lengths[random(#lengths)] or random(0, 9)
  local bytes = {}
  for i = 1, length do bytes[i] = string.char(random(0, 255)) end
  return table.concat(bytes)
end

local function key()
  local kind = random(6)
  if kind == 1 then return random() end
  if kind == 2 then return random(-3, 12) end
  if kind == 3 then return random(2) == 1 end
  if kind == 4 then return ffi.new("int64_t", random(99)) end
  return text()
end

local value

local function list(depth)
  local made = {}
  for i = 1, random(0, 5) do
    if random(5) > 1 then made[i] = value(depth - 1) end
  end
  if random(6) == 1 then made[0] = value(depth - 1) end
  return made
end

local function map(depth)
  local made = random(2) == 1 and list(depth) or {}
  for _ = 1, random(0, 5) do made[key()] = value(depth - 1) end
  return made
end

local simple = {
  function() return nil end,
  function() return true end,
  function() return false end,
  function() return numbers[random(#numbers)] end,
  function() return random(-1000, 1000) end,
  function() return random() end,
  function() return ffi.new("int64_t", random(-99, 99)) end,
  function() return ffi.new("uint64_t", random(99)) end,
  text, text,
}

function value(depth)
  if depth > 0 and random(3) == 1 then
    return random(2) == 1 and list(depth) or map(depth)
  end
  return simple[random(#simple)]()
end

local function values()
  local made = { n = random(0, 4) }
  for i = 1, made.n do made[i] = value(random(0, 4)) end
  return made
end

-- ---- Random damage ----------------------------------------------------------

local function byte(largest)
  return string.char(random(0, largest))
end

local function replace(bytes, at, piece)
  return bytes:sub(1, at - 1) .. piece .. bytes:sub(at + #piece)
end

local damages = {
  function(bytes, at) return replace(bytes, at, byte(255)) end,
  function(bytes, at) return replace(bytes, at, byte(18)) end,
  function(bytes, at) return replace(bytes, at, "\255\255\255\255\127") end,
  function(bytes, at) return bytes:sub(1, at - 1) .. bytes:sub(at + 1) end,
  function(bytes, at)
    return bytes:sub(1, at) .. bytes:sub(random(at), -1)
  end,
}

local function damage(bytes)
  for _ = 1, random(3) do
    if #bytes == 0 then break end
    bytes = damages[random(#damages)](bytes, random(#bytes))
  end
  return bytes
end

-- The only error it cannot find without remembering every key.
local function is_duplicate(message)
  return message:find("duplicate table key", 1, true) ~= nil
end

-- Decodes what the scanner took for `count` values.
local function check(bytes, count)
  local spent, fine, left = cost(bytes, count)
  assert.is_true(spent <= BYTES_PER_BYTE * #bytes + SLACK)
  if fine then
    assert.are.equal(0, left)
  else
    assert.is_true(is_duplicate(left), left)
  end
end

local function nested(depth)
  local made = {}
  for _ = 2, depth do made = { made } end
  return made
end

describe("the scanner of typed payloads", function()
  before_each(function() math.randomseed(20220320) end)

  it("accepts whatever is encoded, and counts it", function()
    for _ = 1, ROUNDS do
      local sent = values()
      assert.are.equal(sent.n, scan(encode(sent)))
    end
  end)

  it("accepts of cut payloads only whole values", function()
    for _ = 1, 60 do
      local bytes = encode(values())
      for length = 0, #bytes - 1, math.ceil(#bytes / 200) do
        local cut = bytes:sub(1, length)
        local count = scan(cut)
        if count >= 0 then assert.are.equal(0, decode(cut, count)) end
      end
    end
  end)

  it("accepts of damaged payloads only what decodes without harm", function()
    local accepted = 0
    for _ = 1, ROUNDS do
      local bytes = damage(encode(values()))
      local count = scan(bytes)
      if count >= 0 then
        accepted = accepted + 1
        check(bytes, count)
      end
    end
    assert.is_true(accepted > ROUNDS / 20)
  end)

  it("accepts of random bytes only what decodes without harm", function()
    for _ = 1, ROUNDS do
      local bytes = {}
      for i = 1, random(20) do
        bytes[i] = byte(random(2) == 1 and 34 or 255)
      end
      bytes = table.concat(bytes)
      local count = scan(bytes)
      if count >= 0 then check(bytes, count) end
    end
  end)

  it("refuses six bytes that would take gigabytes", function()
    assert.are.equal(native.C.PERIGEE_PROTOCOL,
      scan "\12\255\255\255\255\11")
  end)

  it("refuses what the encoder knows and Perigee does not send", function()
    local complex = buffer.encode(ffi.new("complex", 1, 2))
    local words = buffer.new({ dict = { "word" } }):encode { word = 1 }
    assert.are.equal(native.C.PERIGEE_PROTOCOL, scan(complex))
    assert.are.equal(native.C.PERIGEE_PROTOCOL, scan(words:tostring()))
  end)

  it("ends at 64 tables inside one another", function()
    assert.are.equal(1, scan(buffer.encode(nested(64))))
    assert.are.equal(native.C.PERIGEE_PROTOCOL,
      scan(buffer.encode(nested(65))))
  end)
end)
