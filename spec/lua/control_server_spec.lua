-- SPDX-License-Identifier: Apache-2.0
-- The control server, a process of its own with a file of its own: what it
-- answers, and what it tells those who watch.
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow

local ask, entry, refused = asking.ask, asking.entry, asking.refused
local eventually, request = cases.await, asking.request

needing("the control server", { control }, function()
  local json = require "cjson.safe"
  local server

  local function begin(...) server = asking.begin(...) end
  after_each(asking.finish)

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

  local function joins(name, headers)
    assert.equal(headers, select(3, ask("POST", "agents/" .. name
      .. "/renew?epoch=1"))["perigee-topology"])
  end

  it("tells the topology that is wanted, beside the one there is", function()
    begin()
    local _, body = ask("GET", "topology")
    assert.same({ wanted = {}, actual = {} }, body)
    for _, name in ipairs { "a", "b", "c" } do
      assert.equal(201, (ask("PUT", "agents/" .. name, entry "1")))
    end
    joins("a", nil)
    local wanted = { edges = { { "b", "a" }, { "a", "d" } },
                     mesh = { "a", "b", "c" } }
    assert.equal(201, (ask("PUT", "topology", wanted)))
    joins("a", "unreported")
    assert.equal(204, (ask("PATCH", "topology/a?epoch=1", { peers = {
      { name = "b", state = "up", seconds = 7 }, { name = "c", state = "up" },
      { name = "x", state = "up" }, { name = "d", state = "down" } } })))
    assert.equal(204, (ask("PATCH", "topology/c?epoch=1", { peers = {
      { name = "a", state = "down", seconds = 3, why = "\"it\" ended" } } })))
    joins("a", "wanted")
    _, body = ask("GET", "topology")
    assert.same(wanted, body.wanted)
    local since = {}
    for i, edge in ipairs(body.actual) do
      since[i], edge.since = edge.since or false, nil
    end
    assert.same({
      { ends = { "a", "b" }, dials = "b", state = "up" },
      { ends = { "a", "d" }, dials = "a", state = "absent",
        absent = { "d" } },
      { ends = { "a", "c" }, dials = "a", state = "down",
        why = '"it" ended' },
      { ends = { "b", "c" }, dials = "b", state = "unknown" } }, body.actual)
    assert.is_true(since[1] >= 7 and since[3] >= 3)
    assert.same({ false, false }, { since[2], since[4] })
    for _, wrong in ipairs { '{"edges":[["a"]]}', '{"edges":[["a","*"]]}',
                             '{"edges":7}', '{"mesh":{"a":1}}', "[]",
                             '{"edges":[{"a":1}]}', '{"edges":{"a":[]}}',
                             '{"edgez":[["a","b"]]}' } do
      refused(400, "protocol", "PUT", "topology", wrong)
    end
  end)

  it("takes of an agent what it says of its own edges alone", function()
    begin()
    for _, name in ipairs { "a", "b", "c" } do
      assert.equal(201, (ask("PUT", "agents/" .. name, entry "1")))
    end
    ask("PUT", "topology", { edges = { { "a", "b" }, { "b", "c" } } })
    local function up(...)
      local peers = {}
      for i, name in ipairs { ... } do
        peers[i] = { name = name, state = "up" }
      end
      return { peers = peers }
    end
    local all = up("a", "b", "c")
    refused(409, "name_taken", "PATCH", "topology/a", all)
    refused(409, "name_taken", "PATCH", "topology/a?epoch=2", all)
    refused(404, "not_found", "PATCH", "topology/d?epoch=1", all)
    for _, wrong in ipairs {
      {}, { peers = 7 }, { peers = { "b" } }, { peers = up "b" }, up "*",
      { peers = { { name = "b", state = "x" } } },
      { peers = { { name = "b", state = "up", seconds = -1 } } },
      { peers = { { name = "b", state = "up", why = ("x"):rep(501) } } } } do
      refused(400, "protocol", "PATCH", "topology/a?epoch=1", wrong)
    end
    refused(400, "protocol", "PATCH", "topology/a?epoch=1",
            '{"peers":[{"name":"b","state":"up","seconds":1e999}]}')
    local function states()
      local told = {}
      for i, edge in ipairs(select(2, ask("GET", "topology")).actual) do
        told[i] = edge.state
      end
      return told
    end
    assert.same({ "unknown", "unknown" }, states())
    assert.equal(204, (ask("PATCH", "topology/a?epoch=1", all)))
    assert.same({ "up", "unknown" }, states())
    assert.equal(200, (ask("PUT", "agents/a", entry("1", { weight = 2 }))))
    assert.same({ "up", "unknown" }, states())
    assert.equal(200, (ask("PUT", "agents/a?over=1", entry "2")))
    assert.same({ "unknown", "unknown" }, states())
    assert.equal(204, (ask("PATCH", "topology/a?epoch=2", all)))
    assert.equal(204, (ask("DELETE", "agents/a?epoch=2")))
    assert.same({ "absent", "unknown" }, states())
  end)

  it("describes itself, and says what it has not", function()
    begin()
    local status, body = ask("GET", "/openapi.json")
    assert.equal(200, status)
    for path, methods in pairs(body.paths) do
      path = path:gsub("{(%w+)}", "x")
      for method in pairs(methods) do
        local answer = assert(asking.client:send(request(method:upper(), path,
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
    begin { "--head", "32768", "--body", "65536" }
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
    plain.headers[#plain.headers] = "Content-Type: text/plain"
    assert.equal(415, assert(asking.client:ask(plain)).status)
    assert.equal(404, (ask("GET", "agents/one")))
  end)

  -- ---- Watching ------------------------------------------------------------

  local function watch(path, headers)
    return assert(asking.client:stream(request("GET", path or "watch", nil,
                                               headers)))
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
                 .. "\r\nHost: localhost\r\n\r\n")
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
end)
