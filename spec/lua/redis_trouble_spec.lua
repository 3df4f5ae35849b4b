-- SPDX-License-Identifier: Apache-2.0
-- What agents are told when a Redis server is slow, full, a replica, loading,
-- too old, a node of a cluster, or grants a user little; and that all goes on
-- when that is over.
local acl = require "perigee.registry.redis.acl"
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local needing = require "spec.support.needing"
local redis = require "spec.support.redis"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow

local eventually, names, watched = cases.await, backends.names, backends.watched

needing("A Redis server", { redis }, function()
  local server

  local function start(...) server = redis.serve { ... } end
  after_each(cases.cleanup)

  -- Options begin with "&". Names last so long that no spec notices.
  local function address(options, of)
    return ("redis://127.0.0.1:%d?ttl=%g&timeout=30%s"):format(
      (of or server).port, 20 * cases.slow, options or "")
  end

  local function take(name, options, more)
    local all = { registry = address(options) }
    for key, value in pairs(more or {}) do all[key] = value end
    return backends.take(all.registry, name, all)
  end

  local function refused(kind, text, got, err)
    assert.is_nil(got)
    assert.equal(kind, err.kind, tostring(err))
    assert.matches(text, tostring(err))
  end

  it("that is slow is waited for, or not, as the caller says", function()
    start()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    local seconds = 2 * cases.slow
    server:ask(("CLIENT PAUSE %d ALL"):format(seconds * 1000))
    refused("timeout", "one", one:lookup("one", { timeout = 0.05 }))
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.equal("one two", names(one))
    assert.same({ "up one", "up two" }, told)
  end)

  it("that is full keeps the names that it has, and takes more when it can",
     function()
    start()
    local one = assert(take("one", "&ttl=" .. 6 * cases.slow))
    server:ask "CONFIG SET maxmemory 1"
    refused("no_memory", "OOM", take "two")
    one:serve { name = "x", methods = {} }
    local before = math.huge
    eventually(function()               -- it is renewed all the same
      local left = tonumber(server:ask(("PTTL 'perigee:{%s}:name:one'")
        :format(cases.scope)))
      local more = left > before
      before = left
      return more
    end)
    assert.is_nil(assert(one:lookup "one").services.x)
    server:ask "CONFIG SET maxmemory 0"
    assert(take "two")
    eventually(function() return assert(one:lookup "one").services.x end)
  end)

  it("that became a replica is read, and written to later", function()
    start()
    local one = assert(take "one")
    server:ask("REPLICAOF 127.0.0.1 " .. sockets.free_port())
    refused("peer_lost", "READONLY", take "two")
    assert.equal("one", names(one))
    server:ask "CONFIG SET replica-serve-stale-data no"
    refused("peer_lost", "MASTERDOWN", one:lookup "one")
    server:ask "REPLICAOF NO ONE"
    assert(take "two")
    assert.equal("one two", names(one))
  end)

  it("that is loading says so, and has the names that it had before", function()
    start("--loading-process-events-interval-bytes", "1024")
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    local others = {}
    for i = 1, 500 do
      others[i] = ("other%d %s"):format(i, ("x"):rep(100))
    end
    server:ask "CONFIG SET rdbcompression no"
    server:ask("MSET " .. table.concat(others, " "))
    assert.equal("OK", server:ask "SAVE")
    server:kill()
    local words = server.words
    server.words = { "--key-load-delay", "50000", unpack(words) }
    server:spawn()
    eventually(function() return server:ask "PING":find "LOADING" end)
    eventually(function()               -- the connection is lost at first
      local none, err = take "two"
      assert.is_nil(none)
      assert.equal("peer_lost", err.kind, tostring(err))
      return tostring(err):find "LOADING"
    end)
    server:ask "CONFIG SET key-load-delay 0"
    eventually(function() return server:ask "PING" == "PONG" end)
    eventually(function() return names(one) == "one" end)
    eventually(function() return take "two" end)
    eventually(function() return #told == 2 end)
    assert.same({ "up one", "up two" }, told)
  end)

  it("that is too old, or has commands of other names, is refused", function()
    start("--rename-command", "HELLO", "")
    refused("unsupported", "Redis 6.2 or later", take "one")
    server:kill()
    start("--rename-command", "XADD", "")
    refused("unsupported", "unknown command 'XADD'", take "one")
  end)

  it("of another version may have entries with more, and with less", function()
    start()
    local one = assert(take "one")
    local path = ("'perigee:{%s}:name:"):format(cases.scope)
    server:ask(("SET %snewer' '%s'"):format(path, ([[{"name":"newer","scope":
      "%s","addresses":["tcp://a:1"],"services":7,"later":{"is":["kept"]},
      "weight":2}]]):format(cases.scope):gsub("%s", "")))
    server:ask(("SET %solder' '%s'"):format(path, ([[{"name":"older","scope":
      "%s","addresses":["tcp://a:1"]}]]):format(cases.scope):gsub("%s", "")))
    server:ask(("ZADD 'perigee:{%s}:names' 0 newer 0 older")
      :format(cases.scope))
    assert.equal("newer older one", names(one))
    local newer = assert(one:lookup "newer")
    assert.same({ is = { "kept" } }, newer.later)
    assert.equal(2, newer.weight)
    assert.is_nil(newer.services)
    refused("name_taken", "holds it", take "older")
  end)

  local function node()
    return redis.serve_with(function(port)
      return { "--port", tostring(port), "--bind", "127.0.0.1", "--save", "",
        "--dir", cases.folder, "--cluster-enabled", "yes",
        "--cluster-config-file", ("%d.nodes"):format(port),
        "--cluster-port", tostring(sockets.free_port()),
        "--loglevel", "warning" }
    end)
  end

  it("that is a node of a cluster serves its scopes, and says whose others are",
     function()
    server = node()
    local other = node()
    refused("peer_lost", "CLUSTERDOWN", take "one")
    server:ask "CLUSTER ADDSLOTSRANGE 0 16383"
    other:ask(("CLUSTER MEET 127.0.0.1 %d %s"):format(server.port,
      server.words[14]))
    eventually(function()
      return server:ask "CLUSTER INFO":find "cluster_state:ok"
        and other:ask "CLUSTER INFO":find "cluster_state:ok"
        and other:ask "CLUSTER NODES":find "0%-16383"
        and server:ask "CLUSTER NODES":find(other:ask "CLUSTER MYID")
    end)
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    refused("unsupported", "MOVED %d+ 127.0.0.1:" .. server.port
      .. ": it is a node of a Redis Cluster.*name the node",
      backends.take(address(nil, other), "two"))
    local key = ("'perigee:{%s}:names'"):format(cases.scope)
    server:ask(("CLUSTER SETSLOT %s MIGRATING %s"):format(
      server:ask("CLUSTER KEYSLOT " .. key), other:ask "CLUSTER MYID"))
    refused("peer_lost", "ASK %d+ 127.0.0.1:" .. other.port, take "two")
    server:ask(("CLUSTER SETSLOT %s STABLE"):format(
      server:ask("CLUSTER KEYSLOT " .. key)))
    assert(take "two")
    eventually(function() return #told == 2 end)
  end)

  -- The command that makes a user, as a shell takes it.
  local function user(name, options)
    local words = {}
    for word in acl.command(name, "s:cret", options):gmatch "%S+" do
      words[#words + 1] = "'" .. word .. "'"
    end
    assert.equal("OK", server:ask(table.concat(words, " ")))
    return ("&user=%s&password=s%%3Acret&db=1"):format(name)
  end

  it("does for a user with no more than the commands that we name", function()
    start()
    local worker = user "worker"
    local monitor = server:monitor()
    local one = assert(take("one", worker .. "&ttl=" .. 3 * cases.slow))
    local told = watched(one)
    local two = assert(take("two", worker))
    two:serve { name = "x", methods = {} }
    eventually(function()
      local entry = one:lookup "two"
      return #told >= 2 and entry and entry.services.x
    end)
    server:ask(("-n 1 ZADD 'perigee:{%s}:names' 0 gone"):format(cases.scope))
    eventually(function()                -- the list sweeps, and one is renewed
      return names(one) == "one two" and monitor.asked().getex
        and server:ask(("-n 1 ZSCORE 'perigee:{%s}:names' gone")
          :format(cases.scope)) == ""
    end)
    two:close()
    eventually(function()
      return table.concat(told, " "):find("down two", 1, true)
    end)
    eventually(function()                -- what monitors comes later
      local asked = monitor.asked()
      return asked.set and asked.xread and asked.del and asked.zrem
    end)
    monitor:kill()
    local fine = {}
    for word in acl.COMMANDS:gmatch "%S+" do fine[word] = true end
    for word in pairs(monitor.asked()) do
      if word ~= "zscore" then assert.is_true(fine[word], word) end
    end
    for word in pairs(fine) do
      assert.equal("", server:ask(("COMMAND LIST FILTERBY ACLCAT dangerous "
        .. "| grep -x %s"):format(word)))
      assert.is_truthy(server:ask("COMMAND INFO " .. word):find(word, 1, true))
    end
  end)

  it("refuses another scope to a user of one, and names to one who reads",
     function()
    start()
    local mine = user("mine", { scope = cases.scope })
    local reader = user("reader", { read = true })
    local one = assert(take("one", mine))
    local told = watched(one)
    refused("denied", "NOPERM", take("two", mine,
      { scope = cases.scope .. "2" }))
    refused("denied", "NOPERM", take("two", reader))
    local at = require "perigee.registry".open(address(reader))
    local entry = at:lookup(cases.scope, "one"):wait(LONG)
    assert.equal("one", entry.name)
    assert.equal(1, #at:list(cases.scope, {}):wait(LONG))
    assert.equal(1, #at:watch(cases.scope, {}):wait(LONG).entries)
    eventually(function() return #told == 1 end)
  end)
end)
