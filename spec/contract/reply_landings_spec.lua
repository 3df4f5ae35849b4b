-- SPDX-License-Identifier: Apache-2.0
-- Landings of replies: the caller is asked for memory once the reply has come
-- and its length is known, at every size.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local mortal = require "spec.support.mortal"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  local region = child.cases.alloc(agent.engine, child.cases.LARGE)
  local function filled(size)
    return region:slice(16, size):write(child.cases.bytes(size, size))
  end
  agent:serve {
    name = "store", version = 1,
    methods = {
      get = function(size) return filled(size) end,
      both = function(size, text)
        return text, filled(size), { text, nil, 3 }
      end,
      apart = function(size, text)
        local own = child.cases.alloc(agent.engine, size):slice(0, size)
        return text, own:write(child.cases.bytes(size, size))
      end,
      list = function(size)
        local half = math.floor(size / 2)
        return { filled(size):slice(0, half),
                 region:slice(16 + half, size - half) }
      end,
      raw = { raw = true, function(request)
        return filled(tonumber(request:string()))
      end },
      text = { raw = true, function(request)
        return child.cases.bytes(tonumber(request:string()), 3)
      end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
      large = function(size)
        local list = {}
        for i = 1, 20000 do list[i] = "text number " .. i end
        return list, filled(size)
      end,
      all = function() return region:slice() end,
      none = function(...) return ... end,
      fails = function() error("on purpose", 0) end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("a caller that is asked where a reply lands", function()
  local store, agent, memory, child

  before_each(function()
    child = process.start(server)
    child:expect("ready")
    store, agent = cases.proxy("store", { timeout = 10 * cases.slow })
    memory = cases.alloc(agent.engine, cases.LARGE + 4096)
  end)
  after_each(cases.cleanup)

  -- A proxy whose landing is the memory from `at` on, and the list of what it
  -- was asked.
  local function asking(more, at)
    local asked = {}
    return store:with { landing = function(...)
      asked[#asked + 1] = { n = select("#", ...), ... }
      for i = 1, select("#", ...) do
        local length = select(i, ...)
        if type(length) == "number" then
          return memory:slice(at or 64, length + (more or 0))
        end
      end
    end }, asked
  end

  local function counted(...) return { n = select("#", ...), ... } end

  -- Is it the part of memory from 64 on, with these bytes?
  local function landed(slice, size, seed)
    assert.equal(size, slice.length)
    assert.equal(memory, slice.owner)
    assert.equal(64, slice.offset)
    assert.is_true(slice:string() == cases.bytes(size, seed or size), size)
  end

  it("gets a typed method's slice there, at every size", function()
    for _, size in ipairs(cases.sizes) do
      memory:slice(0, size + 4096):fill(0xee)
      local proxy, asked = asking(7)
      landed(assert(proxy:get(size)), size)
      assert.same({ { n = 1, size } }, asked)
      assert.equal(0xee, cases.byte(memory, 63))
      assert.equal(0xee, cases.byte(memory, 64 + size))
      landed(assert(proxy.async:get(size):wait()), size)
      assert.equal(2, #asked)
    end
  end)

  it("gets the bytes of raw and inplace methods there, too", function()
    for _, size in ipairs(cases.sizes) do
      local proxy, asked = asking(7)
      landed(assert(proxy:raw(tostring(size))), size)
      landed(assert(proxy:text(tostring(size))), size, 3)
      landed(assert(proxy:with { capacity = size }:copy(cases.bytes(size, 5))),
             size, 5)
      landed(assert(proxy.async:raw(tostring(size)):wait()), size)
      assert.same({ { n = 1, size }, { n = 1, size }, { n = 1, size },
                    { n = 1, size } }, asked)
    end
  end)

  it("may fill its request in place", function()
    local size = 2 ^ 18
    local proxy = asking():with { capacity = size }
    local got = assert(proxy:copy(function(loan)
      ffi.fill(loan.pointer, size, 9)
      return size
    end))
    assert.equal(size, got.length)
    assert.equal(64, got.offset)
    assert.equal(9, cases.byte(got, size - 1))
  end)

  it("is told what came beside the slice", function()
    for _, size in ipairs { 0, 100, 2 ^ 20 } do
      local proxy, asked = asking()
      local text, slice, list = proxy:both(size, "a key")
      assert.same({ n = 3, "a key", size, { "a key", nil, 3 } }, asked[1])
      assert.equal("a key", text)
      landed(slice, size)
      assert.same({ "a key", nil, 3 }, list)
    end
  end)

  it("is asked nothing if there is nothing to land", function()
    local proxy, asked = asking()
    assert.same({ n = 3, 1, nil, "x" }, counted(proxy:none(1, nil, "x")))
    assert.equal(0, select("#", proxy:none()))
    local none, err = proxy:fails()
    assert.is_nil(none)
    assert.equal("remote", err.kind)
    assert.matches("on purpose", err.message)
    none, err = proxy:nowhere()
    assert.is_nil(none)
    assert.equal("no_method", err.kind)
    assert.equal(0, #asked)
  end)

  it("is told that the landing is too short", function()
    for _, size in ipairs { 1, 100, cases.EAGER + 1, 2 ^ 20 } do
      memory:slice(0, size + 128):fill(0xee)
      local proxy = asking(-1)
      for _, method in ipairs { "get", "raw" } do
        local argument = method == "raw" and tostring(size) or size
        local got, err = proxy[method](proxy, argument)
        assert.is_nil(got)
        assert.equal("too_large", err.kind)
        assert.is_true(err.sent)
        assert.matches(tostring(size), err.message)
      end
      assert.equal(0xee, cases.byte(memory, 64))
      assert.equal(0xee, cases.byte(memory, 64 + size - 1))
      landed(assert(asking():get(size)), size)
    end
  end)

  it("may refuse, with a reason", function()
    for _, size in ipairs { 0, 100, 100000 } do
      local refusing = store:with { landing = function()
        return nil, "not this one"
      end }
      local future = refusing.async:get(size)
      for _, results in ipairs { { refusing:get(size) }, { future:wait() },
                                 { refusing:raw(tostring(size)) } } do
        assert.is_nil(results[1])
        assert.equal("denied", results[2].kind)
        assert.is_true(results[2].sent)
        assert.matches("not this one", results[2].message)
        assert.matches("worker", results[2].message)
      end
      local got, err = store:with { landing = function() end }:get(size)
      assert.is_nil(got)
      assert.equal("denied", err.kind)
    end
    assert.equal(5, store:get(5).length)
  end)

  it("gets what its landing raises from every way of waiting", function()
    for _, size in ipairs { 0, 100, 100000 } do
      local raising = store:with { landing = function() error("mine", 0) end }
      local fine, message = pcall(raising.get, raising, size)
      assert.same({ false, "mine" }, { fine, message })
      fine, message = pcall(raising.raw, raising, tostring(size))
      assert.same({ false, "mine" }, { fine, message })
      local future = raising.async:get(size)
      fine, message = pcall(future.wait, future)
      assert.same({ false, "mine" }, { fine, message })
      future = raising.async:get(size)
      fine, message = pcall(perigee.wait_all, { future })
      assert.same({ false, "mine" }, { fine, message })
      local object = { "an object" }
      raising = store:with { landing = function() error(object) end }
      fine, message = pcall(raising.get, raising, size)
      assert.is_false(fine)
      assert.equal(object, message)
    end
    assert.equal(5, store:get(5).length)
  end)

  it("may not wait in it, but may begin other calls", function()
    for _, size in ipairs { 0, 100, 100000 } do
      local slow = store:with { landing = function() perigee.sleep(0.1) end }
      local fine, message = pcall(slow.get, slow, size)
      assert.is_false(fine)
      assert.matches("a landing .*must not wait", message)
      local other
      local beginning = store:with { landing = function(length)
        other = store.async:none("begun there")
        return memory:slice(64, length)
      end }
      landed(assert(beginning:get(size)), size)
      assert.equal("begun there", (other:wait()))
    end
  end)

  it("raises what is wrong with what it gave", function()
    local other = assert(cases.agent())
    local foreign = cases.alloc(other.engine, 4096)
    local closed = cases.alloc(agent.engine, 4096)
    local part = closed:slice(0, 4096)
    closed:close()
    local overlapping = { memory:slice(0, 60), memory:slice(50, 60) }
    for _, wrong in ipairs { 5, "x", memory, {}, { memory:slice(0, 9), 1 },
                             part, foreign:slice(0, 4096), overlapping } do
      local proxy = store:with { landing = function() return wrong end }
      for _, size in ipairs { 0, 100 } do
        local fine, message = pcall(proxy.get, proxy, size)
        assert.is_false(fine)
        assert.matches("store.get: its landing gave something else", message)
      end
    end
    assert.equal(5, store:get(5).length)
  end)

  it("may give a list", function()
    for _, size in ipairs { 2, 101, cases.EAGER + 1, cases.RING + 1, 2 ^ 20 } do
      for _, method in ipairs { "get", "list", "raw" } do
        local half = math.floor(size / 2)
        local proxy = store:with { landing = function(length)
          assert(length == size)
          return { memory:slice(2 ^ 22, half), memory:slice(64, size) }
        end }
        local argument = method == "raw" and tostring(size) or size
        local got = assert(proxy[method](proxy, argument))
        assert.equal(2, #got)
        assert.equal(size, got.length)
        assert.equal(2 ^ 22, got[1].offset)
        assert.equal(64, got[2].offset)
        assert.is_true(got:string() == cases.bytes(size, size), size)
      end
    end
    local short = store:with { landing = function()
      return { memory:slice(0, 50), memory:slice(50, 49) }
    end }
    assert.equal("too_large", select(2, short:get(100)).kind)
  end)

  it("may give a slice of many blocks", function()
    local proxy = store:with { landing = function()
      return memory:slice(0, 1000, { count = 300, stride = 2000 })
    end }
    local got = assert(proxy:get(300000))
    assert.is_true(got:string() == cases.bytes(300000, 300000))
  end)

  it("takes 64 MiB", function()
    local proxy, asked = asking(0, 0)
    local got = assert(proxy:all())
    assert.equal(cases.LARGE, asked[1][1])
    assert.equal(cases.LARGE, got.length)
  end)

  it("is asked for each of many calls under way", function()
    local futures, at = {}, 0
    local proxy = store:with { landing = function(text, length)
      at = at + length
      return memory:slice(at - length, length), text
    end }
    for i = 1, 40 do
      futures[i] = proxy.async:apart(i * 3001 % 70000, "call " .. i)
    end
    local places = {}
    for i = 1, 40 do
      local size = i * 3001 % 70000
      local text, slice = futures[i]:wait()
      assert.equal("call " .. i, text)
      assert.is_true(slice:string() == cases.bytes(size, size))
      assert.is_nil(places[slice.offset])
      places[slice.offset] = true
    end
  end)

  it("is asked once large values beside the slice are decoded", function()
    for _, size in ipairs { 0, 100, 2 ^ 20 } do
      local count
      local proxy = store:with { landing = function(list, length)
        count = #list
        return memory:slice(64, length)
      end }
      local list, slice = proxy:large(size)
      assert.equal(20000, count)
      assert.equal("text number 20000", list[20000])
      landed(slice, size)
      local refusing = store:with { landing = function() return nil, "no" end }
      assert.equal("denied", select(2, refusing:large(size)).kind)
    end
    assert.is_true(cases.eventually(function()
      return agent.engine:stats().pooled == 0
    end))
  end)

  it("may give up before and after that", function()
    for i = 1, 20 do
      local proxy = store:with { landing = function(_, length)
        return memory:slice(64, length)
      end }
      local future = proxy.async:large(2 ^ 20)
      perigee.sleep(i * 1e-3)
      future:cancel()
      local list, slice = future:wait()
      assert.is_true(future:done())
      if list == nil then
        assert.equal("cancelled", slice.kind)
      else
        landed(slice, 2 ^ 20)
      end
    end
    assert.is_true(cases.eventually(function()
      return agent.engine:stats().pooled == 0
    end))
  end)

  it("ends once if it gives up in the landing", function()
    for _, size in ipairs { 0, 100, 2 ^ 20 } do
      memory:slice(0, size + 64):fill(0xee)
      local future
      future = store:with { landing = function(length)
        future:cancel()
        return memory:slice(0, length)
      end }.async:get(size)
      local got, err = future:wait()
      assert.is_nil(got)
      assert.equal("cancelled", err.kind)
      assert.equal(0xee, cases.byte(memory, size + 63))
      assert.equal(0xee, cases.byte(memory, 0))
    end
    assert.equal(5, store:get(5).length)
  end)

  it("ends in time, however long the landing takes", function()
    for _, size in ipairs { 100, cases.LARGE - 64 } do
      local proxy = store:with { timeout = 0.05, landing = function(length)
        process.usleep(0.2)
        return memory:slice(0, length)
      end }
      local method = size == 100 and "get" or "all"
      local got, err = proxy[method](proxy, size)
      if got == nil then assert.equal("timeout", err.kind) end
      local future = proxy.async[method](proxy.async, size)
      got, err = future:wait()
      assert.is_true(future:done())
      if got == nil then assert.equal("timeout", err.kind) end
    end
    assert.equal(5, store:get(5).length)
  end)

  it("may close the proxy, the session or the agent in the landing", function()
    for _, what in ipairs { "proxy", "session", "engine", "agent" } do
      for _, size in ipairs { 100, 2 ^ 20 } do
        local own = assert(cases.agent())
        local place = cases.alloc(own.engine, size)
        local proxy = assert(own:proxy("worker", "store"))
        local session = perigee.session(proxy)
        local close = {
          proxy = function() proxy:close() end,
          session = function() session:close() end,
          engine = function() own.engine:close() end,
          agent = function() own:close() end,
        }
        local future = proxy:with { landing = function(length)
          close[what]()
          return what == "proxy" and place:slice(0, length)
            or memory:slice(0, length)
        end }.async:get(size)
        local fine, got, err = pcall(future.wait, future)
        assert.is_true(future:done())
        if what == "proxy" then
          assert.equal(size, got.length)
        elseif fine then
          assert.is_nil(got)
          assert.equal("closed", err.kind)
        else -- memory is another engine's
          assert.matches("its landing gave something else", got)
        end
        own:close()
      end
    end
    assert.equal(5, store:get(5).length)
  end)

  it("ends once if the peer dies while it is asked", function()
    for _, size in ipairs { 100, cases.LARGE } do
      memory:slice():fill(0xee)
      local method = size == 100 and "get" or "all"
      local proxy = store:with { reconnect = 0, landing = function(length)
        child:kill()
        process.usleep(0.05)
        return memory:slice(0, length)
      end }
      local future = proxy.async[method](proxy.async, size)
      local got, err = future:wait()
      if got then
        assert.is_true(got:string() == cases.bytes(size, size))
      else
        assert.equal("peer_lost", err.kind)
        assert.is_true(err.sent)
      end
      assert.is_true(size == 100 or not got)
      child = process.start(server)
      child:expect("ready")
      store = assert(agent:proxy("worker", "store"))
    end
  end)

  it("ends once if the peer dies amid the bytes", function()
    for round = 1, 5 do
      local given = false
      local proxy = store:with { reconnect = 0, landing = function(length)
        given = true
        return memory:slice(0, length)
      end }
      local future = proxy.async:all()
      cases.await(function() return given end)
      process.usleep(round * 1e-3)
      child:kill()
      local got, err = future:wait()
      if not got then assert.equal("peer_lost", err.kind) end
      memory:slice(0, cases.LARGE):fill(0x77) -- it is ours again
      perigee.sleep(0.01)
      assert.equal(0x77, cases.byte(memory, cases.LARGE - 1))
      assert.equal(0x77, cases.byte(memory, 0))
      child = process.start(server)
      child:expect("ready")
      store = assert(agent:proxy("worker", "store"))
    end
  end)

  it("keeps the memory of the landing until the call has ended", function()
    for _, size in ipairs { 100, 2 ^ 20 } do
      local future = store:with { landing = function(length)
        return cases.alloc(agent.engine, length):slice(0, length)
      end }.async:get(size)
      perigee.sleep(0.001)
      collectgarbage()
      collectgarbage()
      local got = assert(future:wait())
      assert.is_true(got:string() == cases.bytes(size, size))
    end
  end)

  it("has one way for its replies", function()
    local place, f = memory:slice(0, 100), function() end
    assert.has_error(function() store:with { landing = 1 } end)
    assert.has_error(function() store:with { landing = place } end)
    for _, two in ipairs { { landing = f, into = place },
                           { landing = f, reader = f },
                           { into = place, reader = f } } do
      assert.error_matches(function() store:with(two) end, "several")
    end
    local proxy = asking()
    assert.equal(0, proxy:with { into = place }:get(5).offset)
    assert.equal(64, proxy:with { into = place }:with {
      landing = function() return memory:slice(64, 5) end }:get(5).offset)
    assert.equal(5, proxy:with { reader = function(reply)
      return reply.length
    end }:raw("5"))
    assert.equal(64, proxy:with { timeout = 5 }:get(5).offset)
    local opened = assert(agent:proxy("worker", "store", {
      landing = function(length) return memory:slice(8, length) end }))
    assert.equal(8, opened:get(5).offset)
  end)
end)

describe("a landing of an idempotent call", function()
  before_each(mortal.begin)
  after_each(mortal.finish)

  it("is asked again for the reply of the next life", function()
    local proxy, agent = cases.proxy("x", { timeout = 30 * cases.slow,
                                            reconnect = 60 })
    local memory, asked = cases.alloc(agent.engine, 4096), {}
    local future = proxy:with { landing = function(length)
      asked[#asked + 1] = length
      return memory:slice(100, 50)
    end }.async:bytes("a")
    mortal.marked("bytes", 1)
    mortal.child:kill()
    mortal.restart()
    local got = assert(future:wait(30 * cases.slow))
    assert.equal("b", got:string())
    assert.equal(100, got.offset)
    assert.same({ 1 }, asked)
  end)
end)
