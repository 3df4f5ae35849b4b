-- SPDX-License-Identifier: Apache-2.0
-- The client of HTTP servers, with a server that does what a path says, also
-- what no good server does.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process" -- declares spec_setenv

local LONG = 30 * cases.slow

-- Serves one connection at a time, for one request each. Says how many bytes of
-- an endless answer it could send until its client was gone.
local function server(child, _, c)
  local sockets = require "spec.net.sockets"
  local door, port = sockets.listen "127.0.0.1"
  child.say(port)

  local function answer(fd, body, more)
    sockets.send(fd, ("HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s")
      :format(more or "", #body, body))
  end

  local paths = {}
  function paths.echo(fd, head, body)
    answer(fd, head .. body, "X-One:  1 \r\nx-one: 2\r\n")
  end
  function paths.interim(fd)
    sockets.send(fd, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
    sockets.send(fd, "HTTP/1.1 404 None\r\nTransfer-Encoding: chunked\r\n\r\n"
      .. "3\r\nabc\r\n2\r\nde\r\n0\r\nX-Late: 1\r\n\r\n")
  end
  function paths.away(fd)
    sockets.send(fd, "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n"
      .. "Content-Length: 0\r\n\r\n")
  end
  function paths.junk(fd) sockets.send(fd, "I am no web server.\r\n") end
  function paths.half(fd)
    sockets.send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
  end
  function paths.silent(fd) sockets.readable({ fd }, 60) end
  function paths.large(fd) answer(fd, ("x"):rep(2 ^ 20 + 1)) end
  function paths.head(fd)
    sockets.send(fd, "HTTP/1.1 200 OK\r\n")
    while sockets.send(fd, "X-More: " .. ("x"):rep(1000) .. "\r\n") do end
  end
  function paths.blanks(fd)
    answer(fd, "", "X-Wide: a" .. (" "):rep(60000) .. "b \t \r\nX-None: \r\n")
  end
  function paths.lines(fd)
    sockets.send(fd, "HTTP/1.1 200 OK\r\n\r\none\r\n\ntw")
    sockets.send(fd, "o\n" .. ("l"):rep(5000) .. "\nthe rest")
  end
  function paths.wide(fd)
    sockets.send(fd, "HTTP/1.1 200 OK\r\n\r\n")
    for _ = 1, 160 do sockets.send(fd, ("w"):rep(100000)) end
    sockets.send(fd, "\r\nnext\n")
  end
  function paths.endless(fd)
    sockets.send(fd, "HTTP/1.1 200 OK\r\n\r\n")
    local much, sent = ("x"):rep(65536), 0
    while #sockets.readable({ fd }, 0) == 0 and sent < 2 ^ 26 do
      local n = c.C.spec_send(fd, much, #much, 0x4040) -- without waiting
      sent = sent + math.max(0, tonumber(n))
    end
    child.say(sent)
  end

  while true do
    local fd = sockets.accept(door)
    local head, body = sockets.request(fd)
    if head then paths[head:match "^%u+ /(%w+)"](fd, head, body) end
    sockets.close(fd)
  end
end

describe("a client of HTTP servers", function()
  if not package.searchpath("perigee.control", package.cpath) then
    it("is there", function() pending "perigee/control.so is missing" end)
    return
  end

  local http = require "perigee.net.http"
  local child, client, at

  local pump = cases.pump

  before_each(function()
    cases.engine()
    child = process.start(server)
    at = ("http://127.0.0.1:%s/"):format(child:read(LONG, pump))
    client = http.new()
  end)
  after_each(function()
    client:close()
    cases.cleanup()
  end)

  local function ask(path, more)
    local request = { url = at .. path, timeout = LONG }
    for name, value in pairs(more or {}) do request[name] = value end
    return client:ask(request)
  end

  local function fails(kind, path, more)
    local none, given, why = ask(path, more)
    assert.is_nil(none)
    assert.equal(kind, given, why)
    assert.is_string(why)
    return why
  end

  it("sends what it is given, and gives what is answered", function()
    local body = "\0\255" .. ("b"):rep(300000)
    local answer = assert(ask("echo?a=../b", { method = "PUT", body = body,
      limit = 2 ^ 20, headers = { "X-Mine: a: b", "Content-Type: x/y" } }))
    assert.equal(200, answer.status)
    assert.equal("1, 2", answer.headers["x-one"])
    assert.matches("^PUT /echo%?a=%.%./b HTTP/1.1\r\n", answer.body)
    assert.is_truthy(answer.body:find("X-Mine: a: b\r\n", 1, true))
    assert.is_nil(answer.body:find "Expect")
    assert.equal(body, answer.body:match "\r\n\r\n(.*)$")
    for _, method in ipairs { "GET", "DELETE" } do
      answer = assert(ask("echo", { method = method }))
      assert.matches("^" .. method .. " ", answer.body)
      assert.is_nil(answer.body:find "Content%-Length")
    end
  end)

  it("gives the last head, and bodies in chunks", function()
    local answer = assert(ask "interim")
    assert.equal(404, answer.status)
    assert.equal("abcde", answer.body)
    assert.is_nil(answer.headers.link)
    assert.is_nil(answer.headers["x-late"])
  end)

  -- The time is the processor's. Backtracking would take many seconds.
  it("is not kept busy by a head of blanks", function()
    local began = os.clock()
    local answer = assert(ask "blanks")
    assert.is_true(os.clock() - began < cases.slow)
    assert.equal("a" .. (" "):rep(60000) .. "b", answer.headers["x-wide"])
    assert.equal("", answer.headers["x-none"])
  end)

  it("follows nobody elsewhere", function()
    local answer = assert(ask "away")
    assert.equal(302, answer.status)
    assert.equal("file:///etc/passwd", answer.headers.location)
    fails("protocol", "", { url = "file:///etc/passwd" })
    fails("protocol", "", { url = "http:// a/" })
  end)

  it("does not ask the environment for a proxy", function()
    for _, name in ipairs { "http_proxy", "all_proxy", "ALL_PROXY" } do
      local before = os.getenv(name)
      finally(function() ffi.C.spec_setenv(name, before or "", 1) end)
      ffi.C.spec_setenv(name, "http://127.0.0.1:1", 1)
    end
    assert.equal(200, assert(ask "echo").status)
  end)

  it("goes through the proxy that it is given, whatever the environment says",
     function()
    for _, name in ipairs { "no_proxy", "NO_PROXY" } do
      local before = os.getenv(name)
      finally(function() ffi.C.spec_setenv(name, before or "", 1) end)
      ffi.C.spec_setenv(name, "*", 1)
    end
    fails("not_found", "echo", { proxy = "http://127.0.0.1:1" })
  end)

  it("refuses lines that would be several", function()
    for _, line in ipairs { "X: a\r\nY: b", "X: a\nY: b", "X", "", ": a",
                            "X Y: a", "X: a\127" } do
      fails("protocol", "echo", { headers = { line } })
    end
    for _, method in ipairs { "GET / HTTP/1.1\r\nX:", "", "get" } do
      fails("protocol", "echo", { method = method })
    end
    assert.equal(200, assert(ask "echo").status)
  end)

  it("ends with what others do wrong", function()
    fails("protocol", "junk")
    fails("peer_lost", "half")
    fails("too_large", "large")
    fails("too_large", "echo", { limit = 10 })
    assert.is_truthy(({ too_large = 1, peer_lost = 1 })
      [select(2, ask "head")])
    fails("timeout", "silent", { timeout = 0.1 })
    child:kill()
    fails("not_found", "echo")
    fails("not_found", "", { url = "http://no-such-host.invalid/" })
  end)

  it("has all ended when it is closed, or the loop is stopped", function()
    local asked = {}
    local function begin()
      for i = 1, 3 do
        asked[i] = client:send { url = at .. "silent", timeout = LONG }
      end
      asked[4] = perigee.spawn(client.stream, client, {
        url = at .. "silent", timeout = LONG })
    end
    local function ended()
      for i = 1, 3 do
        local none, kind = asked[i]:wait(LONG)
        assert.is_nil(none)
        assert.equal("closed", kind)
      end
    end
    begin()
    perigee.sleep(0.01)
    perigee.run(function() perigee.stop() perigee.sleep(1) end)
    ended()
    begin()
    client:close()
    ended()
    assert.equal("closed", select(2, client:ask { url = at .. "echo" }))
  end)

  it("reads a stream by lines", function()
    local stream = assert(client:stream { url = at .. "lines", timeout = LONG })
    assert.equal(200, stream.status)
    assert.equal("one", stream:line(1000, LONG))
    assert.equal("", stream:line(1000, LONG))
    assert.equal("two", stream:line(1000, LONG))
    assert.equal(5000, #stream:line(10000, LONG))
    assert.equal("the rest", stream:line(1000, LONG))
    assert.same({}, { stream:line(1000, LONG) })
    stream:close()
    stream = assert(client:stream { url = at .. "lines", timeout = LONG })
    local line, kind
    repeat line, kind = stream:line(10, LONG) until not line
    assert.equal("too_large", kind)
    stream:close()
    assert.equal("closed", select(2, stream:read(LONG)))
  end)

  -- Copying all that there is for each part would take many seconds.
  it("is not kept busy by a line in many parts", function()
    local stream = assert(client:stream { url = at .. "wide", limit = 16384,
                                          timeout = LONG })
    local began = os.clock()
    assert.equal(("w"):rep(16000000), (stream:line(2 ^ 24, LONG)))
    assert.is_true(os.clock() - began < 2 * cases.slow)
    assert.equal("next", stream:line(10, LONG))
    assert.same({}, { stream:line(10, LONG) })
    stream:close()
  end)

  it("takes no more of a stream than somebody reads", function()
    local stream = assert(client:stream { url = at .. "endless", limit = 65536,
                                          timeout = LONG })
    local read = 0
    while read < 2 ^ 20 do read = read + #assert(stream:read(LONG)) end
    perigee.sleep(0.1)
    stream:close()
    local sent = tonumber(child:read(LONG, pump))
    assert.is_true(sent < 2 ^ 26, sent .. " bytes were sent")
  end)

  it("does many things at once", function()
    local asked = {}
    for i = 1, 100 do
      asked[i] = client:send { url = at .. "echo?" .. i, timeout = LONG }
    end
    for i = 1, 100 do
      local answer = assert(asked[i]:wait(LONG))
      assert.is_truthy(answer.body:find("echo?" .. i .. " ", 1, true))
    end
  end)
end)
