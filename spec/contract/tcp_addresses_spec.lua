-- SPDX-License-Identifier: Apache-2.0
-- Engines that listen and dial over TCP: valid addresses, when a secret is
-- required, what is told about addresses, and the transport of a session
-- between two processes of one host.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function engine(options)
  options = options or {}
  options.secret = options.secret or ""
  return cases.engine(options)
end

-- Both ends of one session; options may be given to each engine.
local function pair(listener, address, options)
  local dialling = perigee.spawn(function()
    return engine():connect(address, options)
  end)
  local accepted = assert(listener:accept(10))
  return assert(dialling:wait(10)), accepted
end

local function port_of(listener) return listener.address:match(":(%d+)$") end

describe("listening beyond this host", function()
  local said, before

  before_each(function()
    said, before = {}, perigee.log
    perigee.log = function(level, message)
      said[#said + 1] = level .. ": " .. message
    end
  end)

  after_each(function()
    perigee.log = before
    cases.cleanup()
  end)

  for _, address in ipairs { "tcp://0.0.0.0:0", "tcp://[::]:0" } do
    it("is denied without a secret, at " .. address, function()
      local none, err = engine():listen(address)
      assert.is_nil(none)
      assert.equal("denied", err.kind)
      assert.matches("secret", tostring(err), 1, true)
      assert.matches("insecure", tostring(err), 1, true)
      assert.same({}, said)
    end)
  end

  it("needs no more than a secret", function()
    local listener = assert(engine { secret = "some secret of this spec" }
      :listen("tcp://0.0.0.0:0"))
    assert.matches("^tcp://0%.0%.0%.0:%d+$", listener.address)
    assert.same({}, said)
  end)

  it("or that it is meant, which is said", function()
    local listener = assert(engine { insecure = true }
      :listen("tcp://0.0.0.0:0"))
    assert.equal(1, #said)
    assert.matches("^warning: ", said[1])
    assert.matches(listener.address, said[1], 1, true)
    assert.matches("secret", said[1], 1, true)
  end)

  it("does not concern loopback", function()
    assert(engine { insecure = true }:listen("tcp://127.0.0.1:0"))
    assert(engine():listen("tcp://[::1]:0"))
    assert(engine():listen("tcp://localhost:0"))
    assert.same({}, said)
  end)
end)

describe("an address of TCP", function()
  after_each(cases.cleanup)

  it("with port 0 becomes one with the port that was free", function()
    local listener = assert(engine():listen("tcp://127.0.0.1:0"))
    assert.matches("^tcp://127%.0%.0%.1:%d+$", listener.address)
    assert.is_true(tonumber(port_of(listener)) > 0)
  end)

  it("is taken by one listener at a time, and free again at once", function()
    local listening = engine()
    local first = assert(listening:listen("tcp://127.0.0.1:0"))
    local none, err = engine():listen(first.address)
    assert.is_nil(none)
    assert.equal("name_taken", err.kind)
    assert(pair(first, first.address))
    first:close()
    assert.equal(first.address,
                 assert(listening:listen(first.address)).address)
  end)

  it("may be one of several of an engine", function()
    local listening = engine()
    local listeners = {
      assert(listening:listen("tcp://127.0.0.1:0")),
      assert(listening:listen("tcp://[::1]:0")),
      assert(listening:listen("tcp://127.0.0.1:0")),
      assert(listening:listen(cases.address("several"))),
    }
    for _, listener in ipairs(listeners) do
      local ours, theirs = pair(listener, listener.address)
      assert.equal(listener.address, ours:explain().address)
      assert.equal(listener.address, theirs:explain().address)
    end
  end)

  it("may name a host, all of whose addresses are tried", function()
    if not io.open "/etc/hosts" then return pending "there is no /etc/hosts" end
    local listener = assert(engine():listen("tcp://127.0.0.1:0"))
    assert(pair(listener, "tcp://localhost:" .. port_of(listener)))
  end)

  it("that nobody listens at is not_found", function()
    local listener = assert(engine():listen("tcp://127.0.0.1:0"))
    local address = listener.address
    listener:close()
    local none, err = engine():connect(address, { timeout = 10 })
    assert.is_nil(none)
    assert.equal("not_found", err.kind)
    assert.is_false(err.sent)
    assert.matches(address, tostring(err), 1, true)
  end)

  it("of a host that nobody knows is not_found, and names it", function()
    local none, err = engine():connect("tcp://no..host:7471", { timeout = 10 })
    assert.is_nil(none)
    assert.equal("not_found", err.kind)
    assert.matches("no..host", tostring(err), 1, true)
  end)

  it("that this host has not is not listened at", function()
    local none, err = engine { insecure = true }:listen("tcp://203.0.113.9:0")
    assert.is_nil(none)
    assert.equal("not_found", err.kind)
  end)

  it("is misused where it is none, and what to write is said", function()
    local dialling = engine()
    for text, said in pairs {
      ["tcp://host"] = "has no port", ["tcp://::1:7471"] = "brackets",
      ["tcp://*:7471"] = "0.0.0.0", ["tcp://:7471"] = "names no host",
      ["tcp://host:x"] = "has to be a number",
      ["tcp://[fe80::1]:1"] = "name the interface",
    } do
      for _, method in ipairs { "listen", "connect" } do
        local fine, err = pcall(dialling[method], dialling, text)
        assert.is_false(fine)
        assert.matches(said, tostring(err), 1, true)
      end
    end
    assert.has_error(function() dialling:connect("tcp://127.0.0.1:0") end)
  end)
end)

-- Listens at the given address and prints the address in use.
local function listening(child, perigee_, _, address)
  local listener = assert(assert(perigee_.engine { secret = "" })
    :listen(address))
  child.say(listener.address)
  perigee_.run(function()
    while listener:accept(60) do end
  end)
end

describe("a session between two processes of one host", function()
  after_each(cases.cleanup)

  local function dial(address, transport)
    local child = process.start(listening, address)
    local session = assert(engine():connect(assert(child:read()),
      { timeout = 10, transport = transport }))
    return session:explain(), child
  end

  it("called over TCP, is carried by shared memory", function()
    for _, transport in ipairs { "auto", "shm" } do
      local told, child = dial("tcp://127.0.0.1:0", transport)
      assert.equal("shm", told.transport)
      assert.equal(child.pid, told.pid)
      assert.matches("moved", tostring(told), 1, true)
    end
  end)

  it("called over TCP for tcp, is carried by that", function()
    assert.equal("tcp", dial("tcp://127.0.0.1:0", "tcp").transport)
  end)

  it("called at a path for tcp, is carried by TCP over loopback", function()
    local told, child = dial(cases.address("moves"), "tcp")
    assert.equal("tcp", told.transport)
    assert.equal(child.pid, told.pid)
    assert.matches("loopback", tostring(told), 1, true)
  end)
end)
