-- SPDX-License-Identifier: Apache-2.0
-- What the control server makes of HTTP itself: heads that contradict each
-- other, methods, media types, tags, targets, and many connections.
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow

local ask = asking.ask

needing("the control server's HTTP", { control }, function()
  local json = require "cjson.safe"
  local server
  local HOST = "Host: localhost\r\n"

  local function begin(...) server = asking.begin(...) end
  after_each(asking.finish)

  local function dial()
    return sockets.dial("tcp://127.0.0.1:" .. server.port)
  end

  -- The bytes that the server sends until f is true of them, or until it has
  -- closed.
  local function heard(fd, f)
    local text, over = "", false
    assert.is_true(cases.eventually(function()
      if #sockets.readable({ fd }, 0) > 0 then
        local more = sockets.receive(fd)
        text, over = text .. (more or ""), more == ""
      end
      return over or f ~= nil and f(text)
    end, LONG))
    return text, over
  end

  -- Sends a text; what comes until the server closes the connection.
  local function said(text)
    local fd = dial()
    sockets.send(fd, text)
    local answer = heard(fd)
    sockets.close(fd)
    return answer
  end

  local function is_problem(text, status)
    assert.equal(tostring(status), text:match "^HTTP/1.1 (%d+)", text)
    assert.matches("Content-Type: application/problem+json", text, 1, true)
    local body = json.decode(text:match "\r\n\r\n(.*)$")
    assert.equal(status, body.status)
    assert.is_string(body.kind)
  end

  it("refuses heads that say two things, and closes", function()
    begin()
    local put = "PUT /v1/scopes/s/entities/a HTTP/1.1\r\n"
    local body = '\r\n{"kind":"x"}GET /healthz HTTP/1.1\r\n' .. HOST .. "\r\n"
    for text, status in pairs {
      ["GET /healthz HTTP/1.1\r\n\r\n"] = 400,
      ["GET /healthz HTTP/1.1\r\n" .. HOST .. HOST .. "\r\n"] = 400,
      ["GET /healthz HTTP/1.1\r\n" .. HOST .. "A : b\r\n\r\n"] = 400,
      ["GET /healthz HTTP/1.1\r\n" .. HOST .. "A(b): c\r\n\r\n"] = 400,
      ["GET /healthz HTTP/1.1\r\n" .. HOST .. "A: b\rC: d\r\n\r\n"] = 400,
      ["GET /healthz HTTP/1.1\r\n" .. HOST .. "A: \127\r\n\r\n"] = 400,
      ["GET /healthz HTTP/1.1\r\n" .. HOST .. "A: b\r\n c\r\n\r\n"] = 400,
      ["GET /heal thz HTTP/1.1\r\n" .. HOST .. "\r\n"] = 400,
      ["GET /\200 HTTP/1.1\r\n" .. HOST .. "\r\n"] = 400,
      [put .. HOST .. "Content-Length: 12\r\nContent-Length: 5\r\n"
        .. body] = 400,
      [put .. HOST .. "Content-Length: 12\r\nTransfer-Encoding: chunked\r\n"
        .. body] = 400,
      [put .. HOST .. "Content-Length:\r\n 12\r\n" .. body] = 400,
      [put .. HOST .. "Transfer-Encoding:\r\n chunked\r\n" .. body] = 400,
      [put .. HOST .. "Transfer-: chunked\r\n Encoding\r\n" .. body] = 400,
      [put .. HOST .. "Transfer-Encoding: gzip, chunked\r\n" .. body] = 501,
      [put .. HOST .. "Content-Length: 12\r\nExpect: more\r\n" .. body] = 417,
      [put .. HOST .. "Content-Length: 9999999\r\n" .. body] = 413,
    } do
      is_problem(said(text), status)
    end
    assert.equal(404, (ask("GET", "entities/a")))
  end)

  it("refuses a head that is too large in a problem", function()
    begin { "--head", "2000" }
    is_problem(said("GET /" .. ("x"):rep(2100) .. " HTTP/1.1\r\n" .. HOST
                    .. "\r\n"), 414)
    is_problem(said("GET /healthz HTTP/1.1\r\n" .. HOST .. "A: "
                    .. ("x"):rep(2100) .. "\r\n\r\n"), 431)
    assert.matches("^HTTP/1.1 431", said("GET /healthz HTTP/1.1\r\n" .. HOST
      .. ("A: b\r\n"):rep(1000) .. "\r\n"))
  end)

  local GET = "GET /healthz HTTP/1.1\r\n" .. HOST .. "\r\n"

  local function is_up(text) return text:find('"up"', 1, true) ~= nil end

  it("gives a place to who comes, and takes it from the longest silent one",
     function()
    begin { "--connections", "2" }
    local kept = {}
    for i = 1, 3 do
      kept[i] = dial()
      sockets.send(kept[i], GET)
      assert.matches("^HTTP/1.1 200", (heard(kept[i], is_up)))
    end
    assert.same({ "", true }, { heard(kept[1]) })
    for i = 2, 3 do
      sockets.send(kept[i], GET)
      assert.matches("^HTTP/1.1 200", (heard(kept[i], is_up)))
    end
    for _, fd in ipairs(kept) do sockets.close(fd) end
  end)

  it("tells connections beyond its limit so where all others are served",
     function()
    begin { "--connections", "2" }
    local streams = {}
    for i = 1, 2 do
      streams[i] = dial()
      sockets.send(streams[i], "GET /v1/scopes/s/watch HTTP/1.1\r\n" .. HOST
        .. asking.headers(server.url)[1] .. "\r\n\r\n")
      heard(streams[i], function(text) return text:find "event: all" end)
    end
    local refused = said(GET)
    is_problem(refused, 503)
    assert.matches("Retry-After: 1", refused, 1, true)
    for _, fd in ipairs(streams) do sockets.close(fd) end
    assert.is_true(cases.eventually(function()
      return ask("GET", "/healthz") == 200
    end, LONG))
  end)

  it("tells what can be asked of a path", function()
    begin()
    local status, _, headers = ask("OPTIONS", "agents/one")
    assert.same({ 204, "DELETE, GET, HEAD, OPTIONS, PUT" },
                { status, headers.allow })
    assert.matches("^HTTP/1.1 204", (said("OPTIONS * HTTP/1.1\r\n" .. HOST
      .. "Connection: close\r\n\r\n")))
    assert.equal(404, (ask("OPTIONS", "/none")))
    assert.equal(405, (ask("DELETE", "agents")))
    -- A HEAD has no body, not even of a stream.
    local text = said("HEAD /v1/scopes/s/watch HTTP/1.1\r\n" .. HOST
      .. "\r\nGET /healthz HTTP/1.1\r\n" .. HOST .. "Connection: close\r\n\r\n")
    local first, second = text:match "^(.-\r\n\r\n)(.*)$"
    assert.matches("^HTTP/1.1 200", first)
    assert.matches("^HTTP/1.1 200", second)
  end)

  it("knows a path by any of its spellings, and by no other", function()
    begin()
    assert.equal(201, (ask("PUT", "entities/a", '{"kind":"x"}')))
    for _, path in ipairs { "entities/%61", "/v1/scopes/%73/entities/a",
                            "/v1/scopes/s/%65ntities/a?" } do
      assert.equal(200, (ask("GET", path)), path)
    end
    assert.matches("^HTTP/1.1 200", (said("GET " .. server.url
      .. "/healthz HTTP/1.1\r\n" .. HOST .. "Connection: close\r\n\r\n")))
    for _, path in ipairs { "entities/a/", "entities/", "/healthz/",
                            "/v1//scopes/s/entities/a", "entities//renew" } do
      assert.equal(404, (ask("GET", path)), path)
    end
    assert.equal(400, (ask("GET", "entities/a%2Fb")))
    assert.equal(400, (ask("GET", "entities?limit=1&limit=2")))
  end)

  it("sends what is asked for, and takes what it can read", function()
    begin()
    local function get(accept, path)
      return (ask("GET", path or "agents", nil, { "Accept: " .. accept }))
    end
    for _, accept in ipairs { "*/*", "application/*", "Application/JSON",
                              "text/html, */*;q=0.1" } do
      assert.equal(200, get(accept), accept)
    end
    for _, accept in ipairs { "text/html", "application/json;q=0, */*",
                              "text/event-stream" } do
      assert.equal(406, get(accept), accept)
    end
    assert.equal(406, get("application/json", "watch"))
    assert.equal(200, get("text/event-stream", "watch?for=0"))
    assert.equal(415, (ask("PUT", "entities/a", '{"kind":"x"}',
                           { "Content-Encoding: gzip" })))
    for _, metadata in ipairs { "[1]", "[null]" } do
      assert.equal(400, (ask("PUT", "entities/a",
        ('{"kind":"x","metadata":%s}'):format(metadata))))
      assert.equal(400, (ask("PUT", "agents/a",
        ('{"epoch":"1","addresses":["tcp://a:1"],"regions":%s}')
          :format(metadata))))
    end
  end)

  it("compares tags strongly to write, weakly to read, and all of them",
     function()
    begin()
    local put = '{"kind":"x"}'
    local _, _, headers = ask("PUT", "entities/a", put)
    local tag = headers.etag
    assert.matches('^"', tag)
    assert.equal(412, (ask("PUT", "entities/a", put,
                           { "If-Match: W/" .. tag })))
    assert.equal(200, (ask("PUT", "entities/a", put,
                           { 'If-Match: "none"', "If-Match: " .. tag })))
    assert.equal(412, (ask("PUT", "entities/a", put,
                           { 'If-None-Match: "none"',
                             "If-None-Match: W/" .. tag })))
    assert.equal(304, (ask("GET", "entities/a", nil,
                           { "If-None-Match: W/" .. tag })))
    _, _, headers = ask("GET", "entities")
    assert.matches('^"', headers.etag)
    local known = { "If-None-Match: " .. headers.etag }
    assert.equal(304, (ask("GET", "entities", nil, known)))
    ask("PUT", "entities/b", put)
    assert.equal(200, (ask("GET", "entities", nil, known)))
  end)

  it("ends a stream after the time that it was asked for", function()
    begin()
    local text = said("GET /v1/scopes/s/watch?for=0.3 HTTP/1.1\r\n" .. HOST
      .. "Connection: close\r\n\r\n")
    assert.matches("event: all", text, 1, true)
    assert.matches("\r\n0\r\n\r\n$", text)
    assert.equal(400, (ask("GET", "watch?for=x")))
    assert.equal(201, (ask("PUT", "agents/a",
      '{"epoch":"1","addresses":["tcp://a:1"]}')))
  end)

  it("forgets who has gone before the time that it asked for", function()
    cases.engine()
    os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
    local here = assert(require("perigee.control").open {
      host = "127.0.0.1", port = 0, store = cases.folder .. "/gone.db",
      heartbeat = 0.1 })
    server = { port = here.port }
    local fd = dial()
    sockets.send(fd, "GET /v1/scopes/s/watch?for=3600 HTTP/1.1\r\n" .. HOST
      .. "\r\n")
    local function has(n)
      assert.is_true(cases.eventually(function()
        return #here.state.timed == n
      end, LONG))
    end
    has(1)
    sockets.close(fd)
    has(0)
    here:close()
  end)

  it("bounds what its watchers are behind, together", function()
    local web = require "perigee.net.web"
    cases.engine()
    local here = assert(web.open { host = "127.0.0.1", port = 0,
      connections = 10, per_host = 0, head = 4096, body = 1000, patience = 60,
      queued = 2 ^ 24, backlog = 2 ^ 20 })
    server = { port = here.port }
    local list, streams, fds = {}, {}, {}
    for i = 1, 4 do
      fds[i] = dial()
      sockets.send(fds[i], "GET / HTTP/1.1\r\n" .. HOST .. "\r\n")
    end
    assert.is_true(cases.eventually(function()
      here:run(list)
      return #list == 4
    end, LONG))
    for i, each in ipairs(list) do streams[i] = each:stream(200, {}) end
    -- Each may be far behind alone; the one that was first may not any more.
    local part = ("x"):rep(2 ^ 19)
    assert.is_true(streams[1]:tell(part))
    assert.is_true(streams[2]:tell(part))
    assert.is_true(streams[3]:tell(part))
    assert.is_false(streams[1]:tell "x")
    assert.is_true(streams[3]:tell "x")
    assert.is_false(streams[2]:tell "x")
    assert.is_false(streams[3]:tell(part .. part))
    -- One that has taken all may be told more than all may be behind.
    assert.is_true(streams[4]:tell(part .. part .. part))
    for i = 1, 4 do
      streams[i]:close()
      sockets.close(fds[i])
    end
    here:close()
    perigee.sleep(0)
  end)
end)
