-- SPDX-License-Identifier: Apache-2.0
-- Agents that are found by address: where they listen, who is let in, and that
-- everything else works as with names.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

-- A secret of this form is not stretched; each child would have to do that.
local SECRET = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="

-- Serves "x" at the given addresses and prints the addresses in use.
local function server(child, perigee_, _, listen, secret, scope)
  local list = {}
  for each in listen:gmatch("%S+") do list[#list + 1] = each end
  local agent = assert(perigee_.agent {
    scope = scope, listen = list, secret = secret,
    services = { { name = "x", version = 1, methods = {
      same = function(x) return x end,
      nap = function(seconds) perigee_.sleep(seconds) end,
      often = { idempotent = true, function(x) return x end },
      echo = { raw = true, function(request) return request end },
    } } } })
  child.say(unpack(agent.addresses))
  perigee_.run()
  agent:close()
end

local function serve(listen, secret, scope)
  local child = process.start(server, listen or "tcp://127.0.0.1:0",
                              secret or SECRET, scope or cases.scope)
  local list = {}
  for each in assert(child:read()):gmatch("%S+") do list[#list + 1] = each end
  return child, unpack(list)
end

local function agent_with(options)
  options.secret = options.secret or SECRET
  return assert(cases.agent(nil, options))
end

describe("an address", function()
  after_each(cases.cleanup)

  it("names a peer as a name does", function()
    local _, address = serve()
    local agent = agent_with {}
    local proxy = assert(agent:proxy(address, "x", { timeout = 5 }))
    assert.equal(3, (proxy:same(3)))
    assert.equal("bytes", (proxy.async:echo("bytes"):wait(5)))
    local text = cases.bytes(2 ^ 20)
    assert.is_true(proxy:echo(text) == text)
    local session = assert(agent:session(address))
    assert.equal(session, (agent:session(address)))
    assert.equal("x", (assert(agent:proxy(address, "x")):same("x")))
    assert.equal(1, agent.engine:stats().sessions)
    local none, err = agent:proxy(address, "y")
    assert.is_nil(none)
    assert.equal("no_service", err.kind)
    assert.matches(address, tostring(err), 1, true)
    none, err = agent:proxy(address, "x", { version = 2 })
    assert.is_nil(none)
    assert.equal("version", err.kind)
  end)

  it("may be one of several, and a socket's path", function()
    cases.address("x")
    local _, first, second, third = serve("tcp://127.0.0.1:0 tcp://localhost:0 "
      .. cases.address("x"))
    assert.equal(cases.address("x"), third)
    for _, address in ipairs { first, second, third } do
      assert.is_nil(address:match("^tcp.*:0$"))
      local proxy = assert(agent_with {}:proxy(address, "x", { timeout = 5 }))
      assert.equal(address, (proxy:same(address)))
    end
  end)

  it("is said in the error when nobody is there", function()
    local child, address = serve()
    child:close()
    local agent = agent_with {}
    for _, each in ipairs { address, cases.address("nobody") } do
      local none, err = agent:proxy(each, "x", { timeout = 5 })
      assert.is_nil(none)
      assert.equal("not_found", err.kind, tostring(err))
      assert.is_false(err.sent)
      assert.matches(each, tostring(err), 1, true)
      none, err = agent:session(each, { timeout = 5 })
      assert.is_nil(none)
      assert.matches(each, tostring(err), 1, true)
    end
  end)

  it("that is none is refused", function()
    local agent = agent_with {}
    for _, each in ipairs { "tcp//x", "a/b", "ftp:/x", "" } do
      assert.has_error(function() agent:proxy(each, "x") end)
    end
    for _, each in ipairs { "tcp://", "tcp://x", "tcp://[::1]", "unix:/" } do
      local fine, none, err = pcall(agent.proxy, agent, each, "x",
                                    { timeout = 1 })
      assert.is_true(not fine or (none == nil and perigee.is_error(err)), each)
    end
  end)

  it("answers to the name that is expected, and to no other", function()
    local _, address = serve()
    local agent = agent_with { transport = "tcp" }
    local none, err = agent.engine:connect(address, { timeout = 10,
                                                      expect = "another:0" })
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    local name = tostring(err):match(
      "another:0 was dialled, and who answers is ([%w-]+)")
    local session = assert(agent.engine:connect(address, { timeout = 10,
                                                           expect = name }))
    session:close()
    assert.has_error(function()
      agent.engine:connect(address, { expect = "no name/at all" })
    end)
  end)

  it("is explained: by whom it is carried, and how safely", function()
    local _, address = serve()
    local agent = agent_with { transport = "tcp", encrypt = true,
                               dead_after = 5 }
    local session = assert(agent:session(address))
    local told = session:explain()
    assert.equal("tcp", told.transport)
    assert.equal("option transport", told.forced)
    assert.equal("option transport asks for tcp", told.considered.shm)
    assert.equal("option transport asks for tcp", told.considered.verbs)
    assert.is_nil(told.considered.tcp)
    assert.is_true(told.authenticated)
    assert.equal("string", type(told.encrypted))
    local text = tostring(told)
    for _, part in ipairs { told.encrypted, told.security, "not by shm",
                            "as option transport asks" } do
      assert.matches(part, text, 1, true)
    end
    agent:close()
    agent = agent_with { transport = "tcp", secret = "" }
    session = assert(agent:session(select(2, serve(nil, ""))))
    told = session:explain()
    assert.is_false(told.authenticated)
    assert.is_false(told.encrypted)
    assert.matches("not authenticated", told.security)
    session:close()
    assert.equal("tcp", session:explain().transport)
  end)

  it("is found again when its worker was restarted", function()
    local child, address = serve()
    local agent = agent_with {}
    local proxy = assert(agent:proxy(address, "x", { timeout = 10 }))
    local session = assert(agent:session(address))
    local flying = proxy.async:nap(60)
    perigee.sleep(0.05)
    child:kill()
    local got, err = flying:wait(5)
    assert.is_nil(got)
    assert.equal("peer_lost", err.kind)
    assert.is_true(cases.eventually(function() return not session.handle end))
    local waiting = proxy.async:same("waited")
    local often = proxy.async:often("often")
    perigee.sleep(0.05)
    child = process.start(server, address, SECRET, cases.scope)
    child:expect(address, 10, function() perigee.sleep(0.001) end)
    local listened = process.now()
    assert.equal("waited", (waiting:wait(10)))
    assert.is_true(process.now() - listened < cases.slow)
    assert.equal("often", (often:wait(10)))
    assert.equal(1, (proxy:same(1)))
  end)
end)

describe("an agent", function()
  after_each(cases.cleanup)

  it("tells where it listens", function()
    local agent = assert(cases.agent("worker", { listen = "tcp://127.0.0.1:0",
                                                 secret = SECRET }))
    assert.equal(1, #agent.addresses)
    assert.matches("^tcp://127.0.0.1:%d%d+$", agent.addresses[1])
    local none, err = cases.agent(nil, { listen = agent.addresses[1],
                                         secret = SECRET })
    assert.is_nil(none)
    assert.equal("name_taken", err.kind)
    assert.matches(agent.addresses[1], tostring(err), 1, true)
    assert.same({}, assert(cases.agent()).addresses)
    local address = agent.addresses[1]
    agent:close()
    assert(cases.agent("worker", { listen = address, secret = SECRET }))
  end)

  it("needs a secret where others can connect, or to be insecure", function()
    local none, err = cases.agent(nil, { listen = "tcp://0.0.0.0:0" })
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    assert.matches("secret", tostring(err))
    local said = {}
    local before = perigee.log
    perigee.log = function(level, message) said[level] = message end
    local agent = assert(cases.agent(nil, { listen = "tcp://0.0.0.0:0",
                                            insecure = true }))
    perigee.log = before
    assert.matches("without a secret", said.warning)
    assert.matches("tcp://0.0.0.0", said.warning, 1, true)
    agent:close()
  end)

  it("lets nobody in who has another secret, or another scope's", function()
    local _, address = serve(nil, SECRET, "one")
    for _, options in ipairs {
      { scope = "one", secret = "another secret, just as long" },
      { scope = "two", secret = SECRET }, { scope = "one", secret = "" } } do
      local agent = assert(perigee.agent(options))
      local none, err = agent:proxy(address, "x", { timeout = 5 })
      agent:close()
      assert.is_nil(none)
      assert.equal("denied", err.kind, tostring(err))
      assert.is_false(err.sent)
      assert.matches(address, tostring(err), 1, true)
    end
    for _, secret in ipairs { SECRET, { one = SECRET, two = "other" } } do
      local agent = assert(perigee.agent { scope = "one", secret = secret })
      assert.equal(5, (assert(agent:proxy(address, "x")):same(5)))
      agent:close()
    end
  end)

  it("takes a secret from a file of this user's alone", function()
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(SECRET, "\n")
    file:close()
    local _, address = serve()
    os.execute("chmod 644 " .. path)
    local none, err = cases.agent(nil, { secret = "file:" .. path })
    assert.is_nil(none)
    assert.matches(path, tostring(err), 1, true)
    os.execute("chmod 600 " .. path)
    local agent = assert(cases.agent(nil, { secret = "file:" .. path }))
    os.remove(path)
    assert.equal(7, (assert(agent:proxy(address, "x")):same(7)))
  end)

  it("has its scope's secret of several, or says that there is none", function()
    local fine, message = pcall(function()
      perigee.agent { scope = "three", secret = { one = SECRET } }
    end)
    assert.is_false(fine)
    assert.matches("three", message)
    assert.matches("addresses_spec.lua:", message)
  end)

  it("takes options of the right type only", function()
    for name, value in pairs { listen = 7, secret = 7, insecure = 1,
                               encrypt = "yes", dead_after = "3",
                               streams = 1.5 } do
      local fine, message = pcall(function()
        perigee.agent { scope = cases.scope, [name] = value }
      end)
      assert.is_false(fine)
      assert.matches(name, message)
      assert.matches("addresses_spec.lua:", message)
    end
    for _, listen in ipairs { { 7 }, { "tcp://localhost:0", x = "y" } } do
      assert.has_error(function()
        perigee.agent { scope = cases.scope, listen = listen }
      end)
    end
  end)
end)
