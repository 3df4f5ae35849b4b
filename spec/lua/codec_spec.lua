-- SPDX-License-Identifier: Apache-2.0
local codec = require "perigee.typed.codec"
local buffer = require "string.buffer"
local process = require "spec.support.process"

local bytes = buffer.new() -- outlives the decoding of its values

local function travel(...)
  local out = codec.acquire()
  assert(codec.pack(out, ...) == nil)
  bytes:reset():put(out:tostring())
  codec.release(out)
  local pointer, length = bytes:ref()
  return codec.unpack(pointer, length)
end

local function count(...) return select("#", ...), ... end

describe("typed values", function()
  it("keep their number and their nils", function()
    assert.same({ 0 }, { count(travel()) })
    assert.same({ 1 }, { count(travel(nil)) })
    assert.same({ 3, nil, 2, nil }, { count(travel(nil, 2, nil)) })
    for n = 0, 40 do
      local values = {}
      for i = 1, n do values[i] = i end
      assert.same({ n, unpack(values) },
                  { count(travel(unpack(values, 1, n))) })
    end
  end)

  it("are what they were", function()
    local long, deep = ("x"):rep(100000), {}
    local at = deep
    for _ = 1, 63 do
      at[1] = {}
      at = at[1]
    end
    for _, value in ipairs { 0, -0.5, 1e300, math.huge, "", long, true, false,
                             { 1, 2, x = { y = "z" } }, deep } do
      assert.same(value, (travel(value)))
    end
    assert.equal(-5LL, (travel(-5LL)))
    assert.equal(18446744073709551615ULL, (travel(18446744073709551615ULL)))
    local nan = travel(0 / 0)
    assert.is_true(nan ~= nan)
  end)

  it("that cannot travel are named with their place", function()
    local ffi = require "ffi"
    local cycle, deep = {}, {}
    cycle.self = cycle
    for _ = 1, 70 do deep = { deep } end
    local bad = { print, coroutine.create(print), io.stdout, cycle, deep,
                  ffi.new("int[2]"), ffi.cast("void *", 1), { print },
                  { ffi.cast("void *", 0) }, ffi.new("complex", 1, 2) }
    for i, value in ipairs(bad) do
      for _, place in ipairs { 1, 2, 3, 5 } do
        local values = { 1, 1, 1, 1, 1 }
        values[place] = value
        local out = codec.acquire()
        local why, at = codec.pack(out, unpack(values))
        assert.equal("string", type(why), i)
        assert.equal(place, at)
      end
    end
  end)

  -- An error raised in compiled code spoils callers' frames in about one run of
  -- four if LuaJIT compiles all code at once. These are therefore children.
  it("that cannot travel spoil nothing in compiled code", function()
    local function refuse(child)
      local tables = require "perigee.typed.codec"
      jit.opt.start("hotloop=1")
      local deep, fit = {}, { 1, { 2, x = "y" } }
      for _ = 1, 100 do deep = { deep } end
      for _ = 1, 300 do
        for _, value in ipairs { deep } do
          local out = tables.acquire()
          assert(tables.pack(out, value))
          tables.release(out)
        end
        local out = tables.acquire()
        assert(tables.pack(out, fit, 7, "x") == nil)
        tables.release(out)
      end
      child.say("unspoilt")
    end
    for _ = 1, 20 do process.start(refuse):expect("unspoilt") end
  end)

  it("that cannot travel are refused amid another encoding", function()
    local seen
    local function finalize()
      local out = codec.acquire()
      seen = { codec.pack(out, { print }), codec.pack(out, { 1 }) }
      codec.release(out)
    end
    local out, value = codec.acquire(), { 1, 2, { 3 } }
    collectgarbage "stop"
    getmetatable(newproxy(true)).__gc = finalize
    local before = collectgarbage("setstepmul", 1e6)
    collectgarbage "restart"
    local encodings = 0
    while not seen and encodings < 1e6 do
      assert(codec.pack(out, value) == nil)
      encodings = encodings + 1
    end
    collectgarbage("setstepmul", before)
    codec.release(out)
    assert(seen, "no collection within a million encodings")
    assert.matches("cannot travel", seen[1])
    assert.is_nil(seen[2])
  end)

  -- Payloads: texts, so that compiled code expects a text, and then a table.
  local function surprise()
    local text, list = buffer.encode(("x"):rep(600)), {}
    for i = 1, 2000 do list[i] = { i } end
    return text, buffer.encode(list)
  end

  it("are decoded once, whatever came before", function()
    local text, list = surprise()
    local function unpacked(payload)
      local pointer, length = bytes:reset():put(payload):ref()
      return (codec.unpack(pointer, length))
    end
    for _ = 1, 300 do unpacked(text) end
    for _ = 1, 3 do
      collectgarbage()
      collectgarbage "stop"
      local before = collectgarbage "count"
      unpacked(list)
      local spent = (collectgarbage "count" - before) * 1024
      collectgarbage "restart"
      assert.is_true(spent < 8 * #list + 65536, spent)
    end
  end)

  it("do not pile up where a peer sends many of them", function()
    local list = select(2, surprise())
    local pointer, length = bytes:reset():put(list):ref()
    for _ = 1, 1000 do codec.unpack(pointer, length) end
    assert.is_true(collectgarbage "count" < 2 ^ 14)
  end)

  it("of a slice's message name its place or are refused", function()
    local out = buffer.new():encode(nil):encode("key"):encode(1)
    local pointer, length = out:ref()
    assert.same({ nil, "key", n = 2, place = 1 },
                codec.unpack_slice(pointer, length))
    for _, place in ipairs { 0, 3, 1.5, "1", true } do
      out:reset():encode(nil):encode("key"):encode(place)
      pointer, length = out:ref()
      assert.is_nil(codec.unpack_slice(pointer, length))
    end
    assert.is_nil(codec.unpack_slice(pointer, 0))
    assert.is_nil(codec.unpack_slice(pointer, 3))
  end)
end)
