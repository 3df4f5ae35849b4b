-- SPDX-License-Identifier: Apache-2.0
-- The scanner of typed payloads against LuaJIT's own encoder and decoder. It
-- accepts everything that the encoder makes of allowed values. The decoder
-- takes everything that it accepts without harm, in memory bounded by the
-- number of bytes.
local buffer = require "string.buffer"
local ffi = require "ffi"
local native = require "perigee.native"
local made = require "spec.support.random_values"

local ROUNDS = 1500
local BYTES_PER_BYTE, SLACK = 8, 65536

local encode, values, nested = made.encode, made.values, made.nested

local function scan(bytes)
  return native.C.perigee_typed_scan(bytes, #bytes)
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
      local bytes = made.damage(encode(values()))
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
      local bytes = made.noise()
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
