-- SPDX-License-Identifier: Apache-2.0
-- Services between C programs and Lua agents: a C program opens services of a
-- Lua agent, and a Lua agent has proxies of a C agent's. The C program is one
-- engine, used by the functions of perigee.h alone.
local bare = require "spec.hostile.bare"
local cases = require "spec.support.cases"
local ffi = require "ffi"
local native = require "perigee.native"
local process = require "spec.support.process"

local C = native.C

local function server(child)
  child.serve { name = "x", version = 3, methods = {
    add = function(a, b) return a + b end,
    raw = { raw = true, function(request) return request end },
    copy = { inplace = true, capacity = 100, function(request, reply)
      return reply:write(request)
    end },
    put = { idempotent = true, landing = function() return nil, "no" end,
            function() end },
  } }
end

-- Answers descriptions with any values: the service's name is Lua code.
local function liar(child, perigee)
  local agent = assert(child.cases.agent("liar"))
  agent.engine.methods[0].handler = function(code)
    return assert(loadstring("return " .. code))()
  end
  child.say("ready")
  perigee.run()
end

-- ---- A C program that opens services ---------------------------------------

local TIMEOUT = 20e9 * cases.slow
local out = ffi.new("struct perigee_service *[1]")

local function detail(client) return native.detail(client.handle) end

local function open(client, session, name)
  local status = C.perigee_service_open(session, name, TIMEOUT, out)
  if status == 0 then return out[0] end
  return nil, ffi.string(C.perigee_status_name(status)), detail(client)
end

local function methods_of(service)
  local list, all = ffi.new("struct perigee_method[1100]"), {}
  local each = ffi.sizeof("struct perigee_method")
  for i = 0, C.perigee_service_methods(service, list, each, 1100) - 1 do
    local m = list[i]
    all[#all + 1] = { ffi.string(m.name), m.kind, m.flags,
                      tonumber(m.capacity) }
  end
  return all
end

local function method_of(service, name)
  local m = ffi.new("struct perigee_method")
  local status = C.perigee_service_method(service, name, m, ffi.sizeof(m))
  if status == 0 then return m end
  return nil, ffi.string(C.perigee_status_name(status)), native.detail(nil)
end

local function sum_of(session, id, a, b)
  local e, m = ffi.new("struct perigee_encoder"), native.message_t()
  local room, event = ffi.new("uint8_t[64]"), native.events_t(1)
  C.perigee_encode_begin(e, room, 64)
  C.perigee_encode_number(e, a)
  C.perigee_encode_number(e, b)
  m.head, m.length = room, C.perigee_encode_end(e)
  m.flags, m.timeout = C.PERIGEE_TYPED + C.PERIGEE_CHECKED, TIMEOUT
  m.method = id
  assert.equal(0, C.perigee_call_wait(session, m, event))
  local d, v = ffi.new("struct perigee_decoder"),
    ffi.new("struct perigee_value")
  assert.equal(0, C.perigee_decode_event(d, event))
  assert.equal(1, C.perigee_decode(d, v))
  return v.number
end

