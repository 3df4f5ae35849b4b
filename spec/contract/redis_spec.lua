-- SPDX-License-Identifier: Apache-2.0
-- Names in Redis, with a server of the spec's own: the state when it is killed,
-- stopped, emptied or full of other keys; access rights; and the commands that
-- it gets.
local acl = require "perigee.registry.redis.acl"
local addresses = require "perigee.registry.redis.address"
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"
local redis = require "spec.support.redis"
local registries = require "perigee.registry"

local LONG = 30 * cases.slow

-- Takes and gives up names as its parent says: "hold NAME", "close".
local function person(child)
  local agent
  child.say("ready")
  for line in child.attend do
    local word, name = line:match "^(%w+) ?(.*)$"
    if word == "hold" then
      local err
      agent, err = child.cases.agent(name, {
        registry = require("spec.support.redis").address(child.cases) })
      child.say(agent and "held" or err.kind)
    else
      if agent then agent:close() end
      child.say("closed")
    end
  end
end

describe("Redis", function()
  if not redis.is_there() then
    it("is to be spoken to", function()
      pending "redis-server or perigee/control.so is missing"
    end)
    return
  end

  local server, registry

  before_each(function()
    server = redis.start()
    registry = redis.address(cases)
  end)
  after_each(cases.cleanup)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  local function key(name)
    return ("'perigee:{%s}:name:%s'"):format(cases.scope, name)
  end

  local function pump() perigee.sleep(0.001) end

  local function eventually(f) return assert.is_true(cases.eventually(f)) end

  local function names(agent)
    local list, text = agent:list(), {}
    for i, entry in ipairs(list or {}) do text[i] = entry.name end
    return table.concat(text, " ")
  end

  local function watched(agent)
    local told = {}
    assert(agent:watch({}, function(change)
      told[#told + 1] = change.kind .. " " .. change.entry.name
    end))
    return told
  end

  it("has names again after it was killed and came back empty", function()
    local one, two = assert(take "one"), assert(take "two")
    local session = assert(two:session "one")
    local told = watched(two)
    eventually(function() return #told == 2 end)
    server:kill()
    local none, err
    for _ = 1, 2 do none, err = two:lookup("one", { timeout = 2 }) end
    assert.is_nil(none)
    assert.is_truthy(({ peer_lost = 1, timeout = 1, closed = 1 })[err.kind],
                     err.kind)
    server:begin()
    eventually(function() return names(two) == "one two" end)
    assert.equal(session, (two:session "one"))
    assert.same({ "up one", "up two" }, told)
    local three = assert(take "three")
    eventually(function() return #told == 3 end)
    one:close()
    eventually(function() return #told == 4 end)
    assert.same({ "up one", "up two", "up three", "down one" }, told)
    three:close()
  end)

  it("has names again after it was emptied", function()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    for _ = 1, 3 do
      server:ask "FLUSHALL"
      eventually(function() return names(one) == "one" end)
    end
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.same({ "up one", "up two" }, told)
  end)

  it("that is stopped is waited for as long as was said", function()
    local one, two = assert(take "one"), assert(take "two")
    local session = assert(two:session "one")
    server.process:signal "STOP"
    for _, f in ipairs { "lookup", "list", "regions" } do
      local none, err = two[f](two, f ~= "list" and "one" or { timeout = 0.05 },
                               { timeout = 0.05 })
      assert.is_nil(none)
      assert.equal("timeout", err.kind, tostring(err))
    end
    assert.is_truthy(session.handle)
    server.process:signal "CONT"
    eventually(function() return names(one) == "one two" end)
  end)

  it("gives the name of the dead to one of two who race for it", function()
    local rounds = math.max(5, math.floor(300 * cases.scale))
    local children = {}
    for i = 1, 2 do
      children[i] = process.start(person):expect("ready", LONG, pump)
    end
    for round = 1, rounds do
      local dead = process.start(person):expect("ready", LONG, pump)
      dead:tell("hold left" .. round)
      dead:expect("held", LONG, pump)
      dead:kill()
      local got = {}
      for i = 1, 2 do children[i]:tell("hold left" .. round) end
      for i = 1, 2 do got[i] = children[i]:read(LONG, pump) end
      table.sort(got)
      assert.same({ "held", "name_taken" }, got)
      for i = 1, 2 do
        children[i]:tell "close"
        children[i]:expect("closed", LONG, pump)
      end
    end
  end)

  it("has no name twice after all took and gave back names", function()
    local one = assert(take "a:b.c-d_e")
    assert.equal(1, tonumber(server:ask("EXISTS " .. key "a%3Ab%2Ec-d_e")))
    assert.equal("a:b.c-d_e", names(one))
    one:close()
    local left = server:ask "DBSIZE"
    assert.equal("1", left)             -- the stream of changes
  end)

  it("has a name that another took while the connection was lost", function()
    local one = assert(take "one")
    local entry = server:ask("GET " .. key "one"):gsub('"one"', '"two"')
    local connection = registries.open(registry).connection
    local ask = connection.ask
    finally(function() connection.ask = nil end)
    function connection.ask(self, commands, ...)
      local replies = ask(self, commands, ...)
      if commands[1][1] == "WATCH" then
        connection.ask = nil
        server:ask(("SET %s '%s' PX 60000"):format(key "two", entry))
        self:lose("peer_lost", "it hung up")
      end
      return replies
    end
    local none, err = take "two"
    assert.is_nil(none)
    assert.equal("name_taken", err.kind, tostring(err))
    assert.equal(entry, server:ask("GET " .. key "two"))
    one:close()
  end)

  it("has a name that another took for good", function()
    local said = {}
    local log = perigee.log
    perigee.log = function(level, text) said[#said + 1] = level .. text end
    local one = assert(take "one")
    local text = server:ask("GET " .. key "one")
    text = text:gsub('"epoch":"%x+"', '"epoch":"0123456789abcdef"')
    server:ask(("SET %s '%s'"):format(key "one", text))
    eventually(function() return #said > 0 end)
    perigee.log = log
    assert.equal(1, #said)
    assert.matches("^error.*keeping the name one in scope", said[1])
    assert.equal(text, server:ask("GET " .. key "one"))
    one:close()
    assert.equal(text, server:ask("GET " .. key "one"))
  end)

  it("may have keys of others among ours", function()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    server:ask(("SET %s junk"):format(key "junk"))
    server:ask(("SET %s '%s'"):format(key "deep", ("["):rep(5000)))
    server:ask(("SET %s '{\"name\":\"other\",\"scope\":\"x\"}'")
      :format(key "other"))
    server:ask(("RPUSH %s a b"):format(key "list"))
    for _, name in ipairs { "junk", "deep", "other", "list", "gone", "%00" } do
      server:ask(("ZADD 'perigee:{%s}:names' 0 '%s'"):format(cases.scope, name))
    end
    server:ask(("XADD 'perigee:{%s}:changes' '*' a b"):format(cases.scope))
    server:ask(("XADD 'perigee:{%s}:changes' '*' name x entry junk")
      :format(cases.scope))
    assert.equal("one", names(one))
    for name, kind in pairs { junk = "name_taken", other = "name_taken",
                              list = "protocol" } do
      local none, err = take(name)
      assert.is_nil(none)
      assert.equal(kind, err.kind, tostring(err))
      none, err = one:lookup(name)
      assert.is_nil(none)
      assert.equal(kind == "protocol" and kind or "not_found", err.kind)
    end
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.same({ "up one", "up two" }, told)
    eventually(function()
      return server:ask(("ZSCORE 'perigee:{%s}:names' gone")
        :format(cases.scope)) == ""
    end)
  end)

  -- Follows what the server is asked: words() gives the commands so far, in
  -- their order.
  local function monitored()
    local seen = cases.folder .. "/monitor"
    local monitor = process.spawn { "sh", "-c", ("exec redis-cli -s '%s' "
      .. "MONITOR > '%s'"):format(server.path, seen) }
    local function text()
      local file = io.open(seen)
      local all = file and file:read "*a" or ""
      if file then file:close() end
      return all
    end
    eventually(function() return text():find "OK" end)
    function monitor.words()
      local list = {}
      for line in text():gmatch "[^\n]+" do
        local word = line:match '%] "(%w+)"'
        if word and not line:find "ACL" then list[#list + 1] = word:upper() end
      end
      return list
    end
    return monitor
  end

  it("is asked by an idle agent to renew its name, by one command, and nothing "
    .. "else", function()
    local one = assert(take("one", { registry = redis.address(cases):gsub(
      "ttl=[%d.]+", "ttl=1") }))
    assert.is_false(one.lease.dirty)
    local monitor = monitored()
    eventually(function() return #monitor.words() >= 3 end)
    for _, word in ipairs(monitor.words()) do assert.equal("GETEX", word) end
    assert.equal("one", names(one))
  end)

  it("that answers with names for ever is not listened to", function()
    local one = assert(take "one")
    local connection = registries.open(registry).connection
    local ask, pages = connection.ask, 0
    finally(function() connection.ask = nil end)
    local page = {}
    for i = 1, 500 do page[i] = ("a%03d"):format(i) end
    function connection.ask(self, commands, ...)
      if commands[1][1] ~= "ZRANGEBYLEX" then
        return ask(self, commands, ...)
      end
      pages = pages + 1
      assert(pages < 100, "it is asked for ever")
      return { page, { "1", "0" } }
    end
    local none, err = one:list()
    assert.is_nil(none)
    assert.equal("protocol", err.kind)
    assert.matches("no names in order", tostring(err), 1, true)
  end)

  it("is asked no command that may stop others, by a user who may little",
     function()
    local monitor = monitored()
    server:ask("ACL SETUSER worker on '>a:b@c' '~perigee:*' +@all "
      .. "-@scripting -@admin -@dangerous")
    local address = ("redis+unix:%s?ttl=1&user=worker&password=a%%3Ab%%40c")
      :format(redis.path(cases))
    local one = assert(take("one", { registry = address }))
    local told = watched(one)
    local two = assert(take("two", { registry = address }))
    eventually(function() return #told == 2 end)
    two:serve { name = "x", methods = {} }
    eventually(function() return #told >= 3 end)
    perigee.sleep(0.5)
    assert.equal("one two", names(one))
    two:close()
    eventually(function() return told[4] end)
    monitor:kill()
    local asked = {}
    for _, word in ipairs(monitor.words()) do asked[word] = true end
    local fine = {}
    for word in acl.COMMANDS:upper():gmatch "%u+" do fine[word] = true end
    assert.is_true(asked.SET and asked.XREAD and asked.GETEX)
    for word in pairs(asked) do assert.is_true(fine[word], word) end
  end)

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
    local free = assert(cases.engine():listen "tcp://127.0.0.1:0")
    local sealed = assert(cases.engine():listen "tcp://127.0.0.1:0")
    local port, tls = free.address:match "%d+$", sealed.address:match "%d+$"
    free:close()
    sealed:close()
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
      local control = require "perigee.control.native"
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
      local sockets = require "spec.net.sockets"
      local door, port = sockets.listen "127.0.0.1"
      child.say(port)
      local fd = sockets.accept(door)
      local much = ("+"):rep(65536)
      while sockets.send(fd, much) do perigee_.sleep(0) end
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
      or why:find("what it answers has no end", 1, true), why)
  end)

  it("has a name until its time is over of who ended without giving it back",
     function()
    local one = assert(take "one")
    local told = watched(one)
    -- A process may leave its connections open: the system closes them.
    local command = ([[ASAN_OPTIONS=detect_leaks=0 spec/support/with luajit -e '
      local agent = assert(require "perigee".agent { name = "two",
        scope = "%s", registry = "%s" })
      agent:watch({}, function() end)
      assert(agent:lookup "two")']]):format(cases.scope, registry)
    assert.equal(0, os.execute(command))
    eventually(function() return #told == 3 end)
    assert.same({ "up one", "up two", "down two" }, told)
    assert.equal(0, os.execute(command))
    assert(take "two")                  -- at once: its address refuses
  end)

  it("goes on after a stop of the loop", function()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    perigee.run(function() perigee.stop() perigee.sleep(1) end)
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.equal("one two", names(one))
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
