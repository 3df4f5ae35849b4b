-- SPDX-License-Identifier: Apache-2.0
-- Names in Redis, with a server of the spec's own: passwords, TLS, addresses;
-- and servers that are none, or never stop.
local addresses = require "perigee.registry.redis.address"
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"
local redis = require "spec.support.redis"
local registries = require "perigee.registry"
local sockets = require "spec.net.sockets"

local LONG = 30 * cases.slow

local eventually, names, pump = cases.await, backends.names, cases.pump
local watched = backends.watched

needing("Redis", { redis }, function()
  local server, registry

  before_each(function()
    server = redis.start()
    registry = redis.address(cases)
  end)
  after_each(cases.cleanup)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  it("that refuses a password says so, without it", function()
    server:ask "CONFIG SET requirepass right"
    local none, err = take("one", { registry =
      ("redis+unix:%s?password=wrong-one"):format(redis.path(cases)) })
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    assert.is_nil(tostring(err):find("wrong-one", 1, true))
    none, err = take "one"
    assert.is_nil(none)
    assert.equal("denied", err.kind, tostring(err))
  end)

  -- Another server: its port, and that for TLS.
  local function serve_sealed(folder)
    assert(os.execute(("cd '%s' && openssl req -x509 -newkey rsa:2048 -nodes "
      .. "-days 2 -subj /CN=redis -addext subjectAltName=DNS:localhost "
      .. "-keyout key.pem -out cert.pem >/dev/null 2>&1"):format(folder)) == 0)
    local port = tostring(sockets.free_port())
    local tls = tostring(sockets.free_port())
    server:kill()
    server = redis.start("--port", port, "--bind", "127.0.0.1", "--tls-port",
      tls, "--tls-cert-file", folder .. "/cert.pem", "--tls-key-file",
      folder .. "/key.pem", "--tls-ca-cert-file", folder .. "/cert.pem",
      "--tls-auth-clients", "no")
    return port, tls
  end

  it("is spoken to over TCP and TLS, if its certificate is the one trusted",
     function()
    local folder = cases.folder
    local port, tls = serve_sealed(folder)
    local plain = ("redis://localhost:%s/2"):format(port)
    local one = assert(take("one", { registry = plain }))
    assert.equal("one", names(one))
    local at = ("rediss://localhost:%s/2?ca=%s/cert.pem"):format(tls, folder)
    local two = assert(take("two", { registry = at }))
    local told = watched(two)
    eventually(function() return #told == 2 end)
    assert.equal("one two", names(two))
    for _, wrong in ipairs {
      ("rediss://127.0.0.1:%s?ca=%s/cert.pem"):format(tls, folder), -- a name
      ("rediss://localhost:%s"):format(tls),                        -- trust
    } do
      local none, err = take("three", { registry = wrong })
      assert.is_nil(none)
      assert.equal("denied", err.kind, tostring(err))
      assert.matches("TLS", tostring(err))
    end
    -- Several writes to who has hung up are an error, and no signal.
    local command = ([[ASAN_OPTIONS=detect_leaks=0 spec/support/with luajit -e '
      local perigee = require "perigee"
      local agent = assert(perigee.agent { name = "four", scope = "%s",
                                           registry = "%s" })
      assert(agent:lookup "one")
      os.execute "redis-cli -s %s CLIENT KILL TYPE normal >/dev/null"
      local asked = {}
      for i = 1, 4 do asked[i] = agent.registry:lookup("%s", "four") end
      perigee.wait_all(asked, 30)
      assert(agent:lookup "four")
      agent:close()']]):format(cases.scope, at, server.path, cases.scope)
    assert.equal(0, os.execute(command))
    local none, err = take("three", { registry = "redis://no-such.invalid" })
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind, tostring(err))
  end)

  it("that goes amid TLS ends a stream, not who writes to it", function()
    local _, tls = serve_sealed(cases.folder)
    local child = process.start(function(child, perigee_, ffi, port, ca)
      local control = require "perigee.net.native"
      local C, wait = control.C, control.wait_t()
      local to = control.to_t()
      to.host, to.port, to.tls = "localhost", tonumber(port), 1
      to.authorities = ca
      local stream, status = C.perigee_stream_open(to), 0
      while status == 0 do
        perigee_.sleep(0.001)
        status = C.perigee_stream_step(stream, wait)
      end
      local redis_ = C.perigee_redis_open(stream)
      local word, length = control.words_t(1), control.lengths_t(1)
      word[0], length[0] = "PING", 4
      child.say(status == 1 and "connected"
        or ffi.string(C.perigee_stream_why(stream)))
      child.attend()
      for _ = 1, 3 do -- the first is answered that nobody is there
        C.perigee_redis_put(redis_, 1, word, length)
        status = C.perigee_redis_flush(redis_, wait)
        perigee_.sleep(0.05)
      end
      child.say(status < 0 and "ended" or "goes on")
      C.perigee_redis_close(redis_)
      child.say "closed"
    end, tls, cases.folder .. "/cert.pem")
    assert.equal("connected", child:read(LONG, pump))
    server:kill()
    child:tell "go on"
    assert.equal("ended", child:read(LONG, pump))
    assert.equal("closed", child:read(LONG, pump))
  end)

  it("that is not there is an error at once", function()
    server:kill()
    local none, err = take "one"
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind, tostring(err))
    assert.matches("Redis at /", tostring(err))
  end)

  it("is not what answers otherwise", function()
    local child = process.start(function(child, perigee_)
      local engine = perigee_.engine()
      local door = engine:listen("tcp://127.0.0.1:0")
      child.say(door.address:match "%d+$")
      perigee_.sleep(60)
    end)
    local port = child:read(LONG, pump)
    local none, err = take("one", {
      registry = ("redis://127.0.0.1:%s?timeout=1"):format(port) })
    assert.is_nil(none)
    assert.is_truthy(({ protocol = 1, timeout = 1, peer_lost = 1 })[err.kind])
  end)

  it("is lost when it sends without end, but no answer", function()
    local child = process.start(function(child, perigee_)
      local net = require "spec.net.sockets"
      local door, port = net.listen "127.0.0.1"
      child.say(port)
      local fd = net.accept(door)
      local much = ("+"):rep(65536)
      while net.send(fd, much) do perigee_.sleep(0) end
    end)
    local port = child:read(LONG, pump)
    local patience = registries.patience
    finally(function() registries.patience = patience end)
    registries.patience = 5 * cases.slow
    local none, err = take("one", {
      registry = ("redis://127.0.0.1:%s?timeout=0.3"):format(port) })
    assert.is_nil(none)
    local why = tostring(err)
    assert.is_truthy(why:find("it does not answer", 1, true)
      or why:find("what it answers is too large", 1, true), why)
  end)
end)

describe("an address of Redis", function()
  it("says where it is, as whom, and how long names last", function()
    local function read(text)
      local target = assert(addresses.read(text))
      return { target.host or target.path, target.port or 0, target.tls,
               target.user or "", target.password or "", target.database or 0,
               target.ttl or 0 }
    end
    assert.same({ "a.b", 6379, false, "", "", 0, 0 }, read "redis://a.b")
    assert.same({ "a", 7, true, "u", "p:@", 3, 2.5 },
                read "rediss://u:p%3A%40@a:7/3?ttl=2.5")
    assert.same({ "::1", 8, false, "", "x", 0, 0 }, read "redis://:x@[::1]:8/")
    assert.same({ "/run/r", 0, false, "", "", 4, 0 },
                read "redis+unix:/run/r?db=4")
    for _, text in ipairs { "redis:", "redis:a", "redis://a:b:c",
                            "redis+unix:x", "redis://a:99999", "redis://a/x",
                            "redis://a?b=c", "redis://a?ttl=x",
                            "redis://a?ttl=-1" } do
      local none, why = addresses.read(text)
      assert.is_nil(none, text)
      assert.matches("redis://HOST", why)
      local fine, raised = pcall(perigee.agent, { registry = text })
      assert.is_false(fine)
      assert.matches("option registry", raised, 1, true)
    end
  end)

  it("that is wrong is told without its password", function()
    for _, text in ipairs { "redis://me:hidden@a:b:c", "redis://:hidden@a?x=y",
                            "redis://a?x=y&password=hidden&db=2",
                            "redis://me:p@hidden@a:b:c",
                            "redis:me:hidden@a", "redis://a?ttl=0",
                            "redis://a?timeout=0", "redis://a?ttl=inf",
                            "redis://a?db=1.5" } do
      local fine, raised = pcall(perigee.agent, { registry = text })
      assert.is_false(fine)
      assert.is_nil(tostring(raised):find("hidden", 1, true), raised)
    end
  end)
end)
