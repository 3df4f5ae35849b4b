-- SPDX-License-Identifier: Apache-2.0
-- Agents whose registry is a control server: while the server is killed and
-- comes back, with several servers, with tokens, over TLS; and the command.
local addresses = require "perigee.registry.control.address"
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local perigee = require "perigee"

describe("a control server as the registry", function()
  if not control.is_there() then
    it("is there", function()
      pending "perigee/control.so, lua-argparse or lua-cjson is missing"
    end)
    return
  end

  after_each(cases.cleanup)

  local function eventually(f)
    return assert.is_true(cases.eventually(f, 60 * cases.slow))
  end

  local function watched(agent)
    local told = {}
    assert(agent:watch({}, function(change)
      told[#told + 1] = change.kind .. " " .. change.entry.name
    end))
    return told
  end

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

  it("wants a token, and gives what the token may", function()
    local server = control.start()
    local register = server:command("token new --scope " .. cases.scope)
    local read = server:command "token new --role read"
    local function at(token)
      return control.address(cases, "&token=" .. token)
    end
    eventually(function() -- a server notices its first token soon
      local agent, err = backends.take(control.address(cases))
      if agent then agent:close() end
      return err and err.kind == "denied"
    end)
    local none, err = backends.take(at(read), "one")
    assert.is_nil(none)
    assert.equal("denied", err.kind)
    assert.is_nil(tostring(err):find(read, 1, true))
    local path = cases.folder .. "/token"
    local file = assert(io.open(path, "w"))
    file:write(register, "\n")
    file:close()
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
                             "serve --listen https://127.0.0.1:0",
                             "serve --body -1", "serve --config /nowhere",
                             "token new --role king", "token new --scope /" } do
      assert.equal(2, (ctrl(words)), words)
    end
    assert.equal(1, (ctrl "token revoke nobody"))
  end)
end)
