-- SPDX-License-Identifier: Apache-2.0
-- Registries that a program gives: their calls, and when these are made.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local native = require "perigee.native"
local outside = require "perigee.agent.outside"
local perigee = require "perigee"
local process = require "spec.support.process"
local registries = require "perigee.registry"
local tables = require "spec.support.table_registry"

local sockets, wrong = tables.sockets, tables.wrong

-- Seconds. An agent that a busy machine keeps from asking for so long loses its
-- name to the entry that is there.
local TTL = 0.6 * cases.slow

describe("a registry", function()
  local names, registry, asked

  before_each(function() registry, names, asked = tables.new() end)
  after_each(tables.finish)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  it("has three functions", function()
    for _, value in ipairs { 7, {}, { hold = print, lookup = print },
                             { hold = print, lookup = print, release = 7 } } do
      local fine, why = pcall(perigee.agent, { registry = value })
      assert.is_false(fine)
      assert.matches("hold, release and lookup", why)
    end
    assert.equal("", sockets())
  end)

  it("may be named by its address", function()
    for _, value in ipairs { "", "disk", "folder:", "folder:names", "x://y" } do
      local fine, why = pcall(perigee.agent, { registry = value })
      assert.is_false(fine)
      assert.matches("by its address: .*folder:/", why)
    end
    local there = "folder:" .. cases.folder .. "/there"
    local one = assert(cases.agent("one", { registry = there .. "/" }))
    assert.matches("/there/" .. cases.scope .. "/one.sock", one.address, 1,
                   true)
    local two = assert(cases.agent(nil, { registry = there }))
    assert.equal("one", assert(two:session "one").peer)
    wrong("not_found", "one", assert(cases.agent()):session "one")
    wrong("name_taken", "process " .. one:lookup "one".pid,
          cases.agent("one", { registry = there }))
  end)

  it("may be named by the environment", function()
    local child = process.start(function(child, perigee_, ffi_)
      local there = "folder:" .. child.cases.folder .. "/env"
      ffi_.C.spec_setenv("PERIGEE_REGISTRY", there, 1)
      local agent = assert(perigee_.agent { name = "env",
                                            scope = child.cases.scope })
      child.say(agent.address)
      agent:close()
      ffi_.C.spec_setenv("PERIGEE_REGISTRY", "nonsense", 1)
      child.say((select(2, pcall(perigee_.agent)):gsub("\n", " ")))
    end)
    assert.matches("/env/" .. cases.scope .. "/env.sock", child:read(30), 1,
                   true)
    assert.matches("environment's PERIGEE_REGISTRY must be", child:read(30), 1,
                   true)
  end)

  it("is given the addresses by which others reach the agent", function()
    local one = assert(take("one", { listen = "tcp://0.0.0.0:0",
                                     insecure = true }))
    local port = one.addresses[1]:match "%d+$"
    assert.same({ one.address, "tcp://" .. names.one.host .. ":" .. port },
                names.one.addresses)
    local six = outside.interfaces
    local LINES = "20010db8000000000000000000000005 02 40 %s %s eth0\n"
    outside.interfaces = function()
      return "00000000000000000000000000000001 01 80 10 80 lo\n"
        .. LINES:format("00", "80") .. LINES:format("00", "01")
        .. LINES:format("20", "80")
    end
    local four = assert(take("four", { listen = "tcp://[::]:0",
                                       insecure = true }))
    outside.interfaces = function() return "" end
    local five = assert(take("five", { listen = "tcp://[::]:0",
                                       insecure = true }))
    outside.interfaces = six
    assert.equal("tcp://[2001:0db8:0000:0000:0000:0000:0000:0005]:"
      .. four.addresses[1]:match "%d+$", names.four.addresses[2])
    assert.equal(2, #names.four.addresses)
    assert.equal("tcp://" .. names.five.host .. ":"
      .. five.addresses[1]:match "%d+$", names.five.addresses[2])
    local two = assert(take("two", { listen = "tcp://127.0.0.1:0",
                                     advertise = "tcp://10.1.2.3:7" }))
    assert.same({ two.address, "tcp://10.1.2.3:7" }, names.two.addresses)
    assert(take("three", { advertise = { "tcp://a:1", "tcp://b:2" } }))
    assert.same({ "tcp://a:1", "tcp://b:2" },
                { unpack(names.three.addresses, 2) })
    local deep = {}
    for _ = 1, 23 do deep = { deep } end
    for _, odd in ipairs { { text = ("x"):rep(4096) }, { deep = deep },
      { x = 0 / 0 },
      { x = 1 / 0 }, { x = "\255" }, { x = { 1, x = 2 } }, { [3] = 1 },
      { [true] = 1 }, { x = print }, { x = 1LL }, { "a list" } } do
      local fine, why = pcall(perigee.agent, { metadata = odd })
      assert.is_false(fine)
      assert.matches("option metadata", why, 1, true)
    end
    for address, why in pairs { ["tcp://[::1]:99999"] = "from 0 to 65535",
      ["tcp://::1:5"] = "in brackets", ["tcp://a:0"] = "port 0",
      ["unix:/x.sock"] = "no tcp://", ["tcp://a b:1"] = "is no name" } do
      for _, given in ipairs { address, { "tcp://a:1", address } } do
        local fine, said = pcall(function()
          return (perigee.agent { advertise = given })
        end)
        assert.is_false(fine)
        assert.matches("^[^:]*registry_spec.lua:%d+: option advertise", said)
        assert.matches(why, said, 1, true)
      end
    end
    for option, value in pairs { advertise = "bar", kind = "a b",
                                 weight = -1 } do
      local fine, why = pcall(perigee.agent, { [option] = value })
      assert.is_false(fine)
      assert.matches("option " .. option, why, 1, true)
    end
  end)

  it("is not told of an agent whose name is false, which can ask it", function()
    local one = assert(take "one")
    local asking = assert(perigee.agent { name = false, registry = registry,
                                           scope = cases.scope })
    assert.is_nil(names[asking.name])
    assert.equal("one", assert(asking:lookup "one").name)
    assert.equal("one", assert(asking:session "one").peer)
    asking:close()
    one:close()
  end)

  it("that cannot list or watch says so", function()
    local one = assert(take "one")
    wrong("unsupported", "listing scope", one:list())
    wrong("unsupported", "watching scope", one:watch({}))
    assert.equal(one.address, one:lookup "one".addresses[1])
  end)

  it("may tell nonsense to who lists or watches", function()
    local one = assert(take "one")
    for _, junk in ipairs { 7, true, { 7 }, { {} }, { { name = "x" } },
                            { { name = 7, addresses = { "tcp://a:1" } } } } do
      registry.list = function() return junk end
      wrong("protocol", "no list of entries", one:list())
      local told = 0
      registry.watch = function()
        told = told + 1
        return told == 1 and { entries = junk } or told == 2
          and { changes = junk } or told == 3 and junk
          or { revision = "1", entries = { { name = "x", addresses =
               { "tcp://a:1" } } } }
      end
      local change = assert(one:watch({}))()
      assert.equal("up x", change.kind .. " " .. change.entry.name)
    end
  end)

  it("may say of services that they are no table, to who watches for one",
     function()
    local one = assert(take "one")
    local asks = 0
    function registry.watch()
      asks = asks + 1
      return perigee.spawn(function()
        local services = asks > 1 and { calc = 1 } or true
        return { revision = "1", entries = { { name = "x", services = services,
                 addresses = { "tcp://a:1" } } } }
      end)
    end
    local change = assert(one:watch { service = "calc" })()
    assert.equal("up x 1", ("%s %s %d"):format(change.kind, change.entry.name,
                                               change.entry.services.calc))
  end)

  it("may tell of what is nested deep, again and again", function()
    local one = assert(take "one")
    local asks = 0
    function registry.watch()
      local deep = {}
      for _ = 1, 60 do deep = { deep } end
      asks = asks + 1
      return { revision = "1", entries = { { name = "x", metadata = deep,
               kind = asks > 2 and "new" or nil,
               addresses = { "tcp://a:1" } } } }
    end
    local watch = assert(one:watch {})
    assert.equal("up", watch().kind)
    assert.equal("changed", watch().kind)
    watch:close()
  end)

  it("is told no more of an agent whose engine was closed", function()
    local renewed = 0
    registry.ttl = TTL
    function registry:renew() renewed = renewed + 1 return true end
    local one = assert(take "one")
    assert(one.engine:alloc(64, { name = "kv" }))
    assert.is_true(cases.eventually(function() return renewed > 0 end))
    local two = assert(cases.agent "two")
    one.engine:close()
    local before = renewed
    perigee.sleep(TTL)
    assert.equal(before, renewed)
    assert.is_true(assert(two:session "two") ~= nil)
    one:close()
  end)

  it("with a ttl is told three times in it, until another has the name",
     function()
    local renewed, answer = {}, true
    registry.ttl = TTL
    function registry:renew(held, entry)
      renewed[#renewed + 1] = { held, entry }
      if answer == true then return true end
      return nil, answer, "another"
    end
    local one = assert(take "one")
    local held = names.one
    assert.is_true(cases.eventually(function() return #renewed >= 3 end))
    assert.same({ held }, renewed[2])
    one:serve { name = "x", methods = {} }
    assert.is_true(cases.eventually(function()
      for _, each in ipairs(renewed) do
        if each[2] and each[2].services.x == 1 then return true end
      end
    end))
    answer = "peer_lost"
    local before = #renewed
    assert.is_true(cases.eventually(function()
      return #renewed >= before + 2
    end))
    assert.equal("one", renewed[#renewed][2].name) -- it is passed again
    answer = "name_taken"
    before = #renewed
    assert.is_true(cases.eventually(function() return #renewed > before end))
    before = #renewed
    perigee.sleep(TTL)
    assert.equal(before, #renewed)
  end)

  it("with a ttl is asked for a name again by who has slept past its time",
     function()
    local renewed, told = 0, 0
    registry.ttl = 30
    function registry:renew() renewed = renewed + 1 return true end
    local one = assert(take "one")
    one:on_lost(function() told = told + 1 end)
    -- The host sleeps for a minute: its uptime goes on, and no timer does.
    local uptime, before = native.uptime, renewed
    finally(function() native.uptime = uptime end)
    function native.uptime() return uptime() + 60e9 end
    names.one = nil
    one:serve { name = "x", methods = {} }
    assert.is_true(cases.eventually(function()
      return renewed > before or asked.hold > 1
    end))
    assert.equal(before, renewed)
    assert.is_true(cases.eventually(function()
      return told == 1 and one.held
    end))
    one:close()
  end)

  it("is asked now and then while it says at once that time is over",
     function()
    local renewed = 0
    function registry:renew()
      renewed = renewed + 1
      return nil, "timeout", "no"
    end
    local began = process.now()
    local one = assert(take "one")
    assert(one.engine:alloc(64, { name = "kv" }))
    assert.is_true(cases.eventually(function() return renewed > 1 end))
    perigee.sleep(0.5)
    -- Once in a second, and as often as something of the agent has changed.
    assert.is_true(renewed <= process.now() - began + 5, renewed)
    one:close()
  end)

  it("goes on being renewed and watched after a stop", function()
    local renewed, told = 0, 0
    registry.ttl = TTL
    function registry:renew() renewed = renewed + 1 return true end
    local one = assert(take "one")
    local two = assert(cases.agent "two")
    assert(two:watch({}, function() told = told + 1 end))
    perigee.run(function() perigee.stop() perigee.sleep(1) end)
    local before = renewed
    assert.is_true(cases.eventually(function()
      return renewed > before and told > 0
    end))
    told = 0
    assert(cases.agent "three")
    assert.is_true(cases.eventually(function() return told > 0 end))
    one:close()
  end)

  it("is given entries that tell of the agent", function()
    local one = assert(take("one", { listen = "tcp://127.0.0.1:0" }))
    local entry = names.one
    assert.equal("one", entry.name)
    assert.equal(cases.scope, entry.scope)
    assert.same({ one.address, one.addresses[1] }, entry.addresses)
    assert.matches("^tcp://127.0.0.1:[1-9]", one.addresses[1])
    assert.equal(assert(assert(take()):session "one").epoch, entry.epoch)
    assert.equal(require "perigee.native".pid(), entry.pid)
    assert.is_true(#entry.host > 0)
  end)

  it("is asked to release what it has held, once", function()
    local one = assert(take "one")
    assert.same({ hold = 1, release = 0, lookup = 0 }, asked)
    one:close()
    one:close()
    assert.same({ hold = 1, release = 1, lookup = 0 }, asked)
    assert.is_nil(next(names))
  end)

  it("is asked to release what a rendezvous has held that a stop ends",
     function()
    local final = "anonymous-m-start-1-final"
    function registry:renew(held, entry)
      names[held.name] = entry or names[held.name]
      return true
    end
    function registry:list()
      if names[final] then return perigee.spawn(perigee.sleep, 60) end
      local list = {}
      for _, entry in pairs(names) do list[#list + 1] = entry end
      return list
    end
    local one = assert(take "one")
    perigee.run(function()
      perigee.spawn(one.rendezvous, one, "start", 1, 60)
      cases.await(function() return names[final] end)
      perigee.stop()
    end)
    local left = {}
    for name in pairs(names) do left[#left + 1] = name end
    assert.same({ "one" }, left)
    one:close()
  end)

  it("is asked before each dial, and not where there is a session", function()
    local one, two = assert(take "one"), assert(take())
    local session = assert(two:session "one")
    for _ = 1, 3 do assert.equal(session, two:session "one") end
    assert.equal(1, asked.lookup)
    session:close()
    assert(two:session "one")
    assert.equal(2, asked.lookup)
    one:close()
    assert(take "one")
    assert(two:session "one")
    assert.is_true(asked.lookup >= 3)
  end)

  it("finds what has moved while it lives", function()
    local one, two = assert(take "one"), assert(take())
    local kept = assert(two:session("one", { keep = true, reconnect = 20 }))
    local door = assert(one.engine:listen("tcp://127.0.0.1:0"))
    names.one = { addresses = { "tcp://127.0.0.1:1", door.address } }
    table.remove(names.one.addresses, 1)
    local session = assert(kept:session(5))
    local theirs = assert(cases.eventually(function()
      for _, each in pairs(one.engine.sessions) do
        if each.accepted then return each end
      end
    end))
    assert.is_true(theirs)
    for _, each in pairs(one.engine.sessions) do each:close() end
    session:ended():wait(10)
    assert.equal(door.address, assert(kept:session(20)).address)
  end)

  it("tells of several addresses: a socket that is here is dialled first",
     function()
    local one, two = assert(take "one"), assert(take())
    local addresses = registries.addresses
    assert.same({ one.address, "tcp://a:1" },
                addresses { addresses = { "tcp://a:1", "unix:/no",
                                          one.address, "tcp://a:1" } })
    assert.same({ "tcp://a:1", "tcp://b:1" },
                addresses { addresses = { "unix:/no", "tcp://a:1",
                                          "tcp://b:1" } })
    assert.same({ "unix:/no" }, addresses { addresses = { "unix:/no" } })
    local many = { one.address }
    for i = 1, 1000 do many[i + 1] = "tcp://a:" .. i end
    assert.equal(16, #addresses { addresses = many })
    for i = 1, 1000 do many[i] = "unix:/etc/passwd/" .. i end
    assert.equal(16, #addresses { addresses = many })
    names.one.addresses = { "unix:/no/such.sock", one.address }
    assert.equal(one.address, assert(two:session "one").address)
  end)

  it("that has somebody else at an address is found out", function()
    assert(take "one")
    local two = assert(take "two")
    names.three = { addresses = { two.address } }
    wrong("denied", "three", assert(take()):session "three")
  end)

  it("that has what is dead says so", function()
    names.dead = { addresses = { "unix:/no/such.sock" } }
    wrong("not_found", "its registry has it at unix:/no/such.sock",
          assert(take()):session "dead")
  end)
end)
