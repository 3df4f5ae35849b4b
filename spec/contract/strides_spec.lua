-- SPDX-License-Identifier: Apache-2.0
-- Strided transfers, batches, prepared transfers: every shape is compared with
-- a plain loop over Lua strings, and bytes between blocks stay untouched.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

local LENGTH = 2 ^ 21

local function owner(child, perigee_, ffi_)
  local engine = child.cases.engine()
  child.cases.alloc(engine, 2 ^ 21, { name = "shared", access = "rw" })
  local own = ffi_.new("uint8_t[?]", 2 ^ 21)
  engine:register(own, 2 ^ 21, { name = "own", access = "rw" })
  child.cases.alloc(engine, 2 ^ 21, { name = "readonly", access = "r" })
  local listener = assert(engine:listen(child.cases.address()))
  child.say("ready")
  assert(listener:accept(10))
  perigee_.run()
  return own
end

-- { offset, block, count, stride }
local SHAPES = {
  { 0, 64, 1, 64 }, { 3, 1, 1, 1 }, { 0, 64, 1000, 256 }, { 5, 64, 100, 4096 },
  { 1, 1, 1000, 3 }, { 7, 100, 10, 100 }, { 9, 4096, 100, 8192 },
  { 11, 333, 300, 777 }, { 0, 0, 1, 0 }, { 0, 65537, 7, 100003 },
}

