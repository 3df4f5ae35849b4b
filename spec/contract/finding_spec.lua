-- SPDX-License-Identifier: Apache-2.0
-- Finding agents by their names where that is not simple: some of their
-- addresses are dead, their registry is away, or they have moved. Over names in
-- Redis, with a server of the spec's own.
local cases = require "spec.support.cases"
local backends = require "spec.support.backends"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local LONG = 20 * cases.slow

local eventually, pump = cases.await, cases.pump

-- Has the name "one", and listens at TCP beside its socket.
local function worker(child)
  local agent = assert(child.cases.agent("one", {
    registry = require("spec.support.redis").address(child.cases),
    listen = "tcp://127.0.0.1:0" }))
  agent:serve { name = "x", methods = { same = function(x) return x end } }
  assert(agent.engine:alloc(64, { name = "kv", access = "rw" }))
  child.say(agent.addresses[1])
  for line in child.attend do
    if line == "hang up" then
      for _, session in pairs(agent.engine.sessions) do session:close() end
      child.say("done")
    end
  end
end

local function silent(child)
  local door = assert(child.cases.engine():listen "tcp://127.0.0.1:0")
  child.say(door.address)
  child.hear()
end

needing("an agent", { redis }, function()
  local server, registry

  before_each(function()
    server = redis.start()
    registry = redis.address(cases)
  end)
  after_each(cases.cleanup)

  local function take(name, options)
    return assert(backends.take(registry, name, options))
  end

  local function start()
    local child = process.start(worker)
    return child, assert(child:read(LONG, pump))
  end

  it("is found behind addresses that are dead or silent", function()
    local mute = process.start(silent)
    local hole = assert(mute:read(LONG, pump))
    mute:signal "STOP"
    local one = take("one", { listen = "tcp://127.0.0.1:0" })
    local list = { "unix:/no/such.sock", "tcp://127.0.0.1:1", hole,
                   one.addresses[1] }
    local two = take()
    local lookup = registry and two.registry.lookup
    finally(function() two.registry.lookup = nil end)
    function two.registry.lookup(...)
      return perigee.spawn(function(...)
        local entry = assert(lookup(...):wait())
        entry.addresses = list
        return entry
      end, ...)
    end
    local session = assert(two:session("one", { timeout = LONG }))
    assert.equal(one.addresses[1], session.address)
    session:close()
    mute:signal "CONT"
  end)

  it("is found again while its registry is away, where it was last", function()
    local child = start()
    local two = take()
    local proxy = assert(two:proxy("one", "x", { reconnect = 60,
                                                 timeout = 60 }))
    local before = perigee.session(proxy)
    server:kill()
    assert.equal(7, proxy:same(7))
    child:tell "hang up"
    child:expect("done", LONG, pump)
    before:ended():wait(LONG)
    assert.equal(8, (proxy:same(8)))
    assert.is_not.equal(before, perigee.session(proxy))
    assert.equal(before.epoch, perigee.session(proxy).epoch)
  end)

  it("is told of as stale while its registry is away", function()
    local child, address = start()
    local two = take "two"
    assert.is_nil(assert(two:lookup "one").stale)
    local three = take "three"
    assert(three:watch({}, function() end))
    local watch = next(three.watches)
    eventually(function() return watch.known.one and watch.known.two end)
    server.process:signal "STOP"
    for agent, names in pairs { [two] = "one", [three] = "one three two" } do
      local none, err, last = agent:lookup("one", { timeout = 0.05 })
      assert.is_nil(none)
      assert.equal("timeout", err.kind)
      assert.is_true(last.stale)
      assert.equal(address, last.addresses[2])
      none, err, last = agent:list { timeout = 0.05 }
      assert.is_nil(none)
      assert.equal("timeout", err.kind)
      local text = {}
      for i, entry in ipairs(last) do
        text[i] = entry.name
        assert.is_true(entry.stale)
      end
      assert.equal(names, table.concat(text, " "))
      none, err, last = agent:lookup("nobody", { timeout = 0.05 })
      assert.is_nil(none or last)
      assert.equal("timeout", err.kind)
    end
    server.process:signal "CONT"
    eventually(function()
      local entry = two:lookup "one"
      return entry and not entry.stale
    end)
    child:kill()
    eventually(function()
      local none, err = two:lookup "one"
      return not none and err.kind == "not_found"
    end)
  end)

  it("that a watch has told of is connected to without a look-up", function()
    local one, two = take "one", take "two"
    assert(two:watch({ prefix = "on" }, function() end))
    local watch = next(two.watches)
    eventually(function() return watch.known.one end)
    local lookup, asked = two.registry.lookup, 0
    finally(function() two.registry.lookup = nil end)
    function two.registry.lookup(...)
      asked = asked + 1
      return lookup(...)
    end
    local session = assert(two:session "one")
    assert.equal(0, asked)
    session:close()
    watch.known.one = { name = "one", addresses = { "unix:/no/such.sock" } }
    two.peers.one.tries = 0             -- as after a longer session
    assert.equal(session.epoch, assert(two:session "one").epoch)
    assert.equal(1, asked)
    one:close()
  end)

  it("that comes back at another port is found by who waits for it", function()
    local child = start()
    local two = take()
    local proxy = assert(two:proxy("one", "x", { reconnect = 60,
                                                 timeout = 60 }))
    for round = 1, 3 do
      local before = perigee.session(proxy)
      child:kill()
      before:ended():wait(LONG)
      local call = perigee.spawn(function() return proxy:same(round) end)
      repeat
        child = process.start(worker)
        local fine = pcall(child.read, child, LONG, pump)
      until fine
      assert.equal(round, (call:wait(60)))
      assert.is_not.equal(before.epoch, perigee.session(proxy).epoch)
    end
    for watch in pairs(two.watches) do assert.is_true(watch.over) end
  end)
end)
