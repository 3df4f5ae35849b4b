-- SPDX-License-Identifier: Apache-2.0
-- Sessions: listening, dialling, refusals, servers that do not speak Perigee's
-- protocol, and what a session tells about itself.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

local function accepting(child, perigee_)
  local engine = child.cases.engine()
  local listener = assert(engine:listen(child.cases.address()))
  child.say("ready")
  perigee_.run(function()
    while listener:accept(30) do end
  end)
end

-- Listens but does not speak Perigee's protocol: "silent", "garbage" or "hangs
-- up".
local function stranger(child, _, ffi_, how)
  ffi_.cdef [[
    struct spec_address { unsigned short family; char path[108]; };
    int socket(int, int, int);
    int bind(int, const struct spec_address *, unsigned);
    int listen(int, int);
    int accept(int, void *, void *);
    long write(int, const void *, size_t);
    int close(int);
  ]]
  local path = child.cases.address():match("^unix:(.*)")
  local address = ffi_.new("struct spec_address", 1, path)
  local fd = ffi_.C.socket(1, 1, 0)
  if ffi_.C.bind(fd, address, ffi_.sizeof(address)) ~= 0 then
    fd = ffi_.C.socket(1, 5, 0)
    ffi_.C.bind(fd, address, ffi_.sizeof(address))
  end
  ffi_.C.listen(fd, 16)
  child.say("ready")
  while true do
    local peer = ffi_.C.accept(fd, nil, nil)
    if how == "garbage" then
      local text = ("\255GARBAGE"):rep(500)
      ffi_.C.write(peer, text, #text)
    end
    if how ~= "silent" then ffi_.C.close(peer) end
  end
end

describe("connect", function()
  after_each(cases.cleanup)

  it("to nobody is not_found", function()
    local engine = cases.engine()
    local none, err = engine:connect(cases.address("nobody"), { timeout = 1 })
    assert.is_nil(none)
    assert.equal("not_found", err.kind)
    assert.is_false(err.sent)
  end)

  it("to the leftover of a dead listener is not_found", function()
    process.start(accepting):expect("ready"):kill()
    local engine = cases.engine()
    local none, err = engine:connect(cases.address(), { timeout = 1 })
    assert.is_nil(none)
    assert.is_true(err.kind == "not_found" or err.kind == "peer_lost")
    os.remove((cases.address():gsub("^unix:", "")))
    process.start(accepting):expect("ready")
    assert(engine:connect(cases.address(), { timeout = 5 }))
  end)

  it("with a transport that there is not is unsupported", function()
    process.start(accepting):expect("ready")
    local engine = cases.engine()
    local none, err = engine:connect(cases.address(),
                                     { timeout = 5, transport = "pigeon" })
    assert.is_nil(none)
    assert.equal("unsupported", err.kind)
    assert.matches("pigeon", tostring(err))
    assert(engine:connect(cases.address(), { timeout = 5 }))
  end)

  it("to something else of another kind is refused", function()
    local engine = cases.engine()
    for _, address in ipairs { "nonsense", "", "unix:", "ftp:/x" } do
      local fine, none, err = pcall(engine.connect, engine, address,
                                    { timeout = 1 })
      assert.is_true(not fine or (none == nil and perigee.is_error(err)))
    end
  end)

  for _, how in ipairs { "silent", "garbage", "hangs up" } do
    it("to a stranger that is " .. how .. " ends in an error", function()
      process.start(stranger, how):expect("ready")
      local engine = cases.engine()
      local started = process.now()
      local none, err = engine:connect(cases.address(), { timeout = 0.5 })
      assert.is_nil(none)
      local fine = { timeout = true, protocol = true, peer_lost = true }
      assert.is_true(fine[err.kind] or false, err.kind)
      if how == "silent" then assert.equal("timeout", err.kind) end
      assert.is_true(process.now() - started < 2 * cases.slow)
    end)
  end
end)

describe("accept", function()
  after_each(cases.cleanup)

  it("gives sessions, or nil after its timeout", function()
    local engine = cases.engine()
    local listener = assert(engine:listen(cases.address()))
    local none, err = listener:accept(0.05)
    assert.is_nil(none)
    assert.equal("timeout", err.kind)
    local other = cases.engine()
    local dialled = perigee.spawn(function()
      return other:connect(cases.address(), { timeout = 5 })
    end)
    local accepted = assert(listener:accept(5))
    local session = assert(dialled:wait(5))
    local a, b = engine:alloc(4096), other:alloc(4096)
    local receive = accepted:recv(a:slice(0, 10))
    assert(session:send(b:slice(0, 7)):wait(5))
    assert.equal(7, (receive:wait(5)))
  end)

  it("is not disturbed by strangers", function()
    local child = process.start(accepting):expect("ready")
    local path = cases.address():match("^unix:(.*)")
    ffi.cdef [[
      struct spec_dial { unsigned short family; char path[108]; };
      int spec_socket(int, int, int) __asm__("socket");
      int spec_connect(int, const struct spec_dial *, unsigned)
        __asm__("connect");
      long spec_write(int, const void *, size_t) __asm__("write");
    ]]
    local address, fds = ffi.new("struct spec_dial", 1, path), {}
    for i = 1, 200 do
      local kind = i % 2 == 0 and 1 or 5
      local fd = ffi.C.spec_socket(1, kind + 0x800, 0)
      fds[i] = fd
      if ffi.C.spec_connect(fd, address, ffi.sizeof(address)) == 0
        and i % 3 == 0 then
        ffi.C.spec_send(fd, ("junk"):rep(100), 400, 0x4000)
      end
      if i % 5 == 0 then ffi.C.spec_close(fd) fds[i] = nil end
    end
    local engine = cases.engine()
    local session
    assert.is_true(cases.eventually(function()
      session = engine:connect(cases.address(), { timeout = 5 })
      return session
    end, 10))
    for _, fd in pairs(fds) do ffi.C.spec_close(fd) end
    local memory = child:number("status", "VmRSS")
    assert.is_true(memory < 128 * 1024 or cases.sanitized, memory)
  end)
end)

describe("a session", function()
  after_each(cases.cleanup)

  it("explains itself, as a table and as text", function()
    process.start(accepting):expect("ready")
    local _, session = cases.connect()
    local told = session:explain()
    assert.equal("table", type(told))
    assert.equal("string", type(told.transport))
    assert.is_true(#tostring(told) > 40)
    assert.matches(told.transport, tostring(told), 1, true)
    for name, why in pairs(told.considered) do
      assert.is_true(name ~= told.transport)
      assert.matches(("not by %s: %s"):format(name, why), tostring(told), 1,
                     true)
    end
    assert.is_truthy(next(told.considered))
    assert.is_true(told.same_host)
    assert.matches(told.security, tostring(told), 1, true)
    assert.matches(told.liveness, tostring(told), 1, true)
    if told.transport ~= "verbs" then   -- dialled by a path, without a secret
      assert.matches("the same user, as the kernel t", told.security, 1, true)
    end
    if told.transport == "shm" then
      assert.matches("off for shared memory", told.security)
    end
    session:close()
    assert.is_true(#tostring(session:explain()) > 10)
  end)

  -- Rings that become longer have room for longer payloads.
  it("agrees on what travels in its rings, by its transport", function()
    process.start(accepting):expect("ready")
    local shared = select(2, cases.connect()):explain().transport == "shm"
    local function most(options)
      local session = assert(cases.engine(options)
                             :connect(cases.address(), { timeout = 5 }))
      return session:explain().limits.eager
    end
    assert.equal(shared and 16384 or 8192, most {})
    assert.equal(shared and 16384 or 8192, most { ring = 2 ^ 17 })
    assert.equal(5000, most { eager = 5000 })
    assert.equal(shared and 3000 or 2048, most { ring = 2 ^ 14, eager = 3000 })
  end)

  -- There are lanes where there could be a GPU.
  local function without_lanes(features)
    local list = {}
    for _, name in ipairs(features) do
      if name ~= "lanes" then list[#list + 1] = name end
    end
    return list
  end

  it("tells the features that both sides have, by name", function()
    process.start(accepting):expect("ready")
    local _, session = cases.connect()
    local told = session:explain()
    assert.same({ "trace", "staging", "drain", "streams", "places", "moves",
                  "windows", "pairs" },
                without_lanes(told.features))
    assert.matches("features: trace, staging, drain, streams, places, " ..
                   "moves, windows, pairs\n",
                   tostring(told):gsub("lanes, ", ""), 1, true)
    local old = cases.engine { features = "-trace" }
    session = assert(old:connect(cases.address(), { timeout = 5 }))
    assert.same({ "staging", "drain", "streams", "places", "moves", "windows",
                  "pairs" },
                without_lanes(session:explain().features))
    assert.has_error(function() perigee.engine { features = "-nothing" } end)
  end)

  it("is carried by what was asked for, and sealed if that was", function()
    process.start(accepting):expect("ready")
    local _, session = cases.connect()
    local told = session:explain()
    local asked = os.getenv("PERIGEE_TRANSPORT") or "auto"
    if asked ~= "auto" then assert.equal(asked, told.transport) end
    local sealed = told.transport == "tcp" and cases.sealed
    assert.equal(sealed, told.carrier:find("sealed", 1, true) ~= nil)
    assert.equal(sealed and "sealed" or nil, told.facts.chunks)
    assert.equal(told.transport == "tcp",
                 type(told.facts.payload_sockets) == "number")
  end)

  it("is counted", function()
    process.start(accepting):expect("ready")
    local engine, session = cases.connect()
    local stats = engine:stats()
    assert.equal(1, stats.sessions)
    for name, value in pairs(stats) do
      assert.equal("number", type(value), name)
    end
    session:close()
    assert.is_true(cases.eventually(function()
      return engine:stats().sessions == 0
    end))
  end)

  it("needs no agent, and there may be several to one peer", function()
    process.start(accepting):expect("ready")
    local engine = cases.engine()
    for _ = 1, 10 do
      assert(engine:connect(cases.address(), { timeout = 5 }))
    end
    assert.equal(10, engine:stats().sessions)
  end)
end)

describe("an agent's sessions", function()
  after_each(cases.cleanup)

  it("are those that it and its peers have opened, while they last", function()
    local one, two, three = assert(cases.agent("one")),
      assert(cases.agent("two")), assert(cases.agent("three"))
    assert.same({}, one:sessions())
    local to_two = assert(one:session "two")
    local from_three = assert(three:session "one")
    assert.is_true(cases.eventually(function() return #one:sessions() == 2 end))
    assert.same({ from_three }, three:sessions())
    local list = one:sessions()
    assert.equal(to_two, list[1])
    assert.equal(one.engine, list[2].engine)
    assert.is_true(list[2].accepted)
    from_three:close()
    assert.is_true(cases.eventually(function() return #one:sessions() == 1 end))
    assert.same({ to_two }, one:sessions())
    one:close()
    assert.same({}, one:sessions())
    cases.await(function() return #two:sessions() == 0 end)
  end)
end)