describe("a strided transfer", function()
  local engine, session, here

  setup(function()
    process.start(owner):expect("ready")
    engine, session = cases.connect()
    here = cases.alloc(engine, 3 * LENGTH)
  end)
  teardown(cases.cleanup)

  local function sliced(region, shape, base)
    return region:slice(shape[1] + (base or 0), shape[2],
                        { count = shape[3], stride = shape[4] })
  end

  -- The bytes of a text that a shape covers.
  local function gathered(text, shape)
    local parts = {}
    for i = 0, shape[3] - 1 do
      local at = shape[1] + i * shape[4]
      parts[i + 1] = text:sub(at + 1, at + shape[2])
    end
    return table.concat(parts)
  end

  -- A text with the bytes of another in the places of a shape.
  local function scattered(text, shape, bytes)
    local parts, last = {}, 0
    for i = 0, shape[3] - 1 do
      local at = shape[1] + i * shape[4]
      parts[#parts + 1] = text:sub(last + 1, at)
      parts[#parts + 1] = bytes:sub(i * shape[2] + 1, (i + 1) * shape[2])
      last = at + shape[2]
    end
    parts[#parts + 1] = text:sub(last + 1)
    return table.concat(parts)
  end

  local function put(region, text)
    local out = here:slice(2 * LENGTH, #text)
    out:write(text)
    assert(session:write { from = out, to = region:slice(0, #text) }:wait(5))
  end

  local function get(region, length)
    local back = here:slice(2 * LENGTH, length)
    assert(session:read { from = region:slice(0, length), to = back }:wait(5))
    return back:string()
  end

  for _, name in ipairs { "shared", "own" } do
    it("gathers what its shape says: " .. name, function()
      local remote = assert(session:region(name))
      local text = cases.bytes(LENGTH, 3)
      put(remote, text)
      for _, shape in ipairs(SHAPES) do
        local total = shape[2] * shape[3]
        local to = here:slice(100, total)
        assert.equal(total, sliced(remote, shape).length)
        here:slice(0, 100 + total + 100):fill(0xee)
        assert(session:read { from = sliced(remote, shape), to = to }:wait(5))
        assert.is_true(to:string() == gathered(text, shape))
        assert.equal(("\xee"):rep(100), here:slice(0, 100):string())
        assert.equal(("\xee"):rep(100), here:slice(100 + total, 100):string())
      end
    end)

    it("scatters, and touches nothing in between: " .. name, function()
      local remote = assert(session:region(name))
      for seed, shape in ipairs(SHAPES) do
        local text = cases.bytes(LENGTH, seed)
        put(remote, text)
        local bytes = cases.bytes(shape[2] * shape[3], seed + 50)
        local from = here:slice(0, #bytes)
        from:write(bytes)
        assert(session:write { from = from,
                               to = sliced(remote, shape) }:wait(5))
        assert.is_true(get(remote, LENGTH) == scattered(text, shape, bytes))
      end
    end)
  end

  it("may have another shape on each side", function()
    local remote = assert(session:region("shared"))
    local left, right = { 0, 64, 30, 100 }, { 7, 32, 60, 40 }
    local mine, text = cases.bytes(LENGTH, 1), cases.bytes(LENGTH, 2)
    here:slice(0, LENGTH):write(mine)
    put(remote, text)
    assert(session:write { from = sliced(here, left),
                           to = sliced(remote, right) }:wait(5))
    assert.is_true(get(remote, LENGTH)
      == scattered(text, right, gathered(mine, left)))
    assert.equal(gathered(mine, left), sliced(here, left):string())
  end)

  it("comes in batches: one operation, one end", function()
    local remote = assert(session:region("shared"))
    local text = cases.bytes(LENGTH, 9)
    put(remote, text)
    local list, want = {}, {}
    for i = 1, 500 do
      local shape = { i * 17, 16, 1 + i % 4, 64 }
      list[i] = { from = sliced(remote, shape),
                  to = here:slice(i * 64, shape[2] * shape[3]) }
      want[i] = gathered(text, shape)
    end
    local future = session:read(list)
    assert.is_true((future:wait(5)))
    for i = 1, 500 do assert.equal(want[i], list[i].to:string()) end
    assert.has_error(function() session:read {} end)
  end)

  it("in a batch with a bad part fails, and says so once", function()
    local remote = assert(session:region("shared"))
    local readonly = assert(session:region("readonly"))
    local list = {}
    for i = 1, 10 do
      local to = i == 7 and readonly or remote
      list[i] = { from = here:slice(0, 64), to = to:slice(i * 64, 64) }
    end
    local done, err = session:write(list):wait(5)
    assert.is_nil(done)
    assert.equal("denied", err.kind)
    assert.equal(("\0"):rep(64), get(readonly, 64))
  end)

  it("is fine many at once, of every kind", function()
    local remote = assert(session:region("shared"))
    local futures = {}
    here:slice(0, LENGTH):write(cases.bytes(LENGTH, 4))
    put(remote, here:slice(0, LENGTH):string())
    for i = 1, 300 do
      local at = i * 4096
      futures[i] = session:read { from = remote:slice(at, 4000),
                                  to = here:slice(LENGTH + at, 4000) }
    end
    assert(perigee.wait_all(futures, 5))
    for i = 1, 300 do
      local at = i * 4096
      assert.is_true(here:slice(LENGTH + at, 4000):string()
        == here:slice(at, 4000):string())
    end
  end)
end)

describe("a strided slice without bytes", function()
  after_each(cases.cleanup)

  it("has one block, however many were asked for", function()
    local region = cases.alloc(cases.engine(), 64)
    for _, count in ipairs { 1, 5, 2 ^ 52 + 2 } do
      local slice = region:slice(8, 0, { count = count, stride = 100 })
      assert.same({ 0, 1, 0 }, { slice.length, slice.count, slice.stride })
      assert.equal(0, slice:slice().length)
      assert.equal("", slice:string())
    end
  end)

  it("is sent and written like any other", function()
    local engine, other = cases.engine(), cases.engine()
    local listener = assert(other:listen(cases.address()))
    local near = assert(engine:connect(cases.address(), { timeout = 5 }))
    local far = assert(listener:accept(5))
    local empty = { count = 2 ^ 52 + 2, stride = 100 }
    local here = cases.alloc(engine, 64):slice(0, 0, empty)
    cases.alloc(other, 64, { name = "there", access = "rw" })
    local there = assert(near:region "there"):slice(0, 0, empty)
    local future = far:recv(cases.alloc(other, 64):slice())
    assert(near:send(here):wait(5))
    assert.equal(0, (future:wait(5)))
    assert(near:write { from = here, to = there }:wait(5))
  end)
end)

describe("a prepared transfer", function()
  local engine, session, here

  before_each(function()
    process.start(owner):expect("ready")
    engine, session = cases.connect()
    here = cases.alloc(engine, LENGTH)
  end)
  after_each(cases.cleanup)

  for _, name in ipairs { "shared", "own" } do
    it("is posted again and again with what stands there: " .. name, function()
      local remote = assert(session:region(name))
      local put = session:prepare_write { from = here:slice(0, 8),
                                          to = remote:slice(80, 8) }
      local get = session:prepare_read { from = remote:slice(80, 8),
                                         to = here:slice(8, 8) }
      for i = 1, 2000 do
        here:slice(0, 8):write(("%08d"):format(i))
        assert.is_true((put:post():wait(5)))
        assert.is_true((get:post():wait(5)))
        assert.equal(("%08d"):format(i), here:slice(8, 8):string())
      end
    end)
  end

  it("may be strided, and a batch", function()
    local remote = assert(session:region("shared"))
    local shape = { count = 100, stride = 512 }
    local put = session:prepare_write {
      { from = here:slice(0, 6400), to = remote:slice(0, 64, shape) },
      { from = here:slice(8192, 100), to = remote:slice(2 ^ 20, 100) },
    }
    local get = session:prepare_read {
      from = remote:slice(0, 64, shape), to = here:slice(2 ^ 20, 6400) }
    for i = 1, 20 do
      here:slice(0, 6400):write(cases.bytes(6400, i))
      assert(put:post():wait(5))
      assert(get:post():wait(5))
      assert.is_true(here:slice(2 ^ 20, 6400):string() == cases.bytes(6400, i))
    end
  end)

  it("is checked when it is prepared", function()
    local remote = assert(session:region("shared"))
    assert.has_error(function()
      session:prepare_write { from = here:slice(0, 8),
                              to = remote:slice(0, 9) }
    end)
    assert.has_error(function() session:prepare_write {} end)
    assert.has_error(function() session:prepare_write(7) end)
  end)

  it("is posted once at a time, which is blamed on whoever posts it twice",
     function()
    -- The owner answers, after a while.
    local remote = assert(session:region("own"))
    local put = session:prepare_write { from = here:slice(0, 8),
                                        to = remote:slice(0, 8) }
    local post = put:post()
    local fine, message = pcall(function() put:post() end)
    assert.is_false(fine)
    assert.matches("strides_spec.lua:%d+: .*still posted", message)
    assert(post:wait(5))
    post = put:post()
    put:close() -- which frees it when the post has ended, not before
    assert.matches("still posted", select(2, pcall(put.post, put)))
    post:wait(5)
    assert.equal("closed", select(2, put:post():wait(5)).kind)
  end)

  it("ends in an error once its session is over", function()
    local remote = assert(session:region("shared"))
    local put = session:prepare_write { from = here:slice(0, 8),
                                        to = remote:slice(0, 8) }
    assert(put:post():wait(5))
    session:close()
    local fine, done, err = pcall(function() return put:post():wait(5) end)
    assert.is_true(fine)
    assert.is_nil(done)
    assert.equal("closed", err.kind)
  end)

  it("refuses what was not granted", function()
    local remote = assert(session:region("readonly"))
    local fine, done, err = pcall(function()
      local put, why = session:prepare_write { from = here:slice(0, 8),
                                               to = remote:slice(0, 8) }
      if not put then return nil, why end
      return put:post():wait(5)
    end)
    assert.is_true(fine)
    assert.is_nil(done)
    assert.equal("denied", err.kind)
    assert.equal(0, ffi.cast("int", here:slice(0, 1):string():byte()))
  end)
end)

describe("a part of a strided slice that ends inside a block", function()
  local near, far, here, there, remote

  before_each(function()
    local engine, other = cases.engine(), cases.engine()
    local listener = assert(other:listen(cases.address()))
    near = assert(engine:connect(cases.address(), { timeout = 5 }))
    far = assert(listener:accept(5))
    here = cases.alloc(engine, 4096)
    there = cases.alloc(other, 4096, { name = "there", access = "rw" })
    remote = assert(near:region "there")
    here:slice():write(cases.bytes(4096, 1))
    there:slice():fill(0xee)
  end)
  after_each(cases.cleanup)

  -- 100 bytes: a block of 64, and 36 of the next one.
  local function part_of(region)
    return region:slice(0, 64, { count = 4, stride = 256 }):slice(0, 100)
  end

  local function here_bytes()
    local text = here:slice():string()
    return text:sub(1, 64) .. text:sub(257, 292)
  end

  local function assert_scattered(bytes)
    local rest = ("\xee"):rep(4096)
    assert.equal(bytes:sub(1, 64) .. rest:sub(65, 256) .. bytes:sub(65)
      .. rest:sub(293), there:slice():string())
  end

  it("is sent with its bytes only", function()
    local future = near:send(part_of(here))
    assert.equal(100, (far:recv(there:slice()):wait(5)))
    assert(future:wait(5))
    assert.equal(here_bytes() .. ("\xee"):rep(3996), there:slice():string())
  end)

  it("receives no more than it has bytes", function()
    local future = near:send(here:slice(0, 128))
    local _, err = far:recv(part_of(there)):wait(5)
    assert.equal("too_large", err.kind)
    _, err = future:wait(5)
    assert.equal("too_large", err.kind)
    assert.equal(("\xee"):rep(4096), there:slice():string())
  end)

  it("is received into, and nothing behind it", function()
    local future = far:recv(part_of(there))
    assert(near:send(here:slice(0, 100)):wait(5))
    assert.equal(100, (future:wait(5)))
    assert_scattered(here:slice(0, 100):string())
  end)

  it("is written to the same part of a peer's region", function()
    for _ = 1, 2 do
      assert(near:write { from = part_of(here), to = part_of(remote) }:wait(5))
      assert_scattered(here_bytes())
    end
  end)

  it("is written to as many bytes in one piece, and read from them", function()
    assert(near:write { from = part_of(here), to = remote:slice(0, 100) }
      :wait(5))
    assert.equal(here_bytes() .. ("\xee"):rep(3996), there:slice():string())
    here:slice():fill(0)
    assert(near:read { from = remote:slice(0, 100), to = part_of(here) }
      :wait(5))
    assert.equal(there:slice(0, 100):string(), here_bytes())
    assert.equal(("\0"):rep(28), here:slice(292, 28):string())
  end)

  it("stands in lists, wherever in them", function()
    local from = { part_of(here), here:slice(2048, 50) }
    local to = { remote:slice(2048, 10), part_of(remote),
                 remote:slice(3000, 40) }
    assert(near:write { from = from, to = to }:wait(5))
    local bytes = here_bytes() .. here:slice(2048, 50):string()
    assert.equal(bytes, there:slice(2048, 10):string()
      .. part_of(there):string() .. there:slice(3000, 40):string())
    assert.equal(("\xee"):rep(28), there:slice(292, 28):string())
  end)

  it("is two slices of the 4096 that a list may have", function()
    local from = {}
    for i = 1, 4096 do from[i] = here:slice(0, 1) end
    from[7] = part_of(here)
    local fine, message = pcall(near.send, near, from)
    assert.is_false(fine)
    assert.matches("1 to 4096 slices, not 4097", message)
  end)

  it("is filled, and nothing behind it", function()
    part_of(there):fill(0x11)
    assert_scattered(("\x11"):rep(100))
  end)
end)
