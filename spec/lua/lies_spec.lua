-- SPDX-License-Identifier: Apache-2.0
-- Single messages of hostile peers that once raised out of the loop or accessed
-- memory that was not theirs. (agents_fuzz_spec.lua looks for more.)
local buffer = require "string.buffer"
local cases = require "spec.support.cases"
local ffi = require "ffi"
local liars = require "spec.support.liar"
local native = require "perigee.native"
local perigee = require "perigee"

local C = native.C

describe("who is lied to", function()
  local before, errors, liar, server, client

  before_each(function()
    before, errors = perigee.log, {}
    perigee.log = function(level, message)
      if level == "error" then errors[#errors + 1] = message end
    end
    server, client = assert(cases.agent "server"), assert(cases.agent "client")
    server:serve { name = "honest", version = 1, methods = {
      add = function(a, b) return a + b end,
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
      put = { landing = function(length)
                return server.engine:alloc(4096):slice(0, length)
              end, function(slice) return slice.length end },
      many = function(n)
        local list = {}
        for i = 1, n do list[i] = i end
        return unpack(list)
      end,
    } }
    liar = liars.new(cases.address "liar", 1)
  end)
  after_each(function()
    perigee.log = before
    liar:close()
    cases.cleanup()
  end)

  -- Runs f in a task while the liar is polled; returns f's results.
  local function during(f)
    local future = perigee.spawn(f)
    assert.is_true(liar:until_true(function() return future:done() end))
    return future:wait()
  end

  local function honest()
    return assert(client:proxy("server", "honest", { timeout = 10 }))
  end

  local function goes_on()
    assert.equal(3, during(function() return honest():add(1, 2) end))
    assert.same({}, errors)
  end

  -- The status of the server's answer to a message.
  local function status_of(message, method)
    local status
    assert.is_truthy(liar:dial(server.address))
    message.method = method
    status = liar:send(message, function(event) status = event.status end)
    assert.is_true(liar:until_true(function() return status end))
    return status
  end

  local function values(n)
    local list = {}
    for i = 1, n do list[i] = i end
    return unpack(list, 1, n)
  end

  it("by a slice and 7,000 values goes on serving", function()
    for _, method in ipairs { 0, 1, 4 } do -- describe, add, put
      assert.is_true(status_of(liar:typed(100, values(7000)), method) < 0)
      assert.is_true(status_of(liar:typed(nil, values(7000)), method) < 0)
    end
    goes_on()
  end)

  it("by a key given twice, again and again, says so and goes on", function()
    local twice = "\9\2\33k\1\33k\2"
    for i = 1, 3000 do
      local m = native.message_t()
      m.head, m.length, m.flags = twice, #twice, C.PERIGEE_TYPED
      m.timeout = 5e9
      local status = status_of(m, 1)
      if status ~= C.PERIGEE_PROTOCOL then
        error(("call %d: status %d"):format(i, status))
      end
    end
    goes_on()
  end)

  it("by a key given twice in a large table says so and goes on", function()
    local twice = "\10\240\0" .. ("\40eight..."):rep(0x10e0 - 1)
      .. "\9\2\33k\1\33k\2"
    for _ = 1, 3 do
      local m = native.message_t()
      m.head, m.length, m.flags = twice, #twice, C.PERIGEE_TYPED
      m.timeout = 5e9
      assert.equal(C.PERIGEE_PROTOCOL, status_of(m, 1))
    end
    goes_on()
  end)

  it("about its capacity refuses it", function()
    for _, capacity in ipairs { 2 ^ 41, 2 ^ 53, 2 ^ 63, -1LL } do
      local m = native.message_t()
      m.head, m.length, m.timeout = liar.bytes, 10000, 5e9
      m.capacity = capacity
      assert.equal(C.PERIGEE_TOO_LARGE, status_of(m, 2))
    end
    goes_on()
  end)

  -- The text of the server's answer to a message.
  local function said_to(message, method)
    local text
    assert.is_truthy(liar:dial(server.address))
    message.method = method
    liar:send(message, function(event)
      text = ffi.string(event.pointer, event.length)
    end)
    assert.is_true(liar:until_true(function() return text end))
    return text
  end

  it("about the name of a service tells no address of its own", function()
    for _, name in ipairs { {}, { {} }, 3LL, 2.5, true, "x\0" } do
      local text = said_to(liar:typed(nil, name), 0)
      assert.matches("there is no service", text)
      assert.is_nil(text:find("0x", 1, true), text)
    end
    assert.matches("there is no service", said_to(liar:typed(nil), 0))
  end)

  it("that a handler raises tells no address of its own", function()
    server:serve { name = "raising", version = 1, methods = {
      again = function(x) error(x) end,
      coded = function(x) error { message = x, code = x } end,
      deep = function(x) string.gsub("a", "a", function() error(x) end) end,
      made = function(x) error(x and function() end or print) end,
    } }
    local proxy = during(function()
      return client:proxy("server", "raising", { timeout = 10 })
    end)
    for _, name in ipairs { "again", "coded", "deep", "made" } do
      for _, x in ipairs { {}, 3LL, false } do
        local got, err = during(function() return proxy[name](proxy, x) end)
        assert.is_nil(got)
        assert.equal("remote", err.kind)
        local all = tostring(err) .. tostring(err.code)
          .. tostring(err.traceback)
        assert.is_nil(all:find("0x", 1, true), all)
      end
    end
  end)

  -- The result of calling the liar's service, which answers with message.
  local function answered(message, name, options)
    liar.answer = function(_, served)
      C.perigee_reply(liar.handle, served, message)
    end
    return during(function()
      local proxy = assert(client:proxy(cases.address "liar", "liars"))
      if options then proxy = proxy:with(options) end
      return proxy[name](proxy, "x")
    end)
  end

  local function protocol(got, err)
    assert.is_nil(got)
    assert.equal("protocol", err.kind)
    assert.equal("string", type(tostring(err)))
  end

  -- A failure with that text; `more` takes the place of the typed values after
  -- it.
  local function failure(text, more)
    local m = native.message_t()
    m.status, m.head, m.length = C.PERIGEE_REMOTE, text, #text
    if more then m.flags = C.PERIGEE_TYPED end
    return m, text
  end

  -- Checks the error that each kind of call gets; nothing may be written to the
  -- reply's destination.
  local function failed(kind, wanted, text, more)
    local into = client.engine:alloc(4096):slice()
    local last
    into:fill(7)
    for _, name in ipairs { "typed", "raw", "inplace" } do
      local message, kept = failure(text, more)
      local got, err = answered(message, name, { into = into })
      assert.is_nil(got)
      assert.equal(kind, err.kind)
      assert.equal("string", type(tostring(err)))
      assert.is_truthy(err.message:find(wanted, 1, true), err.message)
      assert.equal(("\7"):rep(4096), into:string())
      assert.equal(kept, text)
      last = err
    end
    return last
  end

  it("about why a call failed has an error all the same", function()
    for _, told in ipairs { { {}, {}, {} }, { 2, 3LL, 4 },
                            { {}, "E", true }, { "trace" }, {} } do
      local out = buffer.new():put("that is why\0")
      for i = 1, 3 do out:encode(told[i]) end
      local err = failed("remote", "that is why", out:tostring(), true)
      assert.is_true(err.traceback == nil or err.traceback == "trace")
      assert.is_true(err.code == nil or err.code == "E")
    end
    goes_on()
  end)

  it("about why a call failed, by no text or a strange one, has one, too",
     function()
    failed("remote", "the remote handler failed", "")
    failed("remote", "plain", "plain")
    failed("remote", "zero", "zero\0", true)
    failed("remote", "in\0side", "in\0side")
    failed("remote", ("x"):rep(2 ^ 16), ("x"):rep(1e5))
    failed("remote", "the remote handler failed", "\0", true)
    goes_on()
  end)

  it("about why a call failed by what is no text and no values says so",
     function()
    local one = buffer.encode(1)
    for _, text in ipairs { "no zero", "not typed\0\255", "zero\0\0\0\254",
                            "half\0" .. one:sub(1, -2),
                            "a pointer\0\5\1\2\3\4\5\6\7\8" } do
      failed("protocol", "", text, true)
    end
    goes_on()
  end)

  it("about why a call failed at great length is told how much may travel",
     function()
    local twice = ("why"):rep(1e5)
    failed("too_large", "300000 bytes", twice)
    failed("protocol", "",
           "too much\0" .. buffer.encode(("y"):rep(2 ^ 14)), true)
    failed("too_large", "typed values", "many\0" .. ("\0"):rep(300), true)
    goes_on()
  end)

  it("by a slice with 7,000 results has an error", function()
    for _, length in ipairs { 100, false } do
      local got, err = answered(liar:typed(length, values(7000)), "typed")
      assert.is_nil(got)
      assert.is_true(err.kind == "too_large" or err.kind == "protocol")
    end
    goes_on()
  end)

  it("by a slice without its place keeps the block that it named for the reply",
     function()
    local memory = server.engine:alloc(4096)
    server:serve { name = "blocks", methods = {
      get = function() return memory:slice(0, 200):fill(7) end } }
    local block = during(function()
      return assert(client:proxy("server", "blocks")):get()
    end)
    for _, into in ipairs { block, { block } } do
      protocol(answered(liar:typed(100, "no place"), "typed", { into = into }))
      assert.equal(("\7"):rep(100), block:slice(100):string())
    end
    block:close()
    protocol(answered(liar:typed(100, "no place"), "typed"))
    assert.equal(0, client.engine:stats().pooled)
    goes_on()
  end)

  it("by bytes that nobody has scanned decodes none of them", function()
    local message = native.message_t()
    local pointer = "\6\1\0\0\0"      -- an integer, as it happens
    message.head, message.length = pointer, #pointer
    protocol(answered(message, "typed"))
    protocol(answered(liar:typed(100, 1), "raw"))
    protocol(answered(liar:typed(100, 1), "inplace", {
      into = client.engine:alloc(4096):slice() }))
    goes_on()
    collectgarbage()
    assert.equal(0, client.engine:stats().pooled)
  end)

  it("by more than it said that it can take gets none of it", function()
    local message = native.message_t()
    message.head, message.length = liar.bytes, 65
    local read = 0
    protocol(answered(message, "inplace", {
      capacity = 64, reader = function() read = read + 1 end }))
    assert.equal(0, read)
    message.length = 64
    assert.equal(64, #answered(message, "inplace", { capacity = 64 }))
  end)

  -- Memory that the liar has never written is copied, if there is room for it.
  it("by a loan that claims 4 GiB is told that there is no room", function()
    liar:close()
    os.remove((cases.address("liar"):sub(6)))
    liar = liars.new(cases.address "liar", 1, 2 ^ 34)
    liar.answer = function(_, served)
      local loan = native.loan_t()
      assert.equal(0, C.perigee_reply_begin(liar.handle, served, 2 ^ 32, loan))
      C.perigee_reply_commit(liar.handle, served, 2 ^ 32)
    end
    local got, err = during(function()
      local proxy = assert(client:proxy(cases.address "liar", "liars",
                                        { transport = nil }))
      return proxy:raw("x")
    end)
    assert.is_nil(got)
    assert.equal("no_memory", err.kind)
    goes_on()
  end)

  it("about what a service is opens none", function()
    local methods = {}
    for i = 1, 3 do methods[i] = { id = 1, kind = "typed" } end
    for _, told in ipairs {
      { version = 1, methods = methods },
      { version = 1, methods = { close = { id = 1, kind = "typed" } } },
      { version = 1, methods = { with = { id = 1, kind = "typed" } } },
      { version = 1, methods = { async = { id = 1, kind = "typed" } } },
      { version = 1, methods = { [""] = { id = 1, kind = "typed" } } },
      { version = 1, methods = { [("n"):rep(256)] = { id = 1 } } },
      { version = 0 / 0, methods = {} }, { version = "1", methods = {} },
      { version = 1, methods = { a = { id = 2 ^ 16, kind = "typed" } } },
    } do
      liar.describes = false
      local message = liar:typed(nil, told)
      liar.answer = function(_, served)
        C.perigee_reply(liar.handle, served, message)
      end
      protocol(during(function()
        return client:proxy(cases.address "liar", "some")
      end))
    end
    goes_on()
  end)

  it("by more values than may travel is told whose fault it is", function()
    during(function()
      local proxy = honest()
      assert.equal(250, select("#", proxy:many(250)))
      local got, err = proxy:many(251)
      assert.is_nil(got)
      assert.equal("remote", err.kind)
      local fine, message = pcall(proxy.add, proxy, values(251))
      assert.is_false(fine)
      assert.matches("250", message)
      assert.equal(3, proxy:add(1, 2, values(248)))
    end)
    goes_on()
  end)

  it("where the library itself fails loses the session, not the loop",
     function()
    assert.is_truthy(liar:dial(server.address))
    local methods = server.engine.methods
    for _, flags in ipairs { C.PERIGEE_TYPED, 0 } do
      server.engine.methods = setmetatable({}, { __index = function()
        error "a fault in the library"
      end })
      local m = native.message_t()
      m.flags, m.timeout, m.method = flags, 5e9, 1
      assert.is_truthy(liar:dial(server.address))
      liar:send(m)
      assert.is_true(liar:until_true(function() return not liar.session end))
      assert.equal(1, #errors)
      assert.matches("a fault in the library", errors[1])
      errors = {}
      server.engine.methods = methods
      goes_on()
    end
  end)
end)
