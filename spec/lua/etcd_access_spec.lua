-- SPDX-License-Identifier: Apache-2.0
-- Names in etcd, with servers of the spec's own: users, TLS, addresses; and
-- servers that are none, or answer nonsense.
local addresses = require "perigee.registry.etcd.address"
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local etcd = require "spec.support.etcd"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"
local registries = require "perigee.registry"

local LONG = 30 * cases.slow

local eventually, names, pump = cases.await, backends.names, cases.pump
local watched = backends.watched

needing("etcd", { etcd }, function()
  local cluster, registry

  local function start(options)
    cluster = etcd.start(options)
    registry = etcd.address(cases)
    return cluster
  end

  after_each(cases.cleanup)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  it("is asked as a user, with another token when one is not known any more",
     function()
    local seconds = math.ceil(cases.slow)
    start { words = { "--auth-token-ttl", tostring(seconds),
                      "--bcrypt-cost", "4" } }
    for _, step in ipairs {
      { "auth/user/add", { name = "root", password = "r" } },
      { "auth/user/add", { name = "me:", password = "pass@:/" } },
      { "auth/role/add", { name = "root" } },
      { "auth/role/add", { name = "names" } },
      { "auth/role/grant", { name = "names", perm = { permType = "READWRITE",
        key = "cGVyaWdlZS8=", range_end = "cGVyaWdlZTA=" } } },
      { "auth/user/grant", { user = "root", role = "root" } },
      { "auth/user/grant", { user = "me:", role = "names" } },
      { "auth/enable", { x = nil } },
    } do
      local told = assert(cluster:ask(step[1], step[2]))
      assert.is_nil(told.error, step[1])
    end
    for _, more in ipairs { "", "&user=me%3A&password=wrong-one",
                            "&user=nobody&password=wrong-one" } do
      registry = etcd.address(cases, more)
      local none, err = take "one"
      assert.is_nil(none)
      assert.equal("denied", err.kind, tostring(err))
      assert.is_nil(tostring(err):find("wrong-one", 1, true))
    end
    registry = etcd.address(cases, "&user=me%3A&password=pass%40%3A%2F")
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    local mine = one.registry.cluster
    local token = assert(mine.token)
    eventually(function()
      assert.equal("one", names(one))
      mine.token = token .. "x" -- as if it was forgotten
      assert.equal("one", names(one))
      return mine.token ~= token and mine.token ~= token .. "x"
    end)
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.same({ "up one", "up two" }, told)
  end)

  local function certify()
    local folder = cases.folder
    assert(os.execute(("mkdir -p -m 700 '%s' && cd '%s' && openssl req -x509 "
      .. "-newkey rsa:2048 -nodes -days 2 -subj /CN=etcd -addext "
      .. "subjectAltName=IP:%s -keyout key.pem -out cert.pem >/dev/null 2>&1")
      :format(folder, folder, etcd.host())) == 0)
    return folder
  end

  it("is spoken to over TLS, if its certificate is the one trusted", function()
    local folder = certify()
    start { tls = folder }
    registry = etcd.address(cases, ("&ca=%s/cert.pem"):format(folder))
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.equal("one two", names(one))
    registry = etcd.address(cases)
    local none, err = take "three"
    assert.is_nil(none)
    assert.equal("denied", err.kind, tostring(err))
    registry = registry:gsub("^etcds", "etcd"):gsub("timeout=15", "timeout=0.5")
    none, err = take "three"
    assert.is_nil(none)
    assert.is_truthy(({ protocol = 1, peer_lost = 1, timeout = 1 })[err.kind],
                     err.kind)
    -- It goes amid TLS: that is an error, and no signal.
    cluster:kill()
    none, err = one:lookup("two", { timeout = LONG })
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind)
  end)

  it("that lists the same key again and again is not asked for ever",
     function()
    local base64 = require "perigee.net.base64"
    local web = require "perigee.net.web"
    cases.engine()
    local server = assert(web.open {
      host = "127.0.0.1", port = 0, connections = 10, per_host = 0,
      head = 32768, body = 65536, patience = 30, queued = 2 ^ 20 })
    local is_over, asked, keys = false, 0, "[]"
    local task = perigee.spawn(function()
      while not is_over do
        local list = {}
        server:run(list)
        for _, each in ipairs(list) do
          asked = asked + 1
          each:answer(200, ('{"header":{"revision":"1"},"more":true,"kvs":%s}')
            :format(keys), {})
        end
        if not list[1] then server:wait(1) end
      end
      server:close()
    end)
    local fake = assert(registries.open(
      ("etcd://127.0.0.1:%d?timeout=%g"):format(server.port, LONG)))
    local same = base64.encode("perigee/" .. cases.scope .. "/name/one")
    for _, each in ipairs { "[]", ('[{"key":"%s"}]'):format(same),
                            '[{"key":7}]' } do
      keys = each
      local none, kind = fake:list(cases.scope, {}):wait(LONG)
      assert.is_nil(none)
      assert.equal("protocol", kind)
    end
    assert.is_true(asked < 20, asked)
    is_over = true
    task:wait(LONG)
  end)

  it("that is not there is an error at once", function()
    registry = "etcd://127.0.0.1:1,127.0.0.1:2"
    local none, err = take "one"
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind, tostring(err))
    assert.matches("etcd at 127.0.0.1:1", tostring(err), 1, true)
  end)

  it("is not what answers otherwise", function()
    local child = process.start(function(child)
      local sockets = require "spec.net.sockets"
      local door, port = sockets.listen "127.0.0.1"
      child.say(port)
      for i = 1, 100 do
        local fd = sockets.accept(door)
        local body = ({ "[]", "{}", "null", ("["):rep(100000), '{"error":{}}',
                        '{"header":1,"TTL":[],"ID":2}' })[i % 6 + 1]
        sockets.readable({ fd }, 60)
        sockets.receive(fd)
        sockets.send(fd, ("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s")
          :format(#body, body))
        sockets.close(fd)
      end
    end)
    registry = ("etcd://127.0.0.1:%s?timeout=2"):format(child:read(LONG, pump))
    for _ = 1, 6 do
      local none, err = take "one"
      assert.is_nil(none)
      assert.is_truthy(({ protocol = 1, timeout = 1, peer_lost = 1 })[err.kind],
                       tostring(err))
    end
  end)
end)

describe("an address of etcd", function()
  it("says where it is, as whom, and how long names last", function()
    local function read(text)
      local target = assert(addresses.read(text))
      return { table.concat(target.urls, " "), target.user or "",
               target.password or "", target.ttl or 0, target.timeout or 0,
               target.tls.ca or "" }
    end
    assert.same({ "http://a.b:2379", "", "", 0, 0, "" }, read "etcd://a.b")
    assert.same({ "https://a:7 https://b:2379 https://[::1]:8", "u", "p:@", 2.5,
                  0, "/x" },
                read "etcds://u:p%3A%40@a:7,b,[::1]:8/?ttl=2.5&ca=/x")
    assert.same({ "http://localhost:2379", "u", "x", 0, 3, "" },
                read "etcd://?timeout=3&user=u&password=x")
    for _, text in ipairs { "etcd:", "etcd:a", "etcd://a:b:c", "etcd://a b",
                            "etcd://a:99999", "etcd://a/x", "etcd://a?b=c",
                            "etcd://a?ttl=x", "etcd://a?ttl=-1", "etcd://a:0",
                            "etcd://a?ttl=0", "etcd://a?ttl=inf" } do
      local none, why = addresses.read(text)
      assert.is_nil(none, text)
      assert.matches("etcd://HOST", why)
      local fine, raised = pcall(perigee.agent, { registry = text })
      assert.is_false(fine)
      assert.matches("option registry", raised, 1, true)
    end
  end)

  it("that is wrong is told without its password", function()
    for _, text in ipairs { "etcd://me:hidden@a:b:c", "etcd://:hidden@a?x=y",
                            "etcd://a?x=y&password=hidden",
                            "etcd:me:hidden@a" } do
      local fine, raised = pcall(perigee.agent, { registry = text })
      assert.is_false(fine)
      assert.is_nil(tostring(raised):find("hidden", 1, true), raised)
    end
  end)
end)
