-- SPDX-License-Identifier: Apache-2.0
-- Operations with a stopped peer end in timeout. A peer that continues touches
-- no memory of an operation that has ended, and data read from it too late is
-- not delivered.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local SIZE = 2 ^ 22

local function server(child, perigee_, ffi_)
  local size = 2 ^ 22
  local agent = assert(child.cases.agent("worker"))
  local engine = agent.engine
  local shared = engine:alloc(size, { name = "shared", access = "rw" })
  local own = ffi_.new("uint8_t[?]", size)
  engine:register(own, size, { name = "own", access = "rw" })
  ffi_.fill(own, size, 0xa5)
  shared:slice(0, size):fill(0xa5)
  local region, seen = engine:alloc(size), {}
  region:slice(0, size):fill(0x5a)
  local function note(pointer, length)
    local first, last = pointer[0], pointer[length - 1]
    seen[#seen + 1] = first
    seen[#seen + 1] = last
    return first
  end
  agent:serve {
    name = "x", version = 1,
    methods = {
      same = function(x) return x end,
      get = function(length) return region:slice(0, length) end,
      put = {
        landing = function(length) return region:slice(0, length) end,
        function(slice) return note(slice.pointer, slice.length) end,
      },
      pooled = function(slice)
        return note(slice.pointer, slice.length)
      end,
      raw = { raw = true, function(request)
        note(request.pointer, request.length)
        return request
      end },
      seen = function()
        local now = seen
        seen = {}
        return now
      end,
      own = function() return own[0], own[size - 1] end,
      message = function(value)
        local session = perigee_.context().session
        local slice = region:slice(0, 50):fill(value)
        local done, err = session:send(slice):wait(5)
        return done and "sent" or err.kind
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("a stopped peer", function()
  local child, proxy, agent, session, here

  before_each(function()
    child = process.start(server):expect("ready")
    proxy, agent = cases.proxy("x", { timeout = 5 })
    session = assert(agent:session("worker"))
    here = agent.engine:alloc(2 * SIZE)
  end)
  after_each(cases.cleanup)

  local function timed_out(future)
    local got, err = future:wait(5)
    assert.is_nil(got)
    assert.equal("timeout", err.kind)
    assert.is_true(future:done()) -- the operation timed out, not the wait
  end

  -- Continues the peer, and gives it time for accesses that are forbidden.
  local function continue()
    child:signal("CONT")
    assert.equal("on", assert(proxy:same("on")))
    perigee.sleep(0.02)
    assert.equal("on", assert(proxy:same("on")))
  end

  local function unchanged(slice, value)
    assert.is_true(slice:string() == string.char(value):rep(slice.length))
  end

  it("writes no reply into a landing of a call that ended", function()
    for _, size in ipairs { 1, 5000, 100000, SIZE } do
      local into = here:slice(0, size)
      child:signal("STOP")
      timed_out(proxy:with({ into = into, timeout = 0.05 }).async:get(size))
      into:fill(0x77)
      continue()
      unchanged(into, 0x77)
      local raw = here:slice(0, size)
      child:signal("STOP")
      timed_out(proxy:with({ into = raw, timeout = 0.05 })
        .async:raw(("\1"):rep(size)))
      raw:fill(0x78)
      continue()
      unchanged(raw, 0x78)
    end
  end)

  it("in the middle of a reply writes nothing after the end", function()
    local into = here:slice(0, SIZE)
    for round = 1, 20 do
      local future = proxy:with({ into = into }).async:get(SIZE)
      process.usleep(round * 1e-4)
      child:signal("STOP")
      perigee.sleep(0.001)
      future:cancel()
      future:wait(1)
      assert.is_true(future:done())
      into:fill(0x79)
      continue()
      unchanged(into, 0x79)
    end
  end)

  it("delivers nothing that was written after the end", function()
    for _, method in ipairs { "put", "pooled", "raw" } do
      for _, size in ipairs { 1, 5000, 100000, SIZE } do
        local slice = here:slice(0, size):fill(1)
        child:signal("STOP")
        local async = proxy:with({ timeout = 0.05 }).async
        timed_out(async[method](async, slice))
        slice:fill(2)
        continue()
        for _, value in ipairs((proxy:seen())) do
          assert.equal(1, value, method .. " " .. size)
        end
      end
    end
  end)

  -- For memory that the peer would have to copy. A device needs no help.
  local function timed_out_or_done_by_device(future)
    if session:explain().transport ~= "verbs" then return timed_out(future) end
    local done, err = future:wait(5)
    assert.is_true(done or err.kind == "timeout", tostring(err))
    assert.is_true(future:done())
  end

  it("reads and writes nothing of a transfer that ended", function()
    local own = assert(session:region("own"))
    for _, size in ipairs { 1, 5000, 100000, SIZE } do
      local slice = here:slice(0, size):fill(3)
      child:signal("STOP")
      timed_out_or_done_by_device(session:read {
        from = own:slice(0, size), to = slice, timeout = 0.05 })
      slice:fill(0x66)
      continue()
      unchanged(slice, 0x66)
      slice:fill(1)
      child:signal("STOP")
      timed_out_or_done_by_device(session:write {
        from = slice, to = own:slice(0, size), timeout = 0.05 })
      slice:fill(2)
      continue()
      local first = proxy:own()
      assert.is_true(first ~= 2, size)
    end
  end)

  it("still lends the memory that it allocated", function()
    local shared = assert(session:region("shared"))
    local slice = here:slice(0, SIZE)
    if session:explain().transport == "tcp" then
      pending("over a socket its owner has to send it")
      return
    end
    child:signal("STOP")
    assert(session:read { from = shared:slice(0, SIZE), to = slice }:wait(5))
    unchanged(slice, 0xa5)
    child:signal("CONT")
  end)

  it("puts a message into no receive that ended", function()
    local first, second = here:slice(0, 100), here:slice(200, 100)
    timed_out(session:recv(first, { timeout = 0.02 }))
    first:fill(0x55)
    local receive = session:recv(second)
    assert.equal("sent", (proxy:message(7)))
    assert.equal(50, (receive:wait(5)))
    unchanged(first, 0x55)
    unchanged(here:slice(200, 50), 7)
  end)

  it("is dialled no longer than the timeout", function()
    child:signal("STOP")
    local other = assert(cases.agent())
    local started = process.now()
    local none, err = other:proxy("worker", "x", { timeout = 0.1 })
    assert.is_nil(none)
    assert.equal("timeout", err.kind)
    assert.is_true(process.now() - started < 2 * cases.slow)
    child:signal("CONT")
    local again = assert(other:proxy("worker", "x", { timeout = 5 }))
    assert.equal(1, (again:same(1)))
  end)

  it("does not keep its caller from closing", function()
    local future = proxy.async:same(1)
    child:signal("STOP")
    local started = process.now()
    local region = agent.engine:alloc(4096, { name = "closing" })
    region:close(0.5)
    session:close()
    agent:close()
    assert.is_true(process.now() - started < 3 * cases.slow)
    assert.is_true(future:done())
    child:signal("CONT")
  end)
end)
