-- SPDX-License-Identifier: Apache-2.0
-- A cache by HTTP: a cache in a process of its own, asked over real sockets.
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local command = require "spec.support.command"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow

needing("a cache by HTTP", { control }, function()
  local json = require "cjson.safe"
  local serving, url

  -- Starts a cache with more words; what it says is its URL.
  local function begin(...)
    cases.engine()
    serving = command.start("cache", "serve", "--pid", command.folder()
      .. "/pid", "--memory", "16M", "--http", "127.0.0.1:0", ...)
    repeat
      url = assert(serving:read(LONG)):match "^serving %S+ at (https?://.*)$"
    until url
    asking.use { url = url }
  end

  after_each(function()
    asking.finish()
    command.clean()
  end)

  -- Asks; returns the whole answer.
  local function ask(method, path, body, headers)
    return assert(asking.client:ask {
      method = method, url = url .. path, body = body, headers = headers,
      timeout = LONG, limit = 2 ^ 24 })
  end

  local function status(...) return ask(...).status end

  local function refused(wanted, kind, ...)
    local answer = ask(...)
    assert.equal(wanted, answer.status, answer.body)
    assert.equal("application/problem+json", answer.headers["content-type"])
    local body = json.decode(answer.body)
    assert.same({ wanted, kind }, { body.status, body.kind })
    return body
  end

  local function perigee_cache(words)
    return command.shell("perigee cache " .. words)
  end

  it("puts, gets and deletes what clients see, too", function()
    begin()
    assert.equal(204, status("PUT", "/v1/entries/k", "one\0two"))
    local answer = ask("GET", "/v1/entries/k")
    assert.same({ 200, "one\0two", "application/octet-stream", "nosniff" },
                { answer.status, answer.body, answer.headers["content-type"],
                  answer.headers["x-content-type-options"] })
    local _, text = perigee_cache "get k"
    assert.equal("one\0two", text)
    answer = ask("HEAD", "/v1/entries/k")
    assert.same({ 200, "" }, { answer.status, answer.body })
    assert.equal(204, status("DELETE", "/v1/entries/k"))
    refused(404, "not_found", "GET", "/v1/entries/k")
    refused(404, "not_found", "DELETE", "/v1/entries/k")
    assert.equal(0, (command.shell "echo -n more | perigee cache put k"))
    assert.equal("more", ask("GET", "/v1/entries/k").body)
    assert.equal(204, status("PUT", "/v1/entries/k", ""))
    answer = ask("GET", "/v1/entries/k")
    assert.same({ 200, "" }, { answer.status, answer.body })
  end)

  it("takes keys of any bytes, written as %XX", function()
    begin()
    assert.equal(204, status("PUT", "/v1/entries/%00%FF%2F+k%25", "v"))
    local _, text = perigee_cache "list --hex"
    assert.equal("00ff2f2b6b25\n", text)
    assert.equal("v", ask("GET", "/v1/entries/%00%ff%2f%2B%6b%25").body)
    local longest = ("%FE"):rep(512)
    assert.equal(204, status("PUT", "/v1/entries/" .. longest, "v"))
    assert.equal("v", ask("GET", "/v1/entries/" .. longest).body)
    refused(400, "protocol", "PUT", "/v1/entries/" .. longest .. "x", "v")
    refused(400, "protocol", "GET", "/v1/entries/")
    for _, key in ipairs { "%", "a%zz", "a%2", "%%41" } do
      local why = refused(400, "protocol", "PUT", "/v1/entries/" .. key, "v")
      assert.matches("in a key %% is .* %% itself is written %%25", why.detail)
    end
    assert.matches("%%2F", refused(404, "not_found", "GET",
                                   "/v1/entries/a/b").detail)
    for _, path in ipairs { "/v1/entries", "/v1", "/", "/stats/" } do
      refused(404, "not_found", "GET", path)
    end
  end)

  it("puts for a time, or if nothing is there", function()
    begin()
    local absent = { "If-None-Match: *" }
    assert.equal(204, status("PUT", "/v1/entries/k?ttl=0.05", "v", absent))
    assert.is_true(cases.eventually(function()
      return status("GET", "/v1/entries/k") == 404
    end, LONG))
    assert.equal(204, status("PUT", "/v1/entries/k?ttl=1000", "v", absent))
    refused(412, "exists", "PUT", "/v1/entries/k", "w", absent)
    refused(412, "unsupported", "PUT", "/v1/entries/k", "w",
            { 'If-Match: "1"' })
    assert.equal("v", ask("GET", "/v1/entries/k").body)
    for _, ttl in ipairs { "0", "-1", "x", "1e99", "" } do
      assert.matches("from 0.001 to 2147483648$", refused(400, "protocol",
        "PUT", "/v1/entries/k?ttl=" .. ttl, "w").detail)
    end
    refused(400, "protocol", "PUT", "/v1/entries/k?ttl=1&ttl=2", "w")
    refused(415, "protocol", "PUT", "/v1/entries/k", "w",
            { "Content-Encoding: gzip" })
  end)

  it("bounds what it takes and gives", function()
    begin("--body", "64K")
    local most = ("x"):rep(2 ^ 16)
    assert.equal(204, status("PUT", "/v1/entries/k", most))
    assert.equal(most, ask("GET", "/v1/entries/k").body)
    refused(413, "too_large", "PUT", "/v1/entries/k", most .. "x")
    local file = command.file("long", most .. "x")
    assert.equal(0, (perigee_cache("put long '" .. file .. "'")))
    assert.matches("at most 65536 bytes", refused(413, "too_large", "GET",
                                                  "/v1/entries/long").detail)
    assert.equal(200, status("GET", "/healthz"))
  end)

  it("takes a value as long as it was told to, and no option for longer ones",
     function()
    begin("--memory", "256M", "--body", "80M")
    local long = ("long"):rep(20 * 2 ^ 20)
    assert.equal(204, status("PUT", "/v1/entries/k", long))
    local answer = assert(asking.client:ask {
      method = "GET", url = url .. "/v1/entries/k", timeout = LONG,
      limit = 2 ^ 28 })
    assert.is_true(answer.body == long)
    refused(413, "too_large", "PUT", "/v1/entries/k", long .. "x")
    local code, _, why = command.run("cache", "serve", "--body", "2G")
    assert.equal(2, code)
    assert.matches("2G is more than a value may have, 1G", why, 1, true)
  end)

  it("tells when it is full, and of what", function()
    begin("--memory", "1M", "--body", "1M", "--slab", "1M")
    assert.equal(0, (command.shell "echo | perigee cache put hard --pin hard"))
    local part = ("x"):rep(2 ^ 20)
    refused(507, "no_memory", "PUT", "/v1/entries/k", part)
    local answer = json.decode(ask("GET", "/stats").body)
    assert.equal("cache:0", answer.name)
    assert.same({ 1, 2 ^ 20 }, { answer.scopes.cli.entries,
                                 answer.scopes.cli.quota })
  end)

  it("wants a scope where there are several", function()
    begin("--scope", "one", "--scope", "two")
    assert.matches("%?scope=", refused(400, "protocol", "PUT", "/v1/entries/k",
                                       "v").detail)
    assert.equal(204, status("PUT", "/v1/entries/k?scope=one", "v"))
    assert.equal("v", ask("GET", "/v1/entries/k?scope=one").body)
    refused(404, "not_found", "GET", "/v1/entries/k?scope=two")
    assert.matches("no such scope", refused(404, "not_found", "GET",
                                            "/v1/entries/k?scope=x").detail)
    local all = json.decode(ask("GET", "/stats").body).scopes
    assert.same({ 1, 0 }, { all.one.entries, all.two.entries })
    local one = json.decode(ask("GET", "/stats?scope=two").body).scopes
    assert.is_nil(one.one)
    assert.equal(0, one.two.entries)
  end)

  local function token(words)
    local result, text = command.shell("perigee ctrl token new --store '"
      .. command.folder() .. "/tokens.db' " .. words)
    assert.equal(0, result)
    return { "Authorization: Bearer " .. text:match "%S+" }
  end

  it("wants tokens if it was given some", function()
    local reads = token "--role read"
    local writes = token "--role register --scope one"
    begin("--tokens", command.folder() .. "/tokens.db", "--scope", "one",
          "--scope", "two")
    local path, other = "/v1/entries/k?scope=one", "/v1/entries/k?scope=two"
    refused(401, "denied", "GET", path)
    refused(401, "denied", "GET", path, nil, { "Authorization: Bearer x" })
    refused(403, "denied", "PUT", path, "v", reads)
    assert.equal(204, status("PUT", path, "v", writes))
    assert.equal("v", ask("GET", path, nil, reads).body)
    refused(403, "denied", "PUT", other, "v", writes)
    refused(403, "denied", "GET", other, nil, writes)
    refused(403, "denied", "GET", "/stats", nil, writes)
    assert.equal(200, status("GET", "/stats?scope=one", nil, writes))
    assert.equal(200, status("GET", "/stats", nil, reads))
    assert.equal(200, status("GET", "/healthz"))
    -- One that is revoked is known as such soon.
    local _, list = command.shell("perigee ctrl token list --json --store '"
      .. command.folder() .. "/tokens.db'")
    for _, each in ipairs(json.decode(list)) do
      command.shell(("perigee ctrl token revoke %s --store '%s/tokens.db'")
        :format(each.id, command.folder()))
    end
    assert.is_true(cases.eventually(function()
      return status("GET", path, nil, reads) == 401
    end, LONG))
  end)

  it("serves no others without TLS and tokens", function()
    local _, _, why = command.shell "perigee cache serve --http 0.0.0.0:0"
    assert.matches("perigee ctrl token new --store FILE, and --tokens FILE",
                   why, 1, true)
    begin("--http", "0.0.0.0:0", "--insecure")
    url = url:gsub("0%.0%.0%.0", "127.0.0.1")
    assert.equal(204, status("PUT", "/v1/entries/k", "v"))
  end)

  it("refuses pages of the web", function()
    begin()
    refused(403, "denied", "PUT", "/v1/entries/k", "v",
            { "Host: rebound.example" })
    refused(403, "denied", "PUT", "/v1/entries/k", "v",
            { "Origin: http://page.example" })
    assert.equal(404, status("GET", "/v1/entries/k"))
  end)

  it("describes what it does", function()
    begin()
    local document = json.decode(ask("GET", "/openapi.json").body)
    assert.equal("3.0.3", document.openapi)
    for path, methods in pairs(document.paths) do
      local allow = ask("OPTIONS", (path:gsub("{key}", "k"))).headers.allow
      for method in pairs(methods) do
        assert.is_truthy(allow:find(method:upper(), 1, true), path)
      end
    end
    assert.is_table(document.paths["/v1/entries/{key}"].put)
    assert.is_table(document.components.schemas.Problem)
    assert.equal("DELETE, GET, HEAD, OPTIONS, PUT",
                 ask("OPTIONS", "/v1/entries/k").headers.allow)
    refused(405, "no_method", "POST", "/v1/entries/k", "v")
    refused(406, "unsupported", "GET", "/v1/entries/k", nil,
            { "Accept: text/html" })
  end)

  it("answers many at a time, each with its own bytes", function()
    begin("--memory", "128M")           -- each size has slabs of its own
    for i = 1, 40 do
      assert.equal(204, status("PUT", "/v1/entries/" .. i,
                               (i .. "."):rep(1000 * i)))
    end
    local futures = {}
    for i = 1, 40 do
      futures[i] = asking.client:send {
        method = "GET", url = url .. "/v1/entries/" .. i, timeout = LONG,
        limit = 2 ^ 24 }
    end
    for i = 1, 40 do
      local answer = assert(futures[i]:wait())
      assert.equal(200, answer.status, answer.body)
      assert.is_true(answer.body == (i .. "."):rep(1000 * i))
    end
  end)

  it("lives on without the clients that leave in between", function()
    begin()
    assert.equal(204, status("PUT", "/v1/entries/k", ("x"):rep(2 ^ 20)))
    local host, port = url:match "//(.-):(%d+)"
    for i = 1, 20 do
      local fd = sockets.dial(("tcp://%s:%s"):format(host, port))
      sockets.send(fd, "GET /v1/entries/k HTTP/1.1\r\nHost: localhost\r\n\r\n")
      if i % 2 == 0 then perigee.sleep(0.001) end
      sockets.close(fd)
    end
    assert.equal(2 ^ 20, #ask("GET", "/v1/entries/k").body)
  end)

  it("says that it is ending, while leases run out", function()
    begin("--lease", "60s", "--drain", "60s")
    local agent = assert(perigee.agent {
      name = false, scope = "cli", transport = "shm",
      registry = "folder:" .. command.folder() .. "/perigee" })
    local blocks = assert(agent:cache "cache:0")
    assert(blocks:put("k", "value"))
    local view = assert(blocks:view "k")
    assert.equal("value", ask("GET", "/v1/entries/k").body)
    serving:signal "TERM"
    assert.is_true(cases.eventually(function()
      return status("GET", "/healthz") == 503
    end, LONG))
    refused(503, "closed", "GET", "/v1/entries/k")
    refused(503, "closed", "PUT", "/v1/entries/k", "v")
    assert.equal("value", view:string())
    agent:close()
    assert.is_true(cases.eventually(function()
      return command.is_gone(serving.pid)
    end, LONG))
  end)
end)