describe("a C program", function()
  local client, agent

  local function dial(name)
    local address = assert(agent:lookup(name)).addresses[1]
    return assert(client:dial(address, os.getenv "PERIGEE_TRANSPORT",
                              10 * cases.slow))
  end

  setup(function()
    process.start(server):expect("ready")
    agent = assert(cases.agent())
    client = assert(bare.new {})
  end)

  teardown(function()
    C.perigee_engine_close(client.handle)
    cases.cleanup()
  end)

  it("opens a service of a Lua agent and calls it", function()
    local session = dial "worker"
    local service = assert(open(client, session, "x"))
    assert.equal(3, tonumber(C.perigee_service_version(service)))
    assert.same({ { "add", 0, 0, 0 }, { "copy", 2, 0, 100 },
                  { "put", 0, 3, 0 }, { "raw", 1, 0, 0 } },
                methods_of(service))
    assert.equal(3, sum_of(session, method_of(service, "add").id, 1, 2))
    local none, kind, text = method_of(service, "sub")
    assert.same({ nil, "no_method" }, { none, kind })
    assert.equal("service x has no method sub; it has add, copy, put and raw",
                 text)
    C.perigee_service_close(service)
    client:hang_up(session)
  end)

  it("is told which services there are", function()
    local session = dial "worker"
    local none, kind, text = open(client, session, "y")
    assert.same({ nil, "no_service" }, { none, kind })
    assert.matches("^opening service y of worker: there is no service y here; "
                   .. "there is x$", text)
    for _, name in ipairs { "", ("n"):rep(256) } do
      assert.equal("invalid", select(2, open(client, session, name)))
    end
    client:hang_up(session)
  end)

  it("knows by what name the peer goes", function()
    local session, info = dial "worker", native.info_t()
    C.perigee_session_describe(session, info, ffi.sizeof(info))
    assert.equal("worker", ffi.string(info.name))
    client:hang_up(session)
  end)

  it("believes no peer", function()
    process.start(liar):expect("ready")
    local session = dial "liar"
    local long = "(function() local m = {} for i = 1, 1025 do m['m' .. i] = "
      .. "{ id = i, kind = 'raw' } end return { version = 1, methods = m } "
      .. "end)()"
    for _, code in ipairs {
      "7", "'text'", "{}", "nil", "nil, 7", "{ version = 1 }",
      "{ version = 1, methods = 7 }", "{ version = -1, methods = {} }",
      "{ version = 0.5, methods = {} }", "{ version = 2^60, methods = {} }",
      "{ version = 0/0, methods = {} }", "{ version = '1', methods = {} }",
      "{ version = 1, methods = { 'a' } }",
      "{ version = 1, methods = { [7.5] = {} } }",
      "{ version = 1, methods = { a = 7 } }",
      "{ version = 1, methods = { a = {} } }",
      "{ version = 1, methods = { a = { id = 65536, kind = 'raw' } } }",
      "{ version = 1, methods = { a = { id = 'x', kind = 'raw' } } }",
      "{ version = 1, methods = { a = { id = -1, kind = 'raw' } } }",
      "{ version = 1, methods = { close = { id = 1, kind = 'raw' } } }",
      "{ version = 1, methods = { [''] = { id = 1, kind = 'raw' } } }",
      "{ version = 1, methods = { [('n'):rep(256)] = { id = 1 } } }",
      long, "error 'no'",
    } do
      local none, kind, text = open(client, session, code)
      assert.same({ code, nil, "protocol" }, { code, none, kind })
      assert.matches("^opening service ", text)
    end
    local service = assert(open(client, session, "{ version = 0, more = {}, "
      .. "methods = { a = { id = 9, kind = 'new' }, b = { id = 1, kind = 'raw',"
      .. " landing = 7, capacity = 'x', x = { { 1 }, k = {} } }, "
      .. "['z\\0'] = { id = 2, kind = 'raw' } } }"))
    assert.same({ { "b", 1, 0, 0 } }, methods_of(service))
    C.perigee_service_close(service)
    local many = assert(open(client, session, (long:gsub("1025", "1024"))))
    assert.equal(1024, #methods_of(many))
    C.perigee_service_close(many)
    client:hang_up(session)
  end)
end)

-- ---- A C agent --------------------------------------------------------------

-- Run in a child: the C agent "c", until it is stopped. Handlers answer with
-- what came; `caller` answers with the peer's name.
local function c_agent(child, _, ffi_, count)
  local peer = assert(require("spec.hostile.bare").new {})
  local lib = require "perigee.native"
  local c = lib.C
  local made = ffi_.new("struct perigee_agent *[1]")
  local options = ffi_.new("struct perigee_agent_options")
  options.size, options.name = ffi_.sizeof(options), "c"
  options.scope = child.cases.scope
  assert(c.perigee_agent_open(peer.handle, options, made) == 0,
         lib.detail(peer.handle))
  local each = ffi_.sizeof("struct perigee_method")
  local list = ffi_.new("struct perigee_method[?]", 1024)
  local names = {}
  local function serve(service, version, methods)
    for i, m in ipairs(methods) do
      local at = list[i - 1]
      at.name, at.kind, at.flags, at.capacity = m[1], m[2], m[3] or 0, m[4] or 0
    end
    assert(c.perigee_agent_serve(made[0], service, version, list, each,
                                 #methods) == 0, lib.detail(peer.handle))
    for i, m in ipairs(methods) do names[list[i - 1].id] = m[1] end
  end
  serve("echo", 2, { { "typed", 0 }, { "raw", 1 }, { "inplace", 2, 0, 100 },
                     { "caller", 1 }, { "again", 0, 2 }, { "lands", 0, 1 } })
  local many = {}
  for i = 1, tonumber(count) do many[i] = { ("method_%04d"):format(i), 0 } end
  serve("many", 1, many)
  local message, info = lib.message_t(), lib.info_t()
  local memory = peer:memory(65536)
  local bytes = ffi_.new("uint8_t[?]", 4096)
  local values = ffi_.new("struct perigee_encoder")
  local v, d = ffi_.new("struct perigee_value"),
    ffi_.new("struct perigee_decoder")
  local function typed(event)
    c.perigee_encode_begin(values, bytes, 4096)
    assert(c.perigee_decode_event(d, event) == 0)
    while c.perigee_decode(d, v) == 1 do
      if v.kind ~= c.PERIGEE_VALUE_SLICE then
        c.perigee_encode_value(values, v)
      else
        c.perigee_encode_number(values, tonumber(v.length))
      end
    end
    message.head, message.length = bytes, c.perigee_encode_end(values)
    message.flags = c.PERIGEE_TYPED + c.PERIGEE_CHECKED
  end
  local function handle(event)
    local request = event.kind == c.PERIGEE_EVENT_REQUEST
    if not request and event.kind ~= c.PERIGEE_EVENT_LANDING then return end
    if c.perigee_agent_answer(made[0], event) ~= 0 then return end
    if not request then
      return assert(c.perigee_land(peer.handle, event.operation, memory) == 0)
    end
    message.head, message.length = event.pointer, event.length
    message.flags = 0
    if names[event.method] == "caller" then
      local session = c.perigee_session(peer.handle, event.session)
      c.perigee_session_describe(session, info, ffi_.sizeof(info))
      message.head, message.length = info.name, #ffi_.string(info.name)
    elseif bit.band(event.flags, c.PERIGEE_TYPED) ~= 0 then
      typed(event)
    end
    assert(c.perigee_reply(peer.handle, event.operation, message) >= 0)
  end
  child.say "ready"
  while true do peer:attend(1, handle) end
end

describe("a C agent", function()
  local agent, proxy

  setup(function()
    process.start(c_agent, "900"):expect("ready")
    agent = assert(cases.agent("caller"))
    proxy = assert(agent:proxy("c", "echo", { timeout = 20 * cases.slow }))
  end)

  teardown(cases.cleanup)

  it("serves typed, raw and inplace methods to Lua", function()
    assert.same({ 1, "two", { 3, k = 4 } },
                { proxy:typed(1, "two", { 3, k = 4 }) })
    assert.equal("again", proxy:again "again")
    for _, n in ipairs { 0, 1, 64, 8192, 8193, 16384, 16385, 300000 } do
      local bytes = cases.bytes(n)
      assert.equal(bytes, proxy:raw(bytes))
      assert.equal(bytes, proxy:with { capacity = 400000 }:inplace(bytes))
    end
  end)

  it("refuses as a Lua agent does", function()
    local none, err = proxy:nothing()
    assert.same({ nil, "no_method" }, { none, err.kind })
    none, err = agent:proxy("c", "other")
    assert.same({ nil, "no_service" }, { none, err.kind })
    assert.matches("there is no service other here; there is echo and many",
                   err.message, 1, true)
    none, err = agent:proxy("c", "echo", { version = 3 })
    assert.same({ nil, "version" }, { none, err.kind })
    assert.matches("it has version 2", err.message)
    none, err = proxy:with { capacity = 50 }:inplace "x"
    assert.same({ nil, "too_large", false }, { none, err.kind, err.sent })
    assert.matches("echo.inplace needs a capacity of 100 bytes at least, and "
                   .. "is offered 50", err.message, 1, true)
  end)

  it("refuses numbers of no method, and data of another kind", function()
    local client = assert(bare.new {})
    local address = assert(agent:lookup("c")).addresses[1]
    local session = assert(client:dial(address, os.getenv "PERIGEE_TRANSPORT",
                                       10 * cases.slow))
    local service = assert(open(client, session, "echo"))
    local event, failed = native.events_t(1), ffi.new("struct perigee_failure")
    local function refused(method, given)
      local m = native.message_t()
      m.method, m.timeout = method, TIMEOUT
      if given.typed then m.flags = C.PERIGEE_TYPED end
      if given.slice then m.slice = given.slice end
      m.head, m.length = given.bytes, given.bytes and #given.bytes or 0
      local status = C.perigee_call_wait(session, m, event)
      C.perigee_failure_read(event, failed, ffi.sizeof(failed))
      return ffi.string(C.perigee_status_name(status)),
        ffi.string(failed.text, failed.text_length), failed.ran
    end
    local raw, typed = method_of(service, "raw").id,
      method_of(service, "typed").id
    local none = "no typed method has this id"
    local nil_ = "\0"
    local PLACED = "\0\6\1\0\0\0" -- nil, and the place 1 of a slice
    assert.same({ "no_method", none, 0 },
                { refused(60000, { typed = true, bytes = nil_ }) })
    assert.same({ "no_method", none, 0 },
                { refused(raw, { typed = true, bytes = nil_ }) })
    assert.same({ "no_method", "no raw method has this id", 0 },
                { refused(typed, { bytes = "x" }) })
    assert.same({ "no_method", "no raw method has this id", 0 },
                { refused(0, { bytes = "x" }) })
    local slice = client:memory(100)
    assert.same({ "no_method", none, 0 },
                { refused(raw, { typed = true, bytes = PLACED,
                                 slice = slice }) })
    assert.same({ "denied", "describe takes no slice", 0 },
                { refused(0, { typed = true, bytes = PLACED,
                               slice = slice }) })
    C.perigee_service_close(service)
    client:close()
  end)

  it("gets slices, by its landing or in pooled blocks", function()
    local region = cases.alloc(agent.engine, 5000)
    assert.same({ "k", 5000 }, { proxy:lands("k", region:slice()) })
    assert.same({ 5000, "k" }, { proxy:typed(region:slice(), "k") })
  end)

  it("tells of long descriptions and knows its callers", function()
    local many = assert(agent:proxy("c", "many"))
    assert.equal(7, many:method_0900(7))
    assert.equal(8, many:method_0001(8))
    assert.equal("caller", proxy:caller "")
    local client = assert(bare.new {})
    local session = assert(client:dial(assert(agent:lookup("c")).addresses[1],
                                       os.getenv "PERIGEE_TRANSPORT",
                                       10 * cases.slow))
    local service = assert(open(client, session, "many"))
    assert.equal(900, #methods_of(service))
    C.perigee_service_close(service)
    client:close()
  end)

  -- Runs `perigee WORDS` in this run's scope.
  local function command(words)
    local pipe = io.popen(("env -u PERIGEE_TRANSPORT PERIGEE_SCOPE=%s luajit "
      .. "lua/perigee/cli/perigee %s 2>&1"):format(cases.scope, words))
    local told = pipe:read "*a"
    pipe:close()
    return told
  end

  it("is described and called by the command perigee", function()
    local told = command "describe c"
    for _, part in ipairs { "echo", "many", "typed", "inplace" } do
      assert.matches(part, told, 1, true)
    end
    assert.equal("7\n", command "call c echo.typed 7")
    assert.equal("bytes", command "call c echo.raw '\"bytes\"'")
    assert.matches("there is no service other here",
                   command "call c other.typed", 1, true)
  end)

  it("is listed with its services", function()
    local entry = assert(agent:lookup "c")
    assert.same({ echo = 2, many = 1 }, entry.services)
  end)
end)
