-- SPDX-License-Identifier: Apache-2.0
-- Agents whose registry is a control server: while the server is killed and
-- comes back, with several servers, with tokens, over TLS; and the command.
local addresses = require "perigee.registry.http.address"
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local registries = require "perigee.registry"
local watches = require "perigee.registry.watch"

local eventually, watched = cases.await, backends.watched

needing("a control server as the registry", { control }, function()
  local web = require "perigee.net.web"

  local pretended                     -- a server of this process, or nil

  after_each(function()
    if pretended then pretended() end
    pretended = nil
    cases.cleanup()
  end)

  it("keeps names while it is killed, and tells what happens after", function()
    local server = control.start()
    local registry = control.address(cases)
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    local session = assert(two:session "one")
    local told = watched(two)
    eventually(function() return #told == 2 end)
    for _ = 1, 3 do
      server:kill()
      local none, err = two:lookup "one"
      assert.is_nil(none)
      assert.is_true(err.kind == "peer_lost" or err.kind == "timeout", err.kind)
      server:begin()
      eventually(function() return two:lookup "one" end)
      assert.equal(session.epoch, two:lookup "one".epoch)
    end
    assert.is_false(session.ended and session:ended().ended or false)
    assert.equal(2, #told, table.concat(told, ", "))
    local three = assert(backends.take(registry, "three"))
    eventually(function() return told[3] == "up three" end)
    three:close()
    eventually(function() return told[4] == "down three" end)
    one:close()
    eventually(function() return told[5] == "down one" end)
  end)

  it("takes names again when the server has lost them", function()
    local server = control.start()
    local registry = control.address(cases)
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    server:kill()
    os.execute(("rm -f '%s' '%s-wal' '%s-shm'"):format(server.store,
               server.store, server.store))
    server:begin()
    eventually(function() return two:lookup "one" end)
    assert.equal(assert(two:session "one").epoch, two:lookup "one".epoch)
    one:close()
  end)

  it("is the next one where the first does not answer", function()
    local server = control.start()
    local registry = ("http://127.0.0.1:1,127.0.0.1:%d/?timeout=%g"):format(
      server.port, 20 * cases.slow)
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    assert(two:session "one")
    assert.equal(2, #assert(two:list()))
    one:close()
  end)

  -- Serves as a control server, by answer(request, place), until the test ends.
  -- Returns its port.
  local function pretend(answer)
    cases.engine()
    local server = assert(web.open {
      host = "127.0.0.1", port = 0, connections = 100, per_host = 0,
      head = 32768, body = 65536, patience = 30, queued = 2 ^ 20 })
    local n = 0
    local task = perigee.spawn(function()
      while not server.over do
        local list = {}
        local wait = server:run(list)
        for _, each in ipairs(list) do
          n = n + 1
          answer(each, n)
        end
        if not list[1] and wait ~= 0 then
          server:wait(wait < 0 and 10 or math.min(10, wait))
        end
      end
      server:close()
    end)
    function pretended()
      server.over = true
      task:wait(60 * cases.slow)
    end
    return server.port
  end

  local EVENTS = { "Content-Type", "text/event-stream" }

  local function all_of(names)
    local texts = {}
    for i, name in ipairs(names) do
      texts[i] = ('{"name":%s,"scope":"%s","addresses":["a"],"epoch":"1"}')
        :format(name, cases.scope)
    end
    return ('event: all\nid: 1\ndata: {"entries":[%s]}\n\n'):format(
      table.concat(texts, ","))
  end

  it("is as good as before when a stream of its has ended", function()
    local streams = {}
    local port = pretend(function(request, n)
      streams[n] = request:stream(200, EVENTS)
      streams[n]:tell(n > 1 and ":\n\n" or all_of { '"one"' })
    end)
    local agent = assert(cases.agent(nil, {}))
    local registry = assert(registries.open("http://127.0.0.1:" .. port))
    local watch = assert(watches.new(registry, cases.scope, {}))
    local feed = registry.feeds[cases.scope]
    eventually(function()
      return watch.known.one and feed.changes:is_wanted()
    end)
    streams[1]:close()
    eventually(function() return streams[2] end)
    eventually(function() return not watch.err end)
    assert.equal("one", watch.known.one.name)
    watch:close()
    feed:close("closed", "the test is over")
    agent:close()
  end)

  it("may tell what is no name", function()
    local port = pretend(function(request)
      local stream = request:stream(200, EVENTS)
      stream:tell(all_of { "7", '"one"', "true" }
        .. 'event: change\nid: 2\ndata: {"name":"one","entry":false}\n\n')
    end)
    local agent = assert(cases.agent(nil, {}))
    local registry = assert(registries.open("http://127.0.0.1:" .. port))
    local told = {}
    local watch = assert(watches.new(registry, cases.scope, {},
      function(change)
        told[#told + 1] = change.kind .. " " .. change.entry.name
      end))
    eventually(function() return told[2] end)
    assert.same({ "up one", "down one" }, told)
    watch:close()
    registry.feeds[cases.scope]:close("closed", "the test is over")
    agent:close()
  end)

  it("is the next one for all who asked the first before", function()
    local port = pretend(function(request) request:answer(503, "", {}) end)
    local server = control.start()
    local registry = assert(registries.open(
      ("http://127.0.0.1:%d,127.0.0.1:%d/?timeout=%g"):format(port,
        server.port, 20 * cases.slow)))
    local one = assert(backends.take(control.address(cases), "one"))
    local asked = {}
    for i = 1, 6 do asked[i] = registry:lookup(cases.scope, "one") end
    for _, each in ipairs(asked) do
      assert.equal("one", assert(each:wait(60 * cases.slow)).name)
    end
    one:close()
  end)

  it("that goes back in its list is not asked for ever", function()
    local asked = 0
    local port = pretend(function(request, n)
      asked = n
      request:answer(200, ('{"items":[],"next":"%s"}')
        :format(n % 2 == 0 and "a" or "b"), {})
    end)
    local registry = assert(registries.open("http://127.0.0.1:" .. port))
    assert.same({}, (registry:list(cases.scope, {}):wait(60 * cases.slow)))
    assert.equal(2, asked)
  end)

  it("that is not ready leaves nothing behind", function()
    local port = pretend(function(request)
      request:stream(503, EVENTS):close()
    end)
    local agent = assert(cases.agent(nil, {}))
    local client = assert(registries.open(
      ("http://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d"):format(port, port,
                                                               port))).client
    local opened = perigee.spawn(client.events, client, "/v1/x")
    assert.is_nil((opened:wait(60 * cases.slow)))
    assert.is_nil(next(client.http.calls))
    agent:close()
  end)

  it("wants a token, and gives what the token may", function()
    local server = control.start()
    local register = server:command("token new --scope " .. cases.scope)
    local read = server:command "token new --role read"
    local function at(token)
      return control.address(cases, "&token=" .. token)
    end
    local none, err = backends.take(at(read), "one")
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    assert.is_nil(tostring(err):find(read, 1, true))
    local path = cases.folder .. "/token"
    local file = assert(io.open(path, "w"))
    file:write(register, "\n")
    file:close()
    os.execute(("chmod 600 '%s'"):format(path))
    local one = assert(backends.take(at("file:" .. path), "one"))
    none, err = backends.take(at(register), "two", { scope = "foreign" })
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    one:close()
  end)

  it("is trusted over TLS if its certificate is", function()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local cert, key = cases.folder .. "/cert.pem", cases.folder .. "/key.pem"
    assert.equal(0, os.execute(("openssl req -x509 -newkey ec -pkeyopt "
      .. "ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1 "
      .. "-addext subjectAltName=IP:127.0.0.1 -keyout '%s' -out '%s' "
      .. "2>/dev/null"):format(key, cert)))
    control.start({ "--tls-cert", cert, "--tls-key", key }, "https")
    local registry = control.address(cases, "&ca=" .. cert)
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    assert(two:session "one")
    local told = watched(two)
    eventually(function() return #told == 2 end)
    local none, err = backends.take(control.address(cases), "three")
    assert.is_nil(none)
    assert.equal("denied", err.kind, tostring(err))
    one:close()
  end)

  it("has an address that is told without its token", function()
    for _, wrong in ipairs { "http://", "http://a:99999", "http://a b",
                             "http://a?x=1", "http://a?ttl=0", "http://u@a",
                             "http://a,", "http://a?token=a%0ab",
                             "http://a?token=file:/nowhere/at/all" } do
      assert.is_nil((addresses.read(wrong)), wrong)
    end
    assert.same({ "https://a:7470", "https://[::1]:1" },
                addresses.read "https://a,[::1]:1/?ttl=3".servers)
    local fine, why = pcall(perigee.agent, {
      registry = "http://a?token=hidden&x=1" })
    assert.is_false(fine)
    assert.is_nil(why:find("hidden", 1, true))
  end)

  -- ---- The command ---------------------------------------------------------

  it("is started, told of and stopped by perigee ctrl", function()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local function ctrl(words)
      local pipe = io.popen(("luajit lua/perigee/cli/perigee ctrl %s --store "
        .. "'%s/x.db' 2>&1; echo $?"):format(words, cases.folder))
      local text = pipe:read "*a"
      pipe:close()
      local output, status = text:match "^(.-)(%d+)\n$"
      return tonumber(status), output
    end
    assert.equal(1, (ctrl "status"))
    assert.equal(1, (ctrl "stop"))
    local status, url = ctrl "start --listen http://127.0.0.1:0"
    finally(function() ctrl "stop" end)
    assert.equal(0, status, url)
    url = url:match "^(http://127%.0%.0%.1:%d+)\n$"
    assert.is_string(url)
    assert.equal(1, (ctrl "start --listen http://127.0.0.1:0"))
    status, url = ctrl "status --json"
    assert.equal(0, status)
    assert.matches('"running":true', url, 1, true)
    assert.equal(0, (ctrl "stop"))
    assert.equal(1, (ctrl "status"))
    for _, words in ipairs { "serve --listen http://0.0.0.0:0",
                             "serve --listen ftp://a", "serve --tls-cert x",
                             "start --listen ftp://a",
                             "serve --listen https://127.0.0.1:0",
                             "serve --body -1", "serve --config /nowhere",
                             "token new --role king", "token new --scope /" } do
      assert.equal(2, (ctrl(words)), words)
    end
    assert.equal(1, (ctrl "token revoke nobody"))
  end)
end)
