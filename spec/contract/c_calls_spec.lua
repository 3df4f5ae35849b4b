-- SPDX-License-Identifier: Apache-2.0
-- Calls between C programs and Lua agents: what a Lua handler returns and how
-- it fails, read by C; and failures and values of a C service, read by Lua. The
-- C program is one engine, used by the functions of perigee.h alone.
local bare = require "spec.hostile.bare"
local cases = require "spec.support.cases"
local ffi = require "ffi"
local native = require "perigee.native"
local perigee = require "perigee"
local process = require "spec.support.process"

local C = native.C

local function server(child)
  local new = require("perigee.runtime.errors").new
  child.serve { name = "x", version = 3, methods = {
    add = function(a, b) return a + b end,
    list = function() return { 10, 20, k = { true } }, nil, "end" end,
    error = function() return nil, new("not_found", "there is none") end,
    raises = function() error { message = "no luck", code = "E1" } end,
    numbered = function() error { message = "no luck", code = 7 } end,
    slice = function(before, slice, after)
      local n = slice:slice(0, 4):string()
      return after, before, n, slice
    end,
    raw = { raw = true, function()
      return nil, new("denied", "not for you")
    end },
    lands = { landing = function() error "nowhere" end, function() end },
  } }
end

-- ---- A C program as caller --------------------------------------------------

local value_t = ffi.typeof("struct perigee_value")
local failure_t = ffi.typeof("struct perigee_failure")
local room = ffi.new("uint8_t[?]", 65536)

