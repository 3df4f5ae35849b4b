-- SPDX-License-Identifier: Apache-2.0
-- Control servers over one Redis or etcd: they are equal, agents may use the
-- store itself beside them, and what they do while it is away. With
-- PERIGEE_SPEC_STORE (make control-stores) there are more of them.
local backends = require "spec.support.backends"
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local etcd = require "spec.support.etcd"
local redis = require "spec.support.redis"
local registries = require "perigee.registry"
local sentinel = require "spec.support.sentinel"

local LONG = 60 * cases.slow

local STORES = {}
if control.is_there() and redis.is_there() then
  STORES.Redis = { start = redis.start, address = redis.address }
end
if control.is_there() and etcd.is_there() then
  STORES.etcd = { start = etcd.start, address = etcd.address }
end

local function entry(epoch, more)
  local all = { addresses = { "tcp://a:1" }, epoch = epoch, host = "h",
                pid = 7 }
  for name, value in pairs(more or {}) do all[name] = value end
  return all
end

local function eventually(f)
  return assert.is_true(cases.eventually(f, LONG))
end

describe("a control server over a store", function()
  if not next(STORES) then
    it("is there", function()
      pending "perigee/control.so, lua-argparse, lua-cjson or stores miss"
    end)
    return
  end

  local http = require "perigee.net.http"
  local json = require "cjson.safe"
  local store, first, second, client

  -- The options of a server's address for agents that nothing may make late.
  local PATIENT = ("/?ttl=60&timeout=%g"):format(LONG)

  -- Two servers over a store at an address.
  local function serve(address)
    first = control.start(nil, nil, nil, address)
    second = control.start(nil, nil, nil, address)
    client = http.new()
    for _, server in ipairs { first, second } do
      eventually(function()
        return client:ask { method = "GET", url = server.url .. "/readyz",
                            timeout = LONG }.status == 200
      end)
    end
    return address
  end

  local function begin(name, more)
    cases.engine()
    store = STORES[name].start()
    return serve(STORES[name].address(cases, more
      or ("&ttl=60&timeout=%g"):format(LONG)))
  end

  after_each(function()
    if client then client:close() end
    client = nil
    cases.cleanup()
  end)

  local function path_of(path)
    return path:sub(1, 1) == "/" and path
      or ("/v1/scopes/%s/%s"):format(cases.scope, path)
  end

  local function request(server, method, path, body, headers)
    local list = asking.headers(server.url, headers)
    if body then list[#list + 1] = "Content-Type: application/json" end
    return { method = method, url = server.url .. path_of(path), timeout = LONG,
             headers = list, body = body and json.encode(body) or nil,
             limit = 2 ^ 24 }
  end

  -- Status, decoded body and headers of an answer.
  local function ask(...)
    local answer = assert(client:ask(request(...)))
    return answer.status, json.decode(answer.body), answer.headers
  end

  -- The statuses of requests that are sent at the same time, counted.
  local function race(list)
    local asked, counts = {}, {}
    for i, each in ipairs(list) do asked[i] = client:send(each) end
    for _, each in ipairs(asked) do
      local status = assert(each:wait(LONG)).status
      counts[status] = (counts[status] or 0) + 1
    end
    return counts
  end

  -- The beginning of agents' keys in Redis.
  local function place()
    return ("perigee:{%s}:name:"):format((cases.scope:gsub("[^%w_-]",
      function(c) return ("%%%02X"):format(c:byte()) end)))
  end

  -- Has the agent watch all. Returns a function that waits until it was told
  -- something.
  local function watched(agent)
    local told = {}
    assert(agent:watch({}, function(change)
      told[change.kind .. " " .. change.entry.name] = true
    end))
    return function(what)
      eventually(function() return told[what] end)
    end, told
  end

  -- n requests, to the servers in turn.
  local function many(n, f)
    local list = {}
    for i = 1, n do list[i] = f(i % 2 == 0 and first or second, i) end
    return list
  end

  -- A test that is not among the quick ones.
  local function long(...)
    if os.getenv "PERIGEE_SPEC_STORE" then it(...) end
  end

  for name in pairs(STORES) do
    local either = name == "Redis" and it or long

    it("is equal to others over the same " .. name, function()
      local address = begin(name)
      local _, _, headers = ask(first, "PUT", "agents/one?ttl=600", entry "1")
      local status, body, same = ask(second, "GET", "agents/one")
      assert.equal(200, status)
      assert.equal("1", body.epoch)
      assert.equal(headers.etag, same.etag)
      assert.equal(409, (ask(second, "PUT", "agents/one?ttl=600", entry "2")))
      assert.equal(204, (ask(second, "POST", "agents/one/renew?epoch=1")))
      assert.equal(200, (ask(second, "PUT", "agents/one?ttl=600", entry "2",
                             { "If-Match: " .. headers.etag })))
      assert.equal(412, (ask(first, "PUT", "agents/one?ttl=600", entry "3",
                             { "If-Match: " .. headers.etag })))
      assert.equal(204, (ask(first, "DELETE", "agents/one?epoch=2")))
      assert.equal(404, (ask(second, "GET", "agents/one")))
      local own = assert(backends.take(address, "own"))
      local other = assert(backends.take(
        first.url .. ",127.0.0.1:" .. second.port .. PATIENT, "other"))
      assert(other:session "own")
      assert(own:session "other")
      assert.equal(2, #assert(own:list()))
      assert.equal(2, #assert(other:list()))
      assert.equal(409, (ask(second, "PUT", "agents/own", entry "3")))
    end)

    either("has one of many writers win in " .. name, function()
      begin(name)
      local counts = race(many(20, function(server, i)
        return request(server, "PUT", "entities/a", { kind = "k" .. i },
                       { "If-None-Match: *" })
      end))
      assert.same({ [201] = 1, [412] = 19 }, counts)
      local _, _, headers = ask(second, "GET", "entities/a")
      counts = race(many(20, function(server, i)
        return request(server, "PUT", "entities/a", { kind = "l" .. i },
                       { "If-Match: " .. headers.etag })
      end))
      assert.same({ [200] = 1, [412] = 19 }, counts)
      counts = race(many(20, function(server, i)
        return request(server, "PUT", "agents/one?ttl=600",
                       entry(tostring(i)))
      end))
      assert.same({ [201] = 1, [409] = 19 }, counts)
    end)

    either("tells watchers of what others write to " .. name, function()
      local address = begin(name)
      local other = assert(backends.take(second.url .. PATIENT, "other"))
      local hears = watched(other)
      hears "up other"
      assert.equal(201, (ask(first, "PUT", "agents/one?ttl=600", entry "1")))
      hears "up one"
      local own = assert(backends.take(address, "own"))
      hears "up own"
      own:close()
      hears "down own"
      assert.equal(204, (ask(first, "DELETE", "agents/one?epoch=1")))
      hears "down one"
      assert.equal(201, (ask(first, "PUT", "agents/brief?ttl=1", entry "1")))
      hears "up brief"
      hears "down brief"
    end)

    it("raises a name's term at each taking, with agents that use " .. name
       .. " itself", function()
      local registry = assert(registries.open(begin(name)))
      local last, takings = 0, 0
      local function is_raised()
        takings = takings + 1
        local own = assert(registry:lookup(cases.scope, "one"):wait(LONG)).term
        local _, body = ask(second, "GET", "agents/one")
        assert.equal(own, body.term)
        assert.is_true(own > last, ("taking %d has the term %.0f after %.0f")
          :format(takings, own, last))
        last = own
      end
      local function put(epoch, over)
        local status = ask(first, "PUT", "agents/one?ttl=600&over=" .. over,
                           entry(epoch))
        assert.is_true(status < 300, status)
        is_raised()
      end
      local function hold(epoch, over)
        local held = assert(registry:hold(entry(epoch, {
          name = "one", scope = cases.scope }), over):wait(LONG))
        is_raised()
        return held
      end
      local function delete(epoch)
        assert.equal(204, (ask(second, "DELETE", "agents/one?epoch=" .. epoch)))
      end
      put("1", "")
      hold("2", "1")
      put("3", "2")
      hold("4", "3")
      delete "4"
      local held = hold "5"
      assert(registry:release(held):wait(LONG))
      for _ = 1, 3 do                   -- in a second or so
        put("6", "")
        delete "6"
      end
      hold "7"
    end)
  end

  -- The states of a topology's edges, as a server tells them.
  local function states(server)
    local status, body = ask(server, "GET", "topology")
    assert.equal(200, status)
    local told = {}
    for i, edge in ipairs(body.actual) do told[i] = edge.state end
    return table.concat(told, " ")
  end

  it("has a topology join agents of several servers, and all tell of it",
     function()
    if not STORES.Redis then return end
    local address = begin "Redis"
    local status, body = ask(second, "PUT", "topology",
                             { mesh = { "a", "b", "c" } })
    assert.equal(201, status)
    assert.equal("absent", body.actual[1].state)
    for name, at in pairs { a = first.url .. PATIENT, c = address,
                            b = second.url .. PATIENT } do
      assert(backends.take(at, name))
    end
    for _, server in ipairs { first, second } do
      -- An agent that uses the store itself does not report; its peers do.
      eventually(function() return states(server) == "up up up" end)
    end
  end)

  it("keeps reports in its store, and asks for them when they are old",
     function()
    if not STORES.Redis then return end
    begin "Redis"
    local function key(kind, name)
      return ("'perigee:{%s%%2F%s}:%s'"):format(cases.scope, kind, name)
    end
    local function word(server)
      local status, _, headers = ask(server, "POST", "agents/a/renew?epoch=1")
      assert.equal(204, status)
      return headers["perigee-topology"]
    end
    for _, name in ipairs { "a", "b" } do
      assert.equal(201, (ask(first, "PUT", "agents/" .. name .. "?ttl=600",
                             entry "1")))
    end
    assert.is_nil(word(first))
    assert.equal(201, (ask(first, "PUT", "topology",
                           { edges = { { "a", "b" } } })))
    assert.equal("unreported", word(second))
    assert.equal("unknown", states(second))
    assert.equal(204, (ask(first, "PATCH", "topology/a?epoch=1", {
      peers = { { name = "b", state = "up", seconds = 5 } } })))
    assert.equal("wanted", word(second))
    assert.equal("up", states(second))
    local report = key("reports", "name:a")
    local kept = store:ask("GET " .. report)
    assert.is_true(tonumber(store:ask("PTTL " .. report)) > 0)
    assert.equal("0", store:ask("EXISTS " .. key("reports", "names") .. " "
                                .. key("reports", "changes")))
    local old = kept:gsub('"began":%d+,"lease"', '"began":1000,"lease"')
    assert.equal("OK", store:ask(("SET %s '%s'"):format(report, old)))
    assert.equal("unreported", word(first))
    assert.equal("up", states(first))
    for _, other in ipairs { '"up":7', '"peers":7', '"up":true,"began":"x"' } do
      local text = '{"name":"a","epoch":"1","peers":{"b":{' .. other .. "}}}"
      assert.equal("OK", store:ask(("SET %s '%s'"):format(report, text)))
      assert.equal("unknown", states(second))
    end
    assert.equal("OK", store:ask(("SET %s '%s'"):format(
      key("topology", "name:wanted"), '{"name":"wanted","edges":[7]}')))
    assert.equal("", states(second))
    assert.is_nil(word(second))
  end)

  it("answers 503 while its store is away, and serves when it is back",
     function()
    if not STORES.Redis then return end
    begin "Redis"
    assert.equal(201, (ask(first, "PUT", "entities/a", { kind = "x" })))
    store:kill()
    eventually(function() return ask(first, "GET", "/readyz") == 503 end)
    for _, path in ipairs { "entities/a", "entities", "topology", "watch",
                            "/readyz" } do
      local status, body, headers = ask(first, "GET", path)
      assert.equal(503, status, path)
      assert.equal("1", headers["retry-after"])
      assert.equal(503, body.status)
    end
    assert.equal(503, (ask(first, "PUT", "entities/b", { kind = "x" })))
    assert.equal(200, (ask(first, "GET", "/healthz")))
    store:begin()
    eventually(function() return ask(first, "GET", "/readyz") == 200 end)
    assert.equal(201, (ask(first, "PUT", "entities/b", { kind = "x" })))
  end)

  -- Agents and what is kept are there, and writes are taken, as soon as there
  -- is a new master or leader.
  local function goes_on(kill)
    local one = assert(backends.take(first.url .. PATIENT, "one"))
    assert.equal(201, (ask(first, "PUT", "entities/a", { kind = "x" })))
    kill()
    eventually(function()
      local status = ask(second, "PUT", "entities/b", { kind = "x" })
      assert.is_true(status < 300 or status == 503, status)
      return status < 300
    end)
    eventually(function() return one:lookup "one" end)
    assert.equal(200, (ask(first, "GET", "entities/a")))
  end

  it("has a name under a new lease after each election of etcd's", function()
    if not STORES.etcd then return end
    begin "etcd"
    local base64 = require "perigee.net.base64"
    local function kept()
      return assert(store:ask("kv/range", { key = base64.encode(
        ("perigee/%s/name/one"):format(cases.scope)) })).kvs[1]
    end
    local function renewed(server)
      eventually(function()
        local status = ask(server, "POST", "agents/one/renew?epoch=1")
        assert.is_true(status == 204 or status == 503, status)
        return status == 204
      end)
      return kept()
    end
    assert.equal(201, (ask(first, "PUT", "agents/one?ttl=600", entry "1")))
    local before = kept()
    assert.equal(before.lease, renewed(first).lease)
    store:kill()
    store:begin(1)
    store:await(1)
    local after = renewed(first)
    assert.is_not.equal(before.lease, after.lease)
    assert.equal(before.value, after.value)
    assert.equal(before.create_revision, after.create_revision)
    assert.equal(after.mod_revision, renewed(first).mod_revision)
    local other = renewed(second)       -- which did not hear of the grant
    assert.is_not.equal(after.lease, other.lease)
    assert.equal(before.value, other.value)
    assert.equal(other.mod_revision, renewed(second).mod_revision)
  end)

  it("says why when etcd grants no new lease", function()
    if not STORES.etcd then return end
    begin "etcd"
    assert.equal(201, (ask(first, "PUT", "agents/one?ttl=600", entry "1")))
    store:kill()
    store:begin(1)                      -- which makes it another leader
    store:await(1)
    assert(store:ask("maintenance/alarm", { action = "ACTIVATE",
                                            alarm = "NOSPACE" }))
    local status, body
    eventually(function()
      status, body = ask(first, "POST", "agents/one/renew?epoch=1")
      return not tostring(body.detail):find "cannot be reached"
    end)
    assert.equal(507, status, json.encode(body))
    assert.equal("no_memory", body.kind)
    assert.matches("space exceeded", body.detail)
  end)

  long("goes on when a Redis master is replaced", function()
    if not STORES.Redis then return end
    cases.engine()
    local group = sentinel.start()
    serve(group:address "&timeout=20")
    goes_on(function()
      for _, server in ipairs(group.servers) do
        eventually(function()
          return server:ask(("EXISTS 'perigee:{%s%%2Fentities}:name:a'")
            :format(cases.scope)) == "1"
        end)
      end
      group:master():kill()
    end)
  end)

  long("goes on when the leader of etcd is lost", function()
    if not STORES.etcd then return end
    cases.engine()
    local cluster = etcd.start { n = 3 }
    serve(etcd.address(cases))
    goes_on(function() cluster:kill(cluster:leader()) end)
  end)

  long("answers others about itself while its store is stopped", function()
    if not STORES.Redis then return end
    begin("Redis", "&timeout=1")
    store.process:signal "STOP"
    local late = client:send(request(first, "GET", "entities/a"))
    assert.equal(200, (ask(first, "GET", "/healthz")))
    eventually(function() return ask(first, "GET", "/readyz") == 503 end)
    assert.equal(503, assert(late:wait(LONG)).status)
    store.process:signal "CONT"
    eventually(function() return ask(first, "GET", "entities/a") == 404 end)
  end)

  it("knows a token that was made for another, by its hash", function()
    if not STORES.Redis then return end
    begin "Redis"
    assert.equal(200, (ask(second, "GET", "agents", nil, asking.STRANGER)))
    local token = first:command "token new --role register"
    assert.equal(51, #token)
    local function as_stranger()
      return (ask(second, "GET", "agents", nil, asking.STRANGER))
    end
    eventually(function() return as_stranger() == 401 end)
    local bearer = { "Authorization: Bearer " .. token }
    assert.equal(200, (ask(second, "GET", "agents", nil, bearer)))
    local kept = store:ask "GET 'perigee:{%2Ftokens}:name:all'"
    assert.matches('"role":"register"', kept, 1, true)
    assert.is_nil(kept:find(token, 1, true))
    store:ask "FLUSHALL"                -- which opens no server again
    eventually(function()
      return ask(second, "GET", "agents", nil, bearer) == 401
    end)
  end)

  long("leaves what is not its own as it is", function()
    if not STORES.Redis then return end
    begin "Redis"
    store:ask(("RPUSH '%slist' 1"):format(place()))
    store:ask(("SET '%stext' hello"):format(place()))
    for _, foreign in ipairs { "list", "text" } do
      assert.equal(404, (ask(first, "GET", "agents/" .. foreign)))
      local counts = race(many(4, function(server, i)
        local free = i > 2
        return request(server, "PUT", "agents/"
          .. (free and foreign .. i or foreign), entry "1")
      end))
      assert.same({ [409] = 2, [201] = 2 }, counts)
    end
    assert.equal("1", store:ask(("LRANGE '%slist' 0 -1"):format(place())))
    assert.equal("hello", store:ask(("GET '%stext'"):format(place())))
  end)

  long("is the next one for agents whose server has ended", function()
    if not STORES.Redis then return end
    begin "Redis"
    local registry = ("%s,127.0.0.1:%d/?ttl=%g&timeout=%g"):format(first.url,
      second.port, 3 * cases.slow, LONG)
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    local hears, told = watched(two)
    hears "up one"
    first:kill()
    local three
    eventually(function()
      three = backends.take(registry, "three")
      return three
    end)
    hears "up three"
    assert(one:session "three")
    local last = math.huge              -- the TTL's rest, which only renewals
    eventually(function()               -- prolong
      local left = tonumber(store:ask(("PTTL '%sone'"):format(place())))
      local renewed = left > last
      last = left
      return renewed
    end)
    assert.is_nil(told["down one"])
  end)
end)
