-- SPDX-License-Identifier: Apache-2.0
-- Landings: the receiver chooses the memory for a slice, at every size.
-- `abandoned` is called once for a landing that is not used.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  local region = child.cases.alloc(agent.engine, child.cases.LARGE)
  local log, landed = {}, nil
  agent:serve {
    name = "store", version = 1,
    methods = {
      put = {
        landing = function(length, key, room)
          log[#log + 1] = "landing " .. key
          if key == "refused" then return nil, "not this one" end
          if key == "raises" then error("landing raised") end
          if key == "waits" then perigee_.sleep(0.1) end
          return region:slice(64, room or length)
        end,
        abandoned = function(slice, key)
          log[#log + 1] = "abandoned " .. key .. " " .. slice.offset
        end,
        function(slice, key)
          log[#log + 1] = "handler " .. key
          landed = slice
          return slice.length, slice.offset
        end,
      },
      plain = function(slice, key)
        landed = slice
        return slice.length, key
      end,
      get = function() return landed end,
      part = function(offset, length) return region:slice(offset, length) end,
      log = function()
        local now = log
        log = {}
        return now
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("a landing", function()
  local store, agent, region

  before_each(function()
    process.start(server):expect("ready")
    store, agent = cases.proxy("store", { timeout = 10 })
    region = cases.alloc(agent.engine, cases.LARGE + 4096)
  end)
  after_each(cases.cleanup)

  local function filled(size, seed)
    local slice = region:slice(16, size)
    slice:write(cases.bytes(size, seed))
    return slice
  end

  it("is where a slice arrives, at every size, 0 included", function()
    local sizes = { unpack(cases.sizes) }
    sizes[#sizes + 1] = 2 ^ 22
    for _, size in ipairs(sizes) do
      local sent = filled(size, size)
      local length, offset = assert(store:put(sent, "a"))
      assert.equal(size, length)
      assert.equal(64, offset)
      assert.same({ "landing a", "handler a" }, (store:log()))
      local into = region:slice(2 ^ 23, size)
      into:fill(1)
      local got = assert(store:with({ into = into }):get())
      assert.equal(size, got.length)
      assert.is_true(got:string() == sent:string(), size)
    end
  end)

  it("takes 64 MiB", function()
    local sent = region:slice(0, cases.LARGE - 64)
    sent:fill(0x5a)
    sent:slice(12345678, 1):fill(1)
    assert.equal(sent.length, (store:put(sent, "a")))
    sent:fill(0)
    local got = assert(store:with({ into = sent }):get())
    assert.equal(sent.length, got.length)
    assert.equal(0x5a, cases.byte(got, sent.length - 1))
    assert.equal(1, cases.byte(got, 12345678))
  end)

  it("may be refused with a reason", function()
    for _, size in ipairs { 0, 100, 100000 } do
      local done, err = store:put(filled(size), "refused")
      assert.is_nil(done)
      assert.equal("denied", err.kind)
      assert.matches("not this one", err.message)
      assert.same({ "landing refused" }, (store:log()))
    end
  end)

  it("may raise, and may not wait", function()
    for _, key in ipairs { "raises", "waits" } do
      for _, size in ipairs { 0, 100, 100000 } do
        local done, err = store:put(filled(size), key)
        assert.is_nil(done)
        assert.equal("remote", err.kind)
        assert.is_false(err.sent)
        assert.same({ "landing " .. key }, (store:log()))
      end
    end
  end)

  it("that is too short is too_large to the caller", function()
    for _, size in ipairs { 1, 100, cases.EAGER + 1, 2 ^ 20 } do
      local done, err = store:put(filled(size), "a", size - 1)
      assert.is_nil(done)
      assert.equal("too_large", err.kind)
      local log = store:log()
      assert.is_nil(table.concat(log, ";"):find("handler", 1, true))
    end
  end)

  it("that is `into` takes a typed method's slice at every size", function()
    for _, size in ipairs(cases.sizes) do
      local into = region:slice(2 ^ 22, size + 1)
      local got = assert(store:with({ into = into }):part(0, size))
      assert.equal(size, got.length)
      assert.equal(into.pointer, got.pointer)
      if size > 0 then
        local short = region:slice(0, size - 1)
        local none, err = store:with({ into = short }):part(0, size)
        assert.is_nil(none)
        assert.equal("too_large", err.kind)
      end
    end
  end)

  it("is a pooled slice where nobody names one", function()
    for _, size in ipairs { 0, 1, 5000, 100000 } do
      local sent = filled(size, 4)
      assert.same({ size, "k" }, { store:plain(sent, "k") })
      local got = assert(store:get())
      assert.equal(size, got.length)
      assert.is_true(got:string() == sent:string())
      got:close()
      got:close()
    end
  end)

  it("is abandoned once if the caller dies before all is there", function()
    local size = cases.LARGE - 64
    for _ = 1, 5 do
      local caller = process.start(function(other, perigee_, _, length)
        local own = assert(other.cases.agent())
        local proxy = assert(own:proxy("worker", "store"))
        local memory = other.cases.alloc(own.engine, tonumber(length))
        local future = proxy.async:put(memory:slice(0, tonumber(length)), "b")
        other.say("sent")
        future:wait(10)
        other.say("done")
        perigee_.sleep(10)
      end, size)
      caller:expect("sent")
      process.usleep(0.002)
      caller:kill()
      local log = {}
      assert.is_true(cases.eventually(function()
        for _, line in ipairs((store:log())) do log[#log + 1] = line end
        local last = log[#log] or "nothing"
        return #log == 0 or not last:find("^landing")
      end))
      local text = table.concat(log, ";")
      local fine = { [""] = true, ["landing b;handler b"] = true,
                     ["landing b;abandoned b 64"] = true }
      assert.is_true(fine[text] or false, text)
    end
  end)

  it("has made no mistake if its caller dies before it returns", function()
    local said, abandoned, caller = {}, 0, nil
    local serving = assert(cases.agent("other", { progress = "thread" }))
    perigee.log = function(_, message) said[#said + 1] = message end
    serving:serve { name = "store", version = 1, methods = { put = {
      function() end,
      abandoned = function() abandoned = abandoned + 1 end,
      landing = function(length)
        local context, limit = perigee.context(), process.now() + 20
        caller:kill()
        repeat process.usleep(0.001)
        until context:cancelled() or process.now() > limit
        return cases.alloc(serving.engine, length):slice(0, length)
      end,
    } } }
    caller = process.start(function(other, perigee_)
      local own = assert(other.cases.agent())
      local proxy = assert(own:proxy("other", "store"))
      local memory = other.cases.alloc(own.engine, 2 ^ 20)
      proxy.async:put(memory:slice())
      perigee_.sleep(60)
    end)
    assert.is_true(cases.eventually(function() return abandoned == 1 end))
    serving:close()
    perigee.log = nil
    assert.is_nil(table.concat(said, ";"):match "its landing gave.*")
  end)

  it("is abandoned once if the call is cancelled meanwhile", function()
    local slice = region:slice(0, cases.LARGE - 64)
    for round = 1, 20 do
      local future = store.async:put(slice, "c")
      if round % 2 == 0 then perigee.sleep(round * 2e-4) end
      future:cancel()
      future:wait(1)
      assert.is_true(future:done())
      assert.equal(0, (store:put(region:slice(0, 0), "d")))
      local text = ""
      assert.is_true(cases.eventually(function()
        text = text .. table.concat((store:log()), ";") .. ";"
        local _, given = text:gsub("landing c", "")
        local _, handled = text:gsub("handler c", "")
        local _, abandoned = text:gsub("abandoned c", "")
        return given == handled + abandoned
      end), text)
      assert.matches("landing d;.*handler d", text)
    end
  end)
end)
