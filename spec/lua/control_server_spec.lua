-- SPDX-License-Identifier: Apache-2.0
-- The control server, a process of its own with a file of its own: what it
-- answers, who may ask it, what it does when it is killed, stopped or out of
-- disk, and when its clients are slow, broken or too many.
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local perigee = require "perigee"
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow

describe("the control server", function()
  if not control.is_there() then
    it("is there", function()
      pending "perigee/control.so, lua-argparse or lua-cjson is missing"
    end)
    return
  end

  local http = require "perigee.control.http"
  local json = require "cjson.safe"
  local server, client

  local function begin(more, scheme)
    cases.engine()
    server = control.start(more, scheme)
    client = http.new()
    return server
  end

  after_each(function()
    if client then client:close() end
    client = nil
    cases.cleanup()
  end)

  local function request(method, path, body, headers)
    if type(body) == "table" then body = json.encode(body) end
    local list = { unpack(headers or {}) }
    if body then list[#list + 1] = "Content-Type: application/json" end
    if path:sub(1, 1) ~= "/" then path = "/v1/scopes/s/" .. path end
    return { method = method, url = server.url .. path, body = body,
             headers = list, timeout = LONG, limit = 2 ^ 24 }
  end

  -- Status, decoded body and headers of an answer.
  local function ask(...)
    local answer = assert(client:ask(request(...)))
    return answer.status, json.decode(answer.body), answer.headers
  end

  local function refused(status, kind, ...)
    local got, body, headers = ask(...)
    assert.equal(status, got, json.encode(body))
    assert.equal("application/problem+json", headers["content-type"])
    assert.equal(status, body.status)
    assert.equal(kind, body.kind, body.detail)
    return body
  end

  local function entry(epoch, more)
    local all = { addresses = { "tcp://a:1" }, epoch = epoch or "1",
                  host = "h", pid = 7 }
    for name, value in pairs(more or {}) do all[name] = value end
    return all
  end

  local function eventually(f, timeout)
    return assert.is_true(cases.eventually(f, timeout or LONG))
  end

  -- ---- What it answers -----------------------------------------------------

  it("gives a name to one life of an agent at a time", function()
    begin()
    local status, body, headers = ask("PUT", "agents/one", entry "1")
    assert.equal(201, status)
    assert.equal("one", body.name)
    assert.equal("s", body.scope)
    local tag = headers.etag
    assert.equal(200, (ask("PUT", "agents/one", entry "1")))
    local taken = refused(409, "name_taken", "PUT", "agents/one", entry "2")
    assert.equal("1", taken.holder.epoch)
    assert.matches("process 7 on h", taken.detail, 1, true)
    refused(409, "name_taken", "PUT", "agents/one?over=3", entry "2")
    refused(409, "name_taken", "POST", "agents/one/renew?epoch=2")
    refused(409, "name_taken", "DELETE", "agents/one?epoch=2")
    refused(412, "name_taken", "PUT", "agents/one", entry "2",
            { 'If-Match: "77"' })
    refused(412, "name_taken", "PUT", "agents/one", entry "1",
            { "If-None-Match: *" })
    assert.equal(200, (ask("PUT", "agents/one?over=1", entry "2")))
    status, body, headers = ask("GET", "agents/one")
    assert.equal(200, status)
    assert.equal("2", body.epoch)
    assert.is_not.equal(tag, headers.etag)
    assert.equal(304, (ask("GET", "agents/one", nil,
                           { "If-None-Match: " .. headers.etag })))
    assert.equal(200, (ask("PUT", "agents/one", entry "4",
                           { "If-Match: " .. headers.etag })))
    assert.equal(204, (ask("POST", "agents/one/renew?epoch=4")))
    assert.equal(204, (ask("DELETE", "agents/one?epoch=4")))
    refused(404, "not_found", "GET", "agents/one")
    refused(404, "not_found", "DELETE", "agents/one?epoch=4")
    refused(412, "name_taken", "PUT", "agents/one", entry "5",
            { "If-Match: *" })
  end)

  it("gives no name away to who asks for any that there is", function()
    begin()
    assert.equal(201, (ask("PUT", "agents/one", entry "1")))
    refused(409, "name_taken", "PUT", "agents/one", entry "2",
            { "If-Match: *" })
    refused(409, "name_taken", "DELETE", "agents/one?epoch=2", nil,
            { "If-Match: *" })
    assert.equal(200, (ask("PUT", "agents/one", entry "1", { "If-Match: *" })))
    assert.equal(201, (ask("PUT", "entities/a", { kind = "x" })))
    assert.equal(200, (ask("PUT", "entities/a", { kind = "y" },
                           { "If-Match: *" })))
  end)

  it("takes what is in UTF-8", function()
    begin()
    local kind = "\195\164\226\130\172\237\159\191\238\128\128\240\144\128\128"
      .. "\244\143\191\191"
    assert.equal(201, (ask("PUT", "agents/one", entry("1", { kind = kind }))))
    assert.equal(kind, select(2, ask("GET", "agents/one")).kind)
  end)

  it("lists by pages, and what agents have", function()
    begin()
    for i = 1, 25 do
      local name = ("worker:%02d"):format(i)
      assert.equal(201, (ask("PUT", "agents/" .. name, entry("1", {
        kind = i % 2 == 0 and "even" or "odd", services = { calc = i },
        regions = { kv = { length = i, access = "r" } } }))))
    end
    assert.equal(201, (ask("PUT", "agents/anonymous-1", entry())))
    local seen, after, pages = {}, "", 0
    repeat
      local _, page = ask("GET", "agents?limit=10" .. after)
      for _, each in ipairs(page.items) do seen[#seen + 1] = each.name end
      after = page.next and "&after=" .. page.next
      pages = pages + 1
    until not after
    assert.equal(3, pages)
    assert.equal(25, #seen)
    for i, name in ipairs(seen) do
      assert.equal(("worker:%02d"):format(i), name)
    end
    local function count(query)
      local _, page = ask("GET", query)
      return #page.items
    end
    assert.equal(12, count "agents?kind=even")
    assert.equal(9, count "agents?prefix=worker:0")
    assert.equal(1, count "agents?prefix=anonymous")
    assert.equal(25, count "agents?service=calc")
    assert.equal(0, count "agents?service=none")
    assert.equal(0, count "entities")
    local _, page = ask("GET", "regions?prefix=worker:03")
    assert.same({ { agent = "worker:03", name = "kv", length = 3,
                    access = "r" } }, page.items)
    _, page = ask("GET", "services?prefix=worker:03")
    assert.same({ { agent = "worker:03", name = "calc", version = 3 } },
                page.items)
    refused(400, "protocol", "GET", "agents?limit=0")
    refused(400, "protocol", "GET", "agents?limit=1.5")
    refused(400, "protocol", "GET", "agents?limit=x")
  end)

  it("keeps entities, with a lease only if they have one", function()
    begin()
    local lamp = { kind = "lamp", endpoint = "x://1", metadata = { w = 5 } }
    assert.equal(201, (ask("PUT", "entities/a", lamp)))
    assert.equal(201, (ask("PUT", "entities/b?ttl=0.2", lamp)))
    eventually(function() return ask("GET", "entities/b") == 404 end)
    local status, body = ask("GET", "entities/a")
    assert.equal(200, status)
    assert.same({ w = 5 }, body.metadata)
    assert.equal(204, (ask("DELETE", "entities/a")))
    assert.equal(404, (ask("GET", "entities/a")))
  end)

  it("tells the topology that is wanted, beside the one there is", function()
    begin()
    local _, body = ask("GET", "topology")
    assert.same({}, body.actual)
    assert.equal(201, (ask("PUT", "topology", { edges = { { "b", "a" } },
                                               mesh = { "a", "b", "c" } })))
    assert.equal(204, (ask("PUT", "topology/a", { connected = { "b" } })))
    _, body = ask("GET", "topology")
    assert.same({ { ends = { "a", "b" }, state = "up" },
                  { ends = { "a", "c" }, state = "down" },
                  { ends = { "b", "c" }, state = "unknown" } }, body.actual)
    for _, wrong in ipairs { '{"edges":[["a"]]}', '{"edges":[["a","*"]]}',
                             '{"edges":7}', '{"mesh":{"a":1}}', "[]",
                             '{"edges":[{"a":1}]}' } do
      refused(400, "protocol", "PUT", "topology", wrong)
    end
    refused(400, "protocol", "PUT", "topology/a", { connected = 1 })
  end)

  it("describes itself, and says what it has not", function()
    begin()
    local status, body = ask("GET", "/openapi.json")
    assert.equal(200, status)
    for path, methods in pairs(body.paths) do
      path = path:gsub("{(%w+)}", "x")
      for method in pairs(methods) do
        local answer = assert(client:send(request(method:upper(), path,
          method == "put" and "{}" or nil)))
        if path:find "/watch$" then
          answer:cancel()
        else
          local got = assert(answer:wait(LONG))
          assert.is_true(got.status < 500 and got.status ~= 405, path)
        end
      end
    end
    assert.equal(200, (ask("GET", "/healthz")))
    assert.equal(200, (ask("GET", "/readyz")))
    refused(404, "not_found", "GET", "/")
    refused(404, "not_found", "GET", "/v1/scopes/s/nothing")
    refused(404, "not_found", "GET", "agents/a/b/c")
    local _, _, headers = ask("PATCH", "agents/one")
    assert.equal("DELETE, GET, HEAD, OPTIONS, PUT", headers.allow)
  end)

  it("refuses what is no name, no JSON and no entry", function()
    begin { "--head", "32768" }
    for _, name in ipairs { "*", "%2a", "a%0ab", "a%00b", ".a", "a%2fb",
                            ("x"):rep(65), ("x"):rep(10000), "%ff" } do
      refused(400, "protocol", "PUT", "agents/" .. name, entry())
      refused(400, "protocol", "GET", "/v1/scopes/" .. name .. "/agents")
    end
    for _, body in ipairs {
      "", "{", "[]", "7", '"x"', "null", '{"addresses":["a"]}', '{"epoch":"1"}',
      '{"addresses":"a","epoch":"1"}', '{"addresses":[],"epoch":"1"}',
      '{"addresses":["a"],"epoch":1}', '{"addresses":["a"],"epoch":""}',
      '{"addresses":["a"],"epoch":"1","name":"other"}',
      '{"addresses":["a"],"epoch":"1","scope":"other"}',
      '{"addresses":["a"],"epoch":"1","services":7}',
      '{"addresses":["a"],"epoch":"1","kind":null}',
      '{"addresses":["a"],"epoch":"1","x":nan}',
      '{"addresses":["a"],"epoch":"1","x":1e999}',
      '{"addresses":["a"],"epoch":"1","x":"\255"}',
      '{"addresses":["a"],"epoch":"1","x":"\237\160\128"}',
      '{"addresses":["a"],"epoch":"1","x":"\224\128\175"}',
      '{"addresses":["a"],"epoch":"1","x":"\244\144\128\128"}',
      '{"addresses":["a"],"epoch":"1","since":1e999}',
      '{"addresses":["a"],"epoch":"1","since":-1e999}',
      '{"addresses":["a"],"epoch":"1","x":' .. ("["):rep(10000),
      '{"addresses":["a"],"epoch":"1","x":' .. ("["):rep(100) .. ("]"):rep(100)
        .. "}",
    } do
      refused(400, "protocol", "PUT", "agents/one", body)
    end
    refused(400, "protocol", "PUT", "agents/one", entry("1", {
      metadata = { x = ("x"):rep(5000) } }))
    refused(400, "protocol", "PUT", "agents/one?ttl=0", entry())
    refused(400, "protocol", "PUT", "agents/one?ttl=nan", entry())
    refused(413, "too_large", "PUT", "agents/one", entry("1", {
      x = ("x"):rep(70000) }), { "Transfer-Encoding: chunked" })
    assert.equal(413, (ask("PUT", "agents/one", entry("1", {
      x = ("x"):rep(70000) }))))
    local plain = request("PUT", "agents/one", json.encode(entry()))
    plain.headers = { "Content-Type: text/plain" }
    assert.equal(415, assert(client:ask(plain)).status)
    assert.equal(404, (ask("GET", "agents/one")))
  end)

  -- ---- Watching ------------------------------------------------------------

  local function watch(path, headers)
    return assert(client:stream(request("GET", path or "watch", nil, headers)))
  end

  -- The next event: its kind, its data and its id.
  local function event(stream)
    local got = {}
    while true do
      local line = assert(stream:line(2 ^ 24, LONG))
      local field, value = line:match "^(%a+): (.*)$"
      if field then got[field] = value end
      if line == "" and got.data then
        return got.event, json.decode(got.data), got.id
      end
    end
  end

  it("tells watchers of each change, also of those that they missed",
     function()
    begin()
    ask("PUT", "agents/one", entry())
    local stream = watch()
    local kind, data, id = event(stream)
    assert.is_string(id)
    assert.equal("all", kind)
    assert.equal("one", data.entries[1].name)
    ask("PUT", "agents/two?ttl=0.2", entry())
    kind, data, id = event(stream)
    assert.same({ "change", "two" }, { kind, data.name })
    assert.equal("1", data.entry.epoch)
    stream:close()
    ask("PUT", "agents/three", entry())
    stream = watch("watch", { "Last-Event-ID: " .. id })
    local told = {}
    eventually(function()
      kind, data = event(stream)
      assert.equal("change", kind)
      told[data.name] = data.entry and "up" or "gone"
      return told.three == "up" and told.two == "gone"
    end)
    stream:close()
    stream = watch("watch", { "Last-Event-ID: of another time" })
    assert.equal("all", (event(stream)))
    stream:close()
    refused(400, "protocol", "GET", "watch?collection=nothing")
  end)

  it("ends the stream of a watcher that is too slow, and of no other",
     function()
    begin { "--queued", "65536" }
    local slow = sockets.dial("tcp://127.0.0.1:" .. server.port)
    sockets.send(slow, "GET /v1/scopes/s/watch?collection=entities HTTP/1.1"
                 .. "\r\nHost: a\r\n\r\n")
    assert.equal(1, #sockets.readable({ slow }, LONG))
    local stream = watch "watch?collection=entities"
    event(stream)
    for i = 1, 300 do -- more than the sockets of both sides keep
      ask("PUT", "entities/a" .. i % 10, {
        kind = "x", endpoint = ("x"):rep(60000) .. i })
      local _, data = event(stream)
      assert.equal("a" .. i % 10, data.name)
    end
    local read, over = 0, false
    assert.is_true(cases.eventually(function()
      local text
      repeat
        text = sockets.receive(slow)
        read, over = read + #(text or ""), over or text == ""
      until not text or over
      return over
    end, LONG))
    assert.is_true(read < 300 * 60000)
    sockets.close(slow)
    stream:close()
  end)

  -- ---- Who may ask ---------------------------------------------------------

  it("admits by tokens what their roles may, in their scopes", function()
    begin { "--rate", "1000" }
    local function token(words) return server:command("token new " .. words) end
    local function bearer(text) return { "Authorization: Bearer " .. text } end
    assert.equal(200, (ask("GET", "agents")))
    local tokens = { read = token "--scope s --role read",
                     register = token "--scope s --role register",
                     admin = token "--scope s --role admin",
                     foreign = token "--scope other --role admin",
                     all = token "--role read" }
    eventually(function() return ask("GET", "agents") == 401 end)
    refused(401, "denied", "GET", "agents")
    refused(401, "denied", "GET", "agents", nil, bearer "wrong")
    refused(401, "denied", "GET", "agents", nil, { "Authorization: Basic x" })
    refused(403, "denied", "GET", "agents", nil, bearer(tokens.foreign))
    refused(403, "denied", "PUT", "agents/a", entry(), bearer(tokens.read))
    refused(403, "denied", "PUT", "topology", {}, bearer(tokens.register))
    assert.equal(200, (ask("GET", "agents", nil, bearer(tokens.read))))
    assert.equal(200, (ask("GET", "agents", nil, bearer(tokens.all))))
    assert.equal(201, (ask("PUT", "agents/a", entry(),
                           bearer(tokens.register))))
    refused(409, "name_taken", "DELETE", "agents/a", nil,
            bearer(tokens.register))
    assert.equal(204, (ask("DELETE", "agents/a", nil, bearer(tokens.admin))))
    assert.equal(201, (ask("PUT", "topology", {}, bearer(tokens.admin))))
    assert.equal(200, (ask("GET", "/healthz")))
    local list = server:command "token list"
    local id = list:match "(%x+)%s+s%s+read"
    server:command("token revoke " .. id)
    eventually(function()
      return ask("GET", "agents", nil, bearer(tokens.read)) == 401
    end)
    for name, text in pairs(tokens) do
      assert.equal(51, #text)
      assert.is_nil(list:find(text, 1, true), name)
      for _, more in ipairs { "", "-wal", ".log" } do
        local file = assert(io.open(server.store .. more))
        assert.is_nil(file:read "*a":find(text, 1, true), name .. more)
        file:close()
      end
    end
  end)

  it("ends the streams of those who may not watch any more", function()
    begin()
    local function opened(text)
      return assert(client:stream(request("GET", "watch", nil, text
        and { "Authorization: Bearer " .. text } or nil)))
    end
    local function ended(stream)
      local line, kind
      repeat line, kind = stream:line(2 ^ 20, LONG) until not line
      return kind ~= "timeout"
    end
    local open = opened()
    local reader = server:command "token new --role read"
    assert.is_true(ended(open))
    local admin = server:command "token new --role admin"
    eventually(function()
      return ask("GET", "agents", nil, { "Authorization: Bearer " .. admin })
        == 200
    end)
    local read, kept = opened(reader), opened(admin)
    server:command("token revoke " .. server:command "token list"
      :match "(%x+)%s+%S+%s+read")
    assert.is_true(ended(read))
    assert.equal(201, (ask("PUT", "agents/one", entry(), {
      "Authorization: Bearer " .. admin })))
    local line
    repeat line = assert(kept:line(2 ^ 20, LONG)) until line:find '"one"'
    for _, each in ipairs { open, read, kept } do each:close() end
  end)

  it("gives a token so many requests in a second", function()
    begin { "--rate", "1" }
    local text = server:command "token new"
    local headers = { "Authorization: Bearer " .. text }
    eventually(function() return ask("GET", "agents") == 401 end)
    eventually(function()
      local asked, refusals = {}, 0
      for i = 1, 10 do
        asked[i] = client:send(request("GET", "agents", nil, headers))
      end
      for _, each in ipairs(asked) do
        local answer = assert(each:wait(LONG))
        if answer.status == 429 then refusals = refusals + 1 end
      end
      return refusals > 0
    end)
    eventually(function()
      return ask("GET", "agents", nil, headers) == 200
    end)
  end)

  -- ---- Bad clients ---------------------------------------------------------

  local function raw(text)
    local fd = sockets.dial("tcp://127.0.0.1:" .. server.port)
    sockets.send(fd, text)
    return fd
  end

  local function ends(fd)
    return cases.eventually(function()
      return #sockets.readable({ fd }, 0) > 0 and sockets.receive(fd) == ""
    end, LONG)
  end

  it("closes connections that send too slowly, and serves the others",
     function()
    begin { "--patience", "1" }
    local put = "PUT /v1/scopes/s/entities/a HTTP/1.1\r\nHost: a\r\n"
    local list = { raw "", raw "GET", raw(put),
                   raw(put .. "Content-Length: 100\r\n\r\n{"),
                   raw(put .. "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n") }
    local dripping = raw(put .. "Content-Length: 10000\r\n\r\n")
    for _, fd in ipairs(list) do
      assert.is_true(ends(fd))
      assert.equal(200, (ask("GET", "/healthz")))
      sockets.close(fd)
    end
    eventually(function()
      sockets.send(dripping, "x")
      return #sockets.readable({ dripping }, 0) > 0
        and sockets.receive(dripping) == ""
    end)
    sockets.close(dripping)
  end)

  it("lives on after what is no HTTP, and heads without an end", function()
    begin()
    for _, text in ipairs { "\0\255", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                            "GET / HTTP/1.1\r\n\r\n", "\22\3\1\2\0\1\0",
                            "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
                            "GET " .. ("/x"):rep(50000) } do
      sockets.close(raw(text))
    end
    local fd = raw "GET / HTTP/1.1\r\nHost: a\r\n"
    local line = ("A: b\r\n"):rep(1000)
    for _ = 1, 1000 do
      if not sockets.send(fd, line) then break end
    end
    sockets.close(fd)
    assert.equal(200, (ask("GET", "/healthz")))
  end)

  -- Seconds of the processor that the server has used.
  local function used()
    local file = assert(io.open(("/proc/%d/stat"):format(server.process.pid)))
    local user, system = file:read "*a":match("%) %a" .. (" %-?%d+"):rep(10)
      .. " (%d+) (%d+)")
    file:close()
    return (user + system) / 100
  end

  it("is not kept busy by numbers and paths of any length", function()
    begin { "--head", "32768" }
    local digits, before = ("1"):rep(30000), used()
    refused(404, "not_found", "GET", digits:sub(1, 9000) .. "/a/b/c")
    for _ = 1, 5 do
      refused(400, "protocol", "GET", "agents?limit=" .. digits .. "x")
    end
    assert.is_true(used() - before < 2 * cases.slow)
  end)

  it("takes no more connections than it may, and others after they end",
     function()
    begin { "--connections", "20" }
    local list = {}
    for i = 1, 100 do
      list[i] = sockets.dial("tcp://127.0.0.1:" .. server.port, true)
    end
    for _, fd in ipairs(list) do sockets.close(fd) end
    eventually(function()
      local answer = client:ask(request("GET", "/healthz"))
      return answer and answer.status == 200
    end)
  end)

  it("ends when it is told to, however much it is asked", function()
    begin()
    local flood = process.spawn { "bash", "-c", ([[
      for _ in 1 2 3 4 5 6 7 8; do
        (exec 3<>/dev/tcp/127.0.0.1/%d; cat <&3 >/dev/null &
         yes $'GET /healthz HTTP/1.1\r\nHost: a\r\n\r' >&3) 2>/dev/null &
      done
      echo asking; wait]]):format(server.port) }
    flood:expect("asking", LONG)
    for _ = 1, 20 do assert.equal(200, (ask("GET", "/healthz"))) end
    server.process:signal "TERM"
    assert.same({ "exit", 0 }, { server.process:wait(LONG) })
    flood:wait(LONG)
  end)

  -- ---- What lasts ----------------------------------------------------------

  it("has all that it acknowledged after each kill -9", function()
    begin()
    local acknowledged, n = {}, 0
    for _ = 1, 5 do
      local running = true
      local function write()
        while running do
          n = n + 1
          local name = "e" .. n
          local answer = client:ask(request("PUT", "entities/" .. name,
                                            { kind = "x" }))
          if answer and answer.status == 201 then
            acknowledged[#acknowledged + 1] = name
          elseif not answer then
            return
          end
        end
      end
      local writers, before = {}, #acknowledged
      for i = 1, 8 do writers[i] = perigee.spawn(write) end
      eventually(function() return #acknowledged - before > 50 end)
      server:kill()
      running = false
      for _, writer in ipairs(writers) do writer:wait(LONG) end
      server:begin()
      local there, after = {}, ""
      repeat
        local _, page = ask("GET", "entities?limit=1000" .. after)
        for _, each in ipairs(page.items) do there[each.name] = true end
        after = page.next and "&after=" .. page.next
      until not after
      for _, name in ipairs(acknowledged) do
        assert.is_true(there[name], name)
      end
    end
  end)

  it("begins leases anew when it comes back, for one ttl", function()
    begin()
    ask("PUT", "agents/one?ttl=5", entry())
    server:kill()
    process.usleep(5.1)
    server:begin()
    assert.equal(200, (ask("GET", "agents/one")))
    refused(409, "name_taken", "PUT", "agents/one", entry "2")
    eventually(function() return ask("GET", "agents/one") == 404 end)
  end)

  it("ends no lease because it was stopped itself", function()
    begin()
    ask("PUT", "agents/one?ttl=5", entry())
    server.process:signal "STOP"
    process.usleep(5.5)
    server.process:signal "CONT"
    assert.equal(200, (ask("GET", "agents/one")))
  end)

  it("has one process for a file", function()
    begin()
    local other = process.spawn { "luajit", "lua/perigee/cli/perigee", "ctrl",
      "serve", "--store", server.store, "--listen", "http://127.0.0.1:0",
      "--pid", server.store .. ".other", "--log", "/dev/null" }
    assert.same({ "exit", 1 }, { other:wait(LONG) })
    assert.equal(200, (ask("GET", "/readyz")))
  end)

  it("has nothing of who was refused since the disk did not take another's",
     function()
    local servers = require "perigee.control.server"
    cases.engine()
    client = http.new()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local here = assert(servers.open { host = "127.0.0.1", port = 0,
                                       store = cases.folder .. "/here.db" })
    server = { url = "http://127.0.0.1:" .. here.port }
    local commit = here.storage.commit
    function here.storage.commit(storage)
      here.storage.commit = commit
      storage:discard()
      return nil, "no_memory", "the disk is full"
    end
    local asked = {}
    for i = 1, 4 do
      asked[i] = client:send(request("PUT", "agents/one", entry(tostring(i))))
    end
    local kept
    for i, each in ipairs(asked) do
      local status = assert(each:wait(LONG)).status
      if status == 201 then kept = tostring(i) end
    end
    local status, body = ask("GET", "agents/one")
    assert.equal(kept and 200 or 404, status)
    assert.equal(kept, body.epoch)
    here:close()
    here.ended:wait(LONG)
  end)

  it("forgets scopes in which there is nothing any more", function()
    local files = require "perigee.control.server.file"
    local states = require "perigee.control.server.state"
    cases.engine()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local storage = assert(files.open(cases.folder .. "/scopes.db"))
    local state = assert(states.open(storage))
    for i = 1, 100 do
      local records = state:collection("s" .. i, "agents")
      state:put(records, "one", '{"kind":"x"', 10)
    end
    local watched = state:collection("watched", "agents")
    watched.watchers[1] = {}
    state:collection("read", "agents")
    assert(state:commit())
    for i = 2, 100 do
      state:remove(state:known("s" .. i, "agents").records.one)
    end
    assert(state:commit())
    local before = state:known("s2", "agents").changes:revision()
    state:tidy()
    local left = {}
    for scope in pairs(state.scopes) do left[#left + 1] = scope end
    table.sort(left)
    assert.same({ "s1", "watched" }, left)
    local anew = state:collection("s2", "agents")
    assert.is_nil(anew.changes:since(before))
    storage:close()
  end)

  it("acknowledges nothing that the disk does not take, and goes on",
     function()
    cases.engine()
    server = control.start({}, nil, "trap '' XFSZ; ulimit -f 300; ")
    client = http.new()
    local large = { kind = "x", metadata = { x = ("x"):rep(4000) } }
    local kept, status = 0
    repeat
      status = ask("PUT", "entities/a" .. kept, large)
      if status == 201 then kept = kept + 1 end
    until status ~= 201 or kept > 1000
    assert.is_true(status == 507 or status == 503, status)
    assert.is_true(kept > 0)
    refused(404, "not_found", "GET", "entities/a" .. kept)
    assert.equal(200, (ask("GET", "entities/a0")))
    assert.equal(503, (ask("GET", "/readyz")))
    server:kill()
    server.before = ""
    server:begin()
    for i = 0, kept - 1 do
      assert.equal(200, (ask("GET", "entities/a" .. i)))
    end
    assert.equal(404, (ask("GET", "entities/a" .. kept)))
    assert.equal(201, (ask("PUT", "entities/a" .. kept, large)))
    assert.equal(200, (ask("GET", "/readyz")))
  end)
end)