local function write(e, v)
  if type(v) == "number" then return C.perigee_encode_number(e, v) end
  if type(v) == "string" then return C.perigee_encode_text(e, v) end
  if type(v) == "cdata" then return C.perigee_encode_slice(e) end
  C.perigee_encode_table(e, 0, #v)      -- a list of texts, the keys
  for _, key in ipairs(v) do
    C.perigee_encode_text(e, key)
    C.perigee_encode_boolean(e, true)
  end
end

-- A message of these values; a slice among them is one of the C program's.
local function message_of(...)
  local e, m = ffi.new("struct perigee_encoder"), native.message_t()
  C.perigee_encode_begin(e, room, 65536)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if type(v) == "cdata" then m.slice = v end
    write(e, v)
  end
  local length = C.perigee_encode_end(e)
  assert(length >= 0, native.detail(nil))
  m.head, m.length = room, length
  m.flags, m.timeout = C.PERIGEE_TYPED + C.PERIGEE_CHECKED, 20e9 * cases.slow
  return m
end

-- Makes a call, and calls read with the event of its end.
local function call(client, session, m, read)
  local operation = C.perigee_call(session, m)
  assert(operation >= 0, native.detail(client.handle))
  local got
  assert(client:attend(30 * cases.slow, function(event)
    if event.kind ~= C.PERIGEE_EVENT_REPLY then return false end
    assert(event.operation == operation)
    got = { read(event) }
    return true
  end), "no reply")
  return unpack(got)
end

local function text(pointer, length)
  return pointer ~= nil and ffi.string(pointer, length) or nil
end

local function decoder(event)
  local d = ffi.new("struct perigee_decoder")
  local status = C.perigee_decode_event(d, event)
  assert(status == 0, native.detail(nil))
  return d
end

local function next_of(d)
  local v = value_t()
  return C.perigee_decode(d, v) == 1 and v or nil
end

local function field(d, table_, key)
  local v = value_t()
  local status = C.perigee_decode_field(d, table_, key, v)
  return status == 1 and v or status
end

local function failure(event)
  local f = failure_t()
  assert(C.perigee_failure_read(event, f, ffi.sizeof(f)) == 0)
  local code
  if f.code.kind == C.PERIGEE_VALUE_NUMBER then code = f.code.number end
  if f.code.kind == C.PERIGEE_VALUE_STRING then
    code = text(f.code.string, f.code.length)
  end
  return { status = ffi.string(C.perigee_status_name(f.status)), ran = f.ran,
           text = text(f.text, f.text_length), code = code,
           traceback = text(f.traceback, f.traceback_length) }
end

-- ---- A C program as service -------------------------------------------------

-- Run in a child: answers the methods of the service y, until it is stopped.
local function c_server(child, _, ffi_)
  local peer = assert(require("spec.hostile.bare").new {})
  local lib = require("perigee.native")
  local c = lib.C
  local bytes = ffi_.new("uint8_t[?]", 4096)
  local message = lib.message_t()
  local e = ffi_.new("struct perigee_encoder")

  local function value(v)
    local into = ffi_.new("struct perigee_value")
    if type(v) == "string" then
      into.kind, into.string, into.length = c.PERIGEE_VALUE_STRING, v, #v
    elseif type(v) == "number" then
      into.kind, into.number = c.PERIGEE_VALUE_NUMBER, v
    end
    return into
  end

  local function fails(served, status, words, code, ran)
    assert(c.perigee_fail_call(peer.handle, served, c["PERIGEE_" .. status],
                               words, code and value(code), ran) == 0)
  end

  local function reply(served)
    message.head, message.length = bytes, c.perigee_encode_end(e)
    message.flags = c.PERIGEE_TYPED + c.PERIGEE_CHECKED
    assert(c.perigee_reply(peer.handle, served, message) == 0)
  end

  -- { version = 1, methods = { NAME = { id = N, kind = "typed" } } }
  local NAMES = { "draining", "error", "fails", "found", "missing", "values" }
  local function describe(served)
    c.perigee_encode_table(e, 0, 2)
    c.perigee_encode_text(e, "version")
    c.perigee_encode_number(e, 1)
    c.perigee_encode_text(e, "methods")
    c.perigee_encode_table(e, 0, #NAMES)
    for i, name in ipairs(NAMES) do
      c.perigee_encode_text(e, name)
      c.perigee_encode_table(e, 0, 2)
      c.perigee_encode_text(e, "id")
      c.perigee_encode_number(e, i)
      c.perigee_encode_text(e, "kind")
      c.perigee_encode_text(e, "typed")
    end
    reply(served)
  end

  local methods = {
    draining = function(served)
      fails(served, "CLOSED", "it drains", "draining", false)
    end,
    error = function(served)            -- nil and an error, as a Lua handler's
      c.perigee_encode_nil(e)
      c.perigee_encode_table(e, 0, 3)
      c.perigee_encode_text(e, "perigee_error")
      c.perigee_encode_number(e, 1)
      c.perigee_encode_text(e, "kind")
      c.perigee_encode_text(e, "range")
      c.perigee_encode_text(e, "message")
      c.perigee_encode_text(e, "too far")
      reply(served)
    end,
    fails = function(served) fails(served, "REMOTE", "no luck", 7, true) end,
    found = function(served)
      fails(served, "NOT_FOUND", "there is none", "E1", true)
    end,
    missing = function(served) fails(served, "NO_METHOD", nil, nil, false) end,
    values = function(served, event)    -- what came, one by one
      local d = ffi_.new("struct perigee_decoder")
      local v = ffi_.new("struct perigee_value")
      assert(c.perigee_decode_event(d, event) == 0)
      while c.perigee_decode(d, v) == 1 do c.perigee_encode_value(e, v) end
      reply(served)
    end,
  }

  child.say(peer:listen(child.cases.address("c")))
  while true do
    peer:attend(1, function(event)
      if event.kind ~= c.PERIGEE_EVENT_REQUEST then return false end
      c.perigee_encode_begin(e, bytes, 4096)
      if event.method == 0 then return describe(event.operation) end
      methods[NAMES[event.method]](event.operation, event)
    end)
  end
end

describe("a C program", function()
  local client, session, ids

  setup(function()
    process.start(server):expect("ready")
    local agent = assert(cases.agent())
    local address = assert(agent:lookup("worker")).addresses[1]
    client = assert(bare.new {})
    session = assert(client:dial(address, os.getenv "PERIGEE_TRANSPORT",
                                 10 * cases.slow))
    ids = {}
  end)

  teardown(function()
    C.perigee_engine_close(client.handle)
    cases.cleanup()
  end)

  -- The number of a method, as the description tells it.
  local function id(name)
    if ids[name] then return ids[name] end
    ids[name] = call(client, session, message_of("x"), function(event)
      local d = decoder(event)
      local at = field(d, assert(next_of(d)), "methods")
      local method = field(d, at, name)
      return tonumber(field(d, method, "id").number)
    end)
    return ids[name]
  end

  local function calls(name, read, ...)
    local number = id(name)
    local m = message_of(...)
    m.method = number
    return call(client, session, m, read)
  end

  it("calls a Lua handler and reads its result", function()
    local sum, over = calls("add", function(event)
      local d = decoder(event)
      local v = next_of(d)
      assert.equal(C.PERIGEE_VALUE_NUMBER, v.kind)
      return v.number, next_of(d)
    end, 1, 2)
    assert.equal(3, sum)
    assert.is_nil(over)
  end)

  it("reads tables", function()
    calls("list", function(event)
      local d = decoder(event)
      local list = next_of(d)
      assert.equal(2, tonumber(list.length))
      assert.equal(1, tonumber(list.pairs))
      assert.equal(10, next_of(d).number)
      assert.equal(20, next_of(d).number)
      assert.equal("k", text(next_of(d).string, 1))
      local inner = next_of(d)
      assert.equal(1, tonumber(inner.length))
      assert.is_true(next_of(d).boolean)
      assert.equal(C.PERIGEE_VALUE_NIL, next_of(d).kind)
      assert.equal("end", text(next_of(d).string, 3))
      assert.is_nil(next_of(d))
    end)
  end)

  it("reads an error that a handler returns", function()
    calls("error", function(event)
      local d = decoder(event)
      assert.equal(C.PERIGEE_VALUE_NIL, next_of(d).kind)
      local err = next_of(d)
      local at = ffi.new("struct perigee_decoder", d)
      assert.equal(1, field(at, err, "perigee_error").number)
      local kind = field(d, err, "kind")
      assert.equal("not_found", text(kind.string, kind.length))
    end)
  end)

  it("reads how a handler has failed", function()
    local f = calls("raises", failure)
    assert.same({ "remote", 1, "no luck", "E1" },
                { f.status, f.ran, f.text, f.code })
    assert.matches("c_calls_spec.lua", f.traceback)
    assert.equal(7, calls("numbered", failure).code)
    f = calls("add", failure, "no number", 1)
    assert.same({ "remote", 1 }, { f.status, f.ran })
    assert.matches("arithmetic", f.text)
  end)

  it("is told that a key came twice", function()
    local f = calls("add", failure, { "k", "l" }, 1)
    assert.matches("arithmetic", f.text)
    f = calls("add", failure, { "k", "l", "k" }, 1)
    assert.same({ "protocol", 0 }, { f.status, f.ran })
    assert.matches("duplicate table key", f.text)
  end)

  it("reads the kind that a raw handler gave", function()
    local m = native.message_t()
    m.method, m.timeout = id("raw"), 20e9 * cases.slow
    local f = call(client, session, m, failure)
    assert.same({ "denied", 1, "not for you" }, { f.status, f.ran, f.text })
  end)

  it("knows that no handler ran", function()
    local m = message_of(1)
    m.method = 999
    local f = call(client, session, m, failure)
    assert.same({ "no_method", 0 }, { f.status, f.ran })
    assert.is_nil(f.traceback)
    f = calls("lands", failure, client:memory(64))
    assert.same({ "remote", 0 }, { f.status, f.ran })
    assert.matches("nowhere", f.text)
  end)

  it("sends and gets a slice in its place", function()
    client.keeps = true
    local slice = client:memory(100000)
    local bytes = C.perigee_region_pointer(slice.region)
    ffi.copy(bytes, "here", 4)
    calls("slice", function(event)
      local d = decoder(event)
      assert.equal(4, d.place)
      assert.equal("after", text(next_of(d).string, 5))
      assert.equal(1, next_of(d).number)
      assert.equal("here", text(next_of(d).string, 4))
      local v = next_of(d)
      assert.equal(C.PERIGEE_VALUE_SLICE, v.kind)
      assert.equal(100000, tonumber(v.length))
      assert.is_nil(next_of(d))
      C.perigee_pool_free(client.handle, event.landed)
    end, 1, slice, "after")
  end)

  it("serves Lua, which gets its values and its failures", function()
    local child = process.start(c_server)
    local address = child:read()
    local engine = cases.engine()
    local proxy = assert(assert(engine:connect(address,
      { timeout = 10 * cases.slow })):proxy("y", { timeout = 20 * cases.slow }))
    local a, b, c, n = proxy:values(1, { 2, k = { "x" } }, nil)
    assert.same({ 1, { 2, k = { "x" } } }, { a, b })
    assert.is_nil(c)
    assert.is_nil(n)
    local function told(name)
      local got, err = proxy[name](proxy)
      assert.is_nil(got)
      assert.is_true(perigee.is_error(err))
      return err
    end
    local function same(expected, err)
      assert.same(expected, { err.kind, err.code or false,
                              err.remote or false, err.sent })
      assert.is_nil(err.traceback)
      return err.message
    end
    assert.matches("no luck", same({ "remote", 7, true, true }, told "fails"))
    assert.matches("there is none",
                   same({ "not_found", "E1", true, true }, told "found"))
    assert.matches("no method of this name",
                   same({ "no_method", false, false, false }, told "missing"))
    assert.matches("it drains",
                   same({ "closed", "draining", false, false },
                        told "draining"))
    assert.matches("too far", same({ "range", false, true, true },
                                   told "error"))
  end)
end)
