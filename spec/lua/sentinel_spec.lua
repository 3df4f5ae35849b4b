-- SPDX-License-Identifier: Apache-2.0
-- Names in a Redis master that Sentinels find: what its callers see while it is
-- replaced by another.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local needing = require "spec.support.needing"
local redis = require "spec.support.redis"
local sentinel = require "spec.support.sentinel"
local sockets = require "spec.net.sockets"

local eventually, names, watched = cases.await, backends.names, backends.watched

needing("Redis under Sentinel", { redis }, function()
  local group, registry

  local function start(options)
    group = sentinel.start(options)
    registry = group:address "&timeout=20"
  end
  after_each(cases.cleanup)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  -- On a slow machine a master may be replaced that only was late.
  local function soon(name, options)
    local agent
    eventually(function()
      agent = take(name, options)
      return agent
    end)
    return agent
  end

  -- Agents one and two with their names, which all servers have.
  local function settle()
    local one, two = soon "one", soon "two"
    local told = watched(one)
    eventually(function() return #told == 2 end)
    for _, server in ipairs(group.servers) do
      eventually(function()
        return server:ask(("ZCARD 'perigee:{%s}:names'"):format(cases.scope))
          == "2"
      end)
    end
    return one, two, told
  end

  local function is_replaced(before)
    eventually(function()
      for i = 1, #group.sentinels do
        local running = group.sentinels[i].process.pid
        if running and group:master(i) == before then return false end
      end
      return true
    end)
  end

  local function goes_on(one, told)
    eventually(function() return names(one) == "one two" end)
    soon "three"
    eventually(function() return #told == 3 end)
    assert.same({ "up one", "up two", "up three" }, told)
  end

  it("that was killed has a successor who has the names", function()
    start { servers = 3, sentinels = 3 }
    local one, two, told = settle()
    local session = assert(two:session "one")
    local before = group:master()
    -- The Sentinel that is asked first dies, too.
    group.sentinels[1]:kill()
    before:kill()
    group.sentinels[1] = group.sentinels[3]
    is_replaced(before)
    goes_on(one, told)
    assert.equal(session, (two:session "one"))
  end)

  it("that falls silent is left when it has a successor", function()
    start()
    local one, _, told = settle()
    local before = group:master()
    before.process:signal "STOP"
    is_replaced(before)
    goes_on(one, told)
    before.process:signal "CONT"        -- for some seconds it is a master, too
    eventually(function() return names(one) == "one three two" end)
    soon "four"
    eventually(function() return #told == 4 end)
    assert.equal("up four", told[4])
  end)

  it("that hands over to another is followed", function()
    start()
    local one, _, told = settle()
    local before = group:master()
    eventually(function()
      return group.sentinels[1]:ask("SENTINEL FAILOVER " .. group.name) == "OK"
    end)
    is_replaced(before)
    goes_on(one, told)
  end)

  it("that came back with nothing has the names again, by themselves",
     function()
    start()
    local one, two, told = settle()
    for _, server in ipairs(group.servers) do server:ask "FLUSHALL" end
    local before = group:master()
    before:kill()
    is_replaced(before)
    eventually(function()               -- they are renewed sooner than usual
      one.lease:changed()
      two.lease:changed()
      return names(one) == "one two"
    end)
    soon "three"                        -- and all know of the new terms
    eventually(function()
      local last = {}
      for _, each in ipairs(told) do last[each:match "%S+$"] = true end
      return last.three
    end)
    assert.same({ "up one", "up two" }, { told[1], told[2] })
    for _, each in ipairs(told) do assert.is_nil(each:match "^down") end
  end)

  it("is no replica, whatever a Sentinel says", function()
    start { servers = 1 }
    local server = group:master()
    server:ask("REPLICAOF 127.0.0.1 " .. sockets.free_port())
    eventually(function()               -- it may be late, and time out
      local none, err = take("one", { registry = group:address "&timeout=2" })
      assert.is_nil(none)
      return err.kind == "peer_lost"
        and tostring(err):find("it is a replica, not the master", 1, true)
    end)
    server:ask "REPLICAOF NO ONE"
    soon "one"
    -- A server that becomes a replica in between is left by who writes to it.
    server:ask("REPLICAOF 127.0.0.1 " .. sockets.free_port())
    local none, err = take "two"
    assert.is_nil(none)
    assert.is_truthy(({ peer_lost = 1, timeout = 1 })[err.kind], tostring(err))
    server:ask "REPLICAOF NO ONE"
    soon "two"
  end)

  it("has names of its own: what is wrong is said", function()
    start { servers = 1 }
    group.sentinels[1]:ask "ACL SETUSER default resetpass '>hidden-s'"
    group.servers[1]:ask "ACL SETUSER default resetpass '>hidden-r'"
    local port, server = group.sentinels[1].port, group.servers[1].port
    for _, case in ipairs {
      { "redis+sentinel://127.0.0.1:%d/mymaster", port, "denied", "NOAUTH" },
      { "redis+sentinel://127.0.0.1:%d/mymaster?sentinel_password=hidden-x",
        port, "denied", "WRONGPASS" },
      { "redis+sentinel://127.0.0.1:%d/other?sentinel_password=hidden-s", port,
        "peer_lost", "knows no master other" },
      { "redis+sentinel://127.0.0.1:%d/m?sentinel_password=hidden-r", server,
        "unsupported", "it is no Sentinel" },
      { "redis://:hidden-s@127.0.0.1:%d", port, "unsupported",
        "redis%+sentinel://HOST/MASTER" },
      { "redis+sentinel://127.0.0.1:%d/mymaster?sentinel_password=hidden-s",
        port, "denied", "NOAUTH" },
    } do
      local address = case[1]:format(case[2])
      address = ("%s%stimeout=%d"):format(address,
        address:find "?" and "&" or "?", case[3] == "peer_lost" and 2 or 20)
      local none, err = take("one", { registry = address })
      assert.is_nil(none)
      assert.equal(case[3], err.kind, tostring(err))
      assert.matches(case[4], tostring(err))
      assert.is_nil(tostring(err):find("hidden", 1, true))
    end
    soon("one", { registry = ("redis+sentinel://:hidden-r@127.0.0.1:%d/"
      .. "mymaster/3?sentinel_password=hidden-s"):format(port) })
  end)

  it("is asked for at one Sentinel after another", function()
    start()
    local port = group.sentinels[1].port
    soon("one", { registry = ("redis+sentinel://127.0.0.1:%d,"
      .. "127.0.0.1:%d/mymaster"):format(sockets.free_port(), port) })
    group.sentinels[1].process:signal "STOP"
    local none, err = take("two", { registry =
      ("redis+sentinel://127.0.0.1:%d/mymaster?timeout=1"):format(port) })
    assert.is_nil(none)
    assert.equal("timeout", err.kind, tostring(err))
    assert.matches("Sentinel at 127", tostring(err))
  end)
end)
