-- SPDX-License-Identifier: Apache-2.0
-- Large replies, and the arguments that a landing gets, are decoded in
-- portions. Meanwhile the loop goes on, and each call still ends once.
local cases = require "spec.support.cases"
local decoder = require "perigee.typed.decoder"
local perigee = require "perigee"
local process = require "spec.support.process"

local MANY = 30000

local function texts(n)
  local list = {}
  for i = 1, n do list[i] = ("%06d"):format(i) end
  return list
end

-- Both sides are in this process, so that all decoding is seen: begun counts
-- the decodings, and on_begin(begun) is called at the start of each.
local begun, on_begin
local new = decoder.new

describe("a large reply", function()
  local server, client, proxy, asked, ran

  setup(function()
    function decoder.new(...)
      begun = begun + 1
      if on_begin then on_begin(begun) end
      return new(...)
    end
  end)
  teardown(function() decoder.new = new end)

  before_each(function()
    begun, on_begin, asked, ran = 0, nil, 0, 0
    server, client = assert(cases.agent "worker"), assert(cases.agent())
    local list, region = texts(MANY), server.engine:alloc(4096)
    region:slice(0, 5):write "slice"
    server:serve { name = "large", version = 1, methods = {
      list = function() return list, 7 end,
      slice = function() return list, region:slice(0, 5) end,
      fails = function() error(("x"):rep(40000)) end,
      raw = { raw = true, function() error(("x"):rep(40000)) end },
      echo = function(value) return value end,
      put = { landing = function(length, values)
        asked = asked + #values
        return server.engine:alloc(length):slice(0, length)
      end, function(slice, values)
        ran = ran + 1
        return slice:string(), #values
      end },
    } }
    proxy = assert(client:proxy("worker", "large",
                                { timeout = 20 * cases.slow }))
  end)
  after_each(cases.cleanup)

  local function pooled()
    return client.engine:stats().pooled + server.engine:stats().pooled
  end

  local function nothing_is_left()
    assert.is_true(cases.eventually(function() return pooled() == 0 end))
    assert.equal("x", proxy:echo "x")
  end

  it("comes to who waits outside of any task", function()
    local list, seven = proxy:list()
    assert.equal(MANY, #list)
    assert.equal(7, seven)
    assert.same({ ("%06d"):format(1), ("%06d"):format(MANY) },
                { list[1], list[MANY] })
    local got, slice = proxy.async:slice():wait()
    assert.equal(MANY, #got)
    assert.equal("slice", slice:string())
    slice:close()
    assert.equal(2, begun)
    nothing_is_left()
  end)

  it("comes to tasks, and others' calls go on meanwhile", function()
    perigee.run(function()
      local future, during = proxy.async:list(), 0
      while begun == 0 do perigee.sleep(0) end
      while not future:done() do
        assert(proxy:echo(1) == 1)
        during = during + 1
      end
      assert.equal(MANY, #(future:wait()))
      assert.is_true(during > 2, during)
      assert.equal(MANY, #(proxy:list()))
    end)
    nothing_is_left()
  end)

  it("may be one of many, and all come", function()
    local futures = {}
    for i = 1, 8 do futures[i] = proxy.async:list() end
    assert(perigee.wait_all(futures, 60 * cases.slow))
    for i = 1, 8 do assert.equal(MANY, #(futures[i]:wait())) end
    nothing_is_left()
  end)

  it("may tell of a failure, typed or raw, whose text is not decoded",
     function()
    for _, method in ipairs { "fails", "raw" } do
      for _, call in ipairs { proxy, proxy.async } do
        local got, err = call[method](call)
        if call ~= proxy then got, err = got:wait() end
        assert.is_nil(got)
        assert.equal("remote", err.kind)
        assert.is_truthy(err.message:find(("x"):rep(10000), 1, true))
      end
    end
    assert.equal(0, begun)
    nothing_is_left()
  end)

  it("can be cancelled in the midst of it", function()
    local future
    function on_begin() perigee.spawn(function() future:cancel() end) end
    future = proxy.async:list()
    local got, err = future:wait()
    on_begin = nil
    assert.is_nil(got)
    assert.equal("cancelled", err.kind)
    assert.is_truthy(err.message:find("large.list", 1, true))
    nothing_is_left()
  end)

  it("ends with its call's time", function()
    local hasty = proxy:with { timeout = 0.2 * cases.slow }
    function on_begin()
      local limit = process.now() + 0.25 * cases.slow
      repeat until process.now() > limit
    end
    for way = 1, 2 do
      local got, err
      if way == 1 then got, err = hasty:list() end
      if way == 2 then got, err = hasty.async:slice():wait() end
      assert.is_nil(got)
      assert.equal("timeout", err.kind)
    end
    on_begin = nil
    nothing_is_left()
  end)

  it("ends with its engine", function()
    local future
    function on_begin() perigee.spawn(function() client:close() end) end
    future = proxy.async:list()
    local got, err = future:wait()
    assert.is_nil(got)
    assert.equal("closed", err.kind)
    assert.is_true(err.sent)
  end)

  it("comes though its session ends", function()
    function on_begin() perigee.spawn(function() server:close() end) end
    assert.equal(MANY, #(proxy:list()))
    on_begin = nil
    assert.equal(0, client.engine:stats().pooled)
  end)

  it("that comes while the loop is stopped comes later", function()
    local future
    function on_begin() perigee.stop() end
    local got, err = perigee.run(function()
      future = proxy.async:list()
      future:wait()
    end)
    on_begin = nil
    assert.is_nil(got)
    assert.equal("closed", err.kind)
    assert.equal(MANY, #(future:wait()))
    nothing_is_left()
  end)

  describe("or the arguments that a landing sees", function()
    local list, slice

    before_each(function()
      list = texts(MANY)
      slice = client.engine:alloc(16):slice(0, 3)
      slice:write "abc"
    end)

    it("let others' calls go on", function()
      local during, other = 0, assert(cases.agent())
      local beside = assert(other:proxy("worker", "large"))
      local future = proxy.async:put(slice, list)
      while asked == 0 do
        assert.equal(1, beside:echo(1))
        if begun > 0 then during = during + 1 end
      end
      assert.is_true(during > 2, during)
      local text, n = future:wait()
      assert.same({ "abc", MANY }, { text, n })
      assert.same({ MANY, 1 }, { asked, ran })
      nothing_is_left()
    end)

    it("are not asked for once the caller has given up", function()
      local future
      function on_begin(n)
        if n == 1 then perigee.spawn(function() future:cancel() end) end
      end
      future = proxy.async:put(slice, list)
      assert.equal("cancelled", select(2, future:wait()).kind)
      nothing_is_left()
      assert.same({ 0, 0 }, { asked, ran })
    end)

    it("are not asked for once the session is over", function()
      function on_begin(n)
        if n == 1 then perigee.spawn(function() client:close() end) end
      end
      local _, err = proxy.async:put(slice, list):wait()
      assert.equal("closed", err.kind)
      assert.is_true(cases.eventually(function()
        return server.engine:stats().pooled == 0
      end))
      assert.same({ 0, 0 }, { asked, ran })
    end)
  end)

  it("or a large call that a stop drops lets later ones come", function()
    function on_begin() perigee.stop() end
    local list, future = texts(MANY), nil
    perigee.run(function()
      future = proxy.async:echo(list)
      future:wait()
    end)
    on_begin = nil
    assert.equal(1, begun)
    assert.equal("x", proxy:with { timeout = 5 * cases.slow }:echo "x")
    future:cancel()
    assert.equal("cancelled", select(2, future:wait()).kind)
  end)
end)

-- Its reply arrives before the loop has run, so that the caller's wait receives
-- it directly.
local function answers(child)
  child.serve { name = "large", version = 1, methods = {
    list = function(n)
      local list = {}
      for i = 1, n do list[i] = ("%06d"):format(i) end
      return list
    end,
  } }
end

describe("a large reply of another process", function()
  after_each(cases.cleanup)

  it("comes to a future that is waited for without a time", function()
    process.start(answers):expect("ready")
    local proxy = cases.proxy("large", { timeout = 20 * cases.slow })
    for _ = 1, 20 do
      local future = proxy.async:list(3000)
      process.usleep(0.01)
      assert.equal(3000, #assert(future:wait()))
    end
  end)
end)
