-- SPDX-License-Identifier: Apache-2.0
-- Attacks on a control server by who reaches it, beside an honest client: who
-- asks for much and reads nothing, who looks through much, who is silent, and
-- pages of the web.
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow
local MIB = 2 ^ 20

local ask, request, eventually = asking.ask, asking.request, cases.await

needing("a control server that is attacked", { control }, function()
  local server, fds

  local function begin(...)
    server, fds = asking.begin(...), {}
  end

  after_each(function()
    for _, fd in ipairs(fds or {}) do sockets.close(fd) end
    asking.finish()
  end)

  local function dial(text, hurried, from)
    local fd = sockets.dial("tcp://127.0.0.1:" .. server.port, hurried, from)
    fds[#fds + 1] = fd
    if text then sockets.send(fd, text) end
    return fd
  end

  local function get(path, more)
    return ("GET /v1/scopes/s/%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n")
      :format(path, more or "")
  end

  -- Writes n entities, of so many bytes each, and kind k.
  local function fill(n, size, ttl)
    local more = ttl and ("?ttl=%g"):format(ttl) or ""
    local body = ('{"kind":"k","endpoint":"%s"}'):format(("x"):rep(size))
    local sent = {}
    for i = 1, n do
      sent[i] = asking.client:send(request("PUT", ("entities/e%06d%s"):format(i,
                                           more), body))
      if i % 64 == 0 or i == n then
        for at = i, 1, -1 do
          if not sent[at] then break end
          assert.equal(201, assert(sent[at]:wait(LONG)).status)
          sent[at] = false
        end
      end
    end
  end

  -- The server's resident memory in bytes.
  local function resident()
    local file = assert(io.open(("/proc/%d/status"):format(server.process.pid)))
    local text = file:read "*a"
    file:close()
    return tonumber(text:match "VmRSS:%s*(%d+)") * 1024
  end

  -- Counts the connections that have ended or have something to read.
  local function heard() return #sockets.readable(fds, 0) end

  -- Has it less than so many bytes more? A sanitizer keeps what is freed.
  local function is_within(before, bytes)
    return cases.sanitized or resident() - before < bytes
  end

  -- The attackers go; what they used comes back, but for so many bytes.
  local function recovers(before, bytes)
    for _, fd in ipairs(fds) do sockets.close(fd) end
    fds = {}
    eventually(function() return is_within(before, bytes or 16 * MIB) end)
  end

  -- The requests that an honest client makes all the time.
  local function is_served(path)
    for _ = 1, 20 do
      assert.equal(200, (ask("GET", "/healthz")))
      assert.equal(200, (ask("GET", path or "entities/e000001")))
      assert.is_true(ask("PUT", "entities/honest", '{"kind":"h"}') < 202)
    end
  end

  -- ---- Who reads nothing ---------------------------------------------------

  it("has no more memory for answers that nobody reads than it may, and drops "
     .. "who reads none", function()
    begin()
    fill(100, 60000)
    ask("PUT", "entities/honest", '{"kind":"h"}')
    local before = resident()
    for _ = 1, 120 do dial(get("entities?limit=1000"):rep(3)) end
    is_served "entities?limit=1"
    assert.is_true(is_within(before, 48 * MIB))
    local function ended()
      local n = 0
      for _, fd in ipairs(sockets.readable(fds, 0)) do
        local text
        repeat text = sockets.receive(fd) until text == nil or text == ""
        if text == "" then n = n + 1 end
      end
      return n
    end
    -- Without a reader those that were answered hold all room, for a second.
    require("perigee").sleep(3)
    assert.is_true(ended() > 0)
    is_served "entities?limit=1"
    recovers(before)
  end)

  it("has no more for watchers who read nothing, and tells the others all",
     function()
    begin()
    fill(100, 60000)
    local before = resident()
    for _ = 1, 120 do dial(get "watch?collection=entities") end
    is_served()
    assert.is_true(is_within(before, 64 * MIB))
    local answer = assert(asking.client:ask(request("GET",
      "watch?collection=entities&for=0")))
    local n = select(2, answer.body:gsub('"name":"e%d', ""))
    assert.equal(100, n)
    assert.matches("]}\n\n", answer.body, 1, true)
    recovers(before)
  end)

  it("tells a watcher what changed while it was told all", function()
    begin()
    fill(60, 60000)
    local stream = assert(asking.client:stream(request("GET",
      "watch?collection=entities")))
    assert.equal(201, (ask("PUT", "entities/a", '{"kind":"new"}')))
    assert.equal(204, (ask("DELETE", "entities/e000001")))
    local known, id = {}, nil
    eventually(function()
      local line = assert(stream:line(2 ^ 24, LONG))
      id = line:match "^id: (.*)$" or id
      for name in line:gmatch '"name":"([^"]*)"' do known[name] = true end
      local gone = line:match '^data: {"name":"([^"]*)"}$'
      if gone then known[gone] = nil end
      return known.a and known.e000060 and not known.e000001
    end)
    stream:close()
    assert.is_string(id)
  end)

  -- ---- Who looks through much ----------------------------------------------

  -- The pages of a list by a query: how many there were, and their names.
  local function pages(query)
    local names, n, after = {}, 0, nil
    repeat
      local status, page = ask("GET", "entities?" .. query
                               .. (after and "&after=" .. after or ""))
      assert.equal(200, status)
      for _, each in ipairs(page.items) do names[#names + 1] = each.name end
      assert.is_true(not page.next or not after or page.next > after)
      n, after = n + 1, page.next
    until not after
    return n, names
  end

  local function every(n)
    local all = {}
    for i = 1, n do all[i] = ("e%06d"):format(i) end
    return all
  end

  it("ends a page at some bytes, and the pages are all that there is",
     function()
    begin()
    fill(20, 60000)
    local n, names = pages "limit=1000"
    assert.is_true(n >= 4)
    assert.same(every(20), names)
    n, names = pages "limit=2"
    assert.equal(10, n)
    assert.same(every(20), names)
  end)

  it("ends a page after some records, and the pages are all that there is",
     function()
    begin()
    fill(5000, 0)
    assert.equal(200, (ask("PUT", "entities/e004321", '{"kind":"rare"}')))
    local n, names = pages "kind=rare"
    assert.same({ 2, { "e004321" } }, { n, names })
    n, names = pages "kind=none"
    assert.same({ 2, {} }, { n, names })
    n, names = pages "limit=1000"
    assert.equal(5, n)
    assert.same(every(5000), names)
  end)

  -- Has a crowd look through much, and asks for little three times. How many of
  -- the crowd were answered meanwhile?
  local function answered_meanwhile(crowd)
    server.process:signal "STOP"
    for _, fd in ipairs(crowd) do
      sockets.send(fd, get "entities?kind=none&limit=1000")
    end
    local asked = asking.client:send(request("GET", "/healthz"))
    server.process:signal "CONT"
    assert.equal(200, assert(asked:wait(LONG)).status)
    for _ = 1, 2 do assert.equal(200, (ask("GET", "/healthz"))) end
    local n = #sockets.readable(crowd, 0)
    for _, fd in ipairs(crowd) do
      eventually(function() return #sockets.readable({ fd }, 0) > 0 end)
      repeat
        local text = sockets.receive(fd)
        assert.not_equal("", text, "one of the crowd has been turned away")
      until not text
    end
    return n
  end

  -- This process may be held up meanwhile, but not each time.
  it("answers who asks for little before those who ask for much", function()
    begin()
    fill(4500, 0)
    local crowd, least = {}, math.huge
    for i = 1, 128 do crowd[i] = dial() end
    for _ = 1, 10 do least = math.min(least, answered_meanwhile(crowd)) end
    assert.is_true(least < 96, least .. " of 128 were answered before")
  end)

  -- ---- Who is silent -------------------------------------------------------

  it("lets new ones in though others have taken all places, and say nothing",
     function()
    begin { "--connections", "50", "--patience", "600" }
    for _ = 1, 200 do dial("G", true) end
    for _ = 1, 100 do
      local fd = dial "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
      eventually(function() return #sockets.readable({ fd }, 0) > 0 end)
      assert.matches("^HTTP/1.1 200", (sockets.receive(fd)))
      dial("G", true)
    end
  end)

  it("keeps who has just come, though all places are of an address each",
     function()
    begin { "--connections", "50", "--patience", "600" }
    for i = 1, 60 do dial("G", false, "127.0.1." .. i) end
    local slow = dial("G", false, "127.0.2.1")
    for i = 1, 20 do
      local fd = dial("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
                      false, "127.0.3." .. i)
      eventually(function() return #sockets.readable({ fd }, 0) > 0 end)
      assert.matches("^HTTP/1.1 200", (sockets.receive(fd)))
      dial("G", false, "127.0.4." .. i)
    end
    sockets.send(slow, "ET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    eventually(function() return #sockets.readable({ slow }, 0) > 0 end)
    assert.matches("^HTTP/1.1 200", (sockets.receive(slow)))
  end)

  local function descriptors()
    local list = io.popen(("ls /proc/%d/fd"):format(server.process.pid))
    local _, n = list:read "*a":gsub("%d+", "")
    list:close()
    return n
  end

  -- How many connections it has accepted when one that asks is answered, which
  -- has come behind a hundred that say nothing.
  local function accepted()
    local before = descriptors()
    for _ = 1, 100 do dial(nil, true) end
    local fd = dial "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    eventually(function() return #sockets.readable({ fd }, 0) > 0 end)
    return descriptors() - before
  end

  -- The system lets them in after some seconds, by which time a slow test may
  -- still be here.
  it("accepts nobody who has said nothing yet, before others", function()
    local cookies = io.open "/proc/sys/net/ipv4/tcp_syncookies"
    local set = cookies and cookies:read(1)
    if cookies then cookies:close() end
    if (set or "0") == "0" then pending "this host has no SYN cookies" end
    begin()
    assert.is_true(accepted() < 50 or accepted() < 50 or accepted() < 50)
  end)

  it("gives back what a crowd of connections has used", function()
    begin()
    local before = resident()
    for _ = 1, 3000 do dial("G", true) end
    eventually(function() return resident() - before > 8 * MIB end)
    recovers(before, 4 * MIB)
  end)

  -- In Lua's heap they would take, and leave, 15 MiB.
  it("gives back what many names have used", function()
    if control.is_over_store() then return pending "it keeps none then" end
    begin()
    local before = resident()
    fill(10000, 250, 15)
    eventually(function() return ask("GET", "entities/e010000") == 404 end)
    recovers(before, 8 * MIB)
  end)

  it("does not wait long for a first head", function()
    begin { "--patience", "600" }
    dial()
    dial "GET / HTTP/1.1\r\n"
    eventually(function() return heard() == 2 end)
    for _, fd in ipairs(fds) do assert.equal("", sockets.receive(fd)) end
  end)

  it("takes room for long bodies from the address that has most", function()
    local LENGTH = 2 ^ 23
    begin { "--body", tostring(LENGTH) }
    local head = "PUT /v1/scopes/s/agents/%s HTTP/1.1\r\nHost: localhost\r\n"
      .. asking.headers(server.url)[1] .. "\r\nContent-Length: %d\r\n\r\n"
    for i = 1, 9 do
      fds[i] = sockets.dial("tcp://127.0.0.1:" .. server.port, false,
                            "127.0.0.9")
      sockets.send(fds[i], head:format("stranger", LENGTH)
                           .. ("x"):rep(LENGTH - 1))
    end
    local status, problem = ask("PUT", "agents/honest", ("x"):rep(LENGTH / 2))
    assert.same({ 400, "protocol" }, { status, problem.kind })
    assert.equal(200, (ask("GET", "/healthz")))
  end)

  it("hurries only the address that has most of the room for bodies", function()
    local LENGTH = 2 ^ 23
    begin { "--body", tostring(LENGTH) }
    local head = "PUT /v1/scopes/s/agents/%s HTTP/1.1\r\nHost: localhost\r\n"
      .. asking.headers(server.url)[1] .. "\r\nContent-Length: %d\r\n\r\n"
    local slow = sockets.dial("tcp://127.0.0.1:" .. server.port, false,
                              "127.0.0.8")
    sockets.send(slow, head:format("slow", 4) .. "xx")
    for i = 1, 5 do
      fds[i] = sockets.dial("tcp://127.0.0.1:" .. server.port, false,
                            "127.0.0.9")
      sockets.send(fds[i], head:format("stranger", LENGTH)
                           .. ("x"):rep(LENGTH - 1))
    end
    eventually(function()                 -- those that pause are given up
      return #sockets.readable(fds, 0) > 0
    end)
    sockets.send(slow, "xx")
    assert.matches("^HTTP/1.1 400", (sockets.hear(slow, LONG)))
    sockets.close(slow)
  end)

  it("keeps places for requests, and for streams of those it knows", function()
    begin { "--connections", "64" }
    local function watch(more)
      local fd = dial(get("watch", more))
      eventually(function() return #sockets.readable({ fd }, 0) > 0 end)
      return tonumber(sockets.receive(fd):match "^HTTP/1.1 (%d+)")
    end
    local counts = { [200] = 0, [503] = 0 }
    for _ = 1, 32 do
      local status = watch()
      counts[status] = counts[status] + 1
    end
    assert.same({ [200] = 16, [503] = 16 }, counts)
    local own = asking.headers(server.url)[1] .. "\r\n"
    counts = { [200] = 0, [503] = 0 }
    for _ = 1, 64 do
      local status = watch(own)
      counts[status] = counts[status] + 1
    end
    assert.same({ [200] = 40, [503] = 24 }, counts)
    is_served "entities"
  end)

  it("answers a length that is none once, and forgets it", function()
    begin()
    local lengths = { "x1", "-1", "1,1", "99999999999999999999999" }
    local function said(length)
      local fd = sockets.dial("tcp://127.0.0.1:" .. server.port)
      sockets.send(fd, ("PUT /v1/scopes/s/entities/a HTTP/1.1\r\nHost: "
        .. "localhost\r\nContent-Length: %s\r\n\r\n"):format(length))
      local text = sockets.hear(fd, LONG)
      sockets.close(fd)
      return text
    end
    for _, length in ipairs(lengths) do
      local text = said(length)
      assert.equal(1, select(2, text:gsub("HTTP/1.1", "")), text)
      assert.matches("^HTTP/1.1 4[01][03] .*application/problem%+json", text)
    end
    local function repeated(n)
      for _ = 1, n do said(("9"):rep(2000)) end
      return resident()
    end
    local before = repeated(2500)       -- until the heap grows no more
    repeated(2000)
    assert.is_true(is_within(before, 2 * MIB))
  end)

  -- ---- Pages of the web, and other users -----------------------------------

  local function status_of(host, more)
    local fd = dial(("GET /healthz HTTP/1.1\r\n%s%sConnection: close\r\n\r\n")
      :format(host and "Host: " .. host .. "\r\n" or "", more or ""))
    return tonumber(sockets.hear(fd, LONG):match "^HTTP/1.1 (%d+)")
  end

  it("refuses hosts that it was not told of, and pages of other origins",
     function()
    begin { "--name", "names.example,other.example" }
    for _, host in ipairs { "localhost", "LOCALHOST:7470", "127.0.0.1:1",
                            "127.9.9.9", "[::1]:80", "names.example",
                            "Other.Example.:99" } do
      assert.equal(200, status_of(host), host)
      local origin = "Origin: http://" .. host .. "\r\n"
      assert.equal(200, status_of(host, origin), origin)
    end
    for _, host in ipairs { "evil.example", "localhost.evil.example",
                            "10.0.0.1", "0.0.0.0", "[::2]", "",
                            "127.0.0.1.evil.example", "x@localhost",
                            "names.example.evil" } do
      assert.equal(403, status_of(host), host)
    end
    for _, origin in ipairs { "http://evil.example", "null", "localhost",
                              "http://localhost:1", "http://127.0.0.1" } do
      assert.equal(403, status_of("localhost", "Origin: " .. origin .. "\r\n"),
                   origin)
    end
    local fd = dial("GET http://evil.example/healthz HTTP/1.1\r\n"
      .. "Host: localhost\r\nConnection: close\r\n\r\n")
    assert.matches("^HTTP/1.1 403", (sockets.hear(fd, LONG)))
  end)

  it("lets nobody write without a token, and its user's programs find one",
     function()
    begin()
    local nobody = asking.STRANGER
    assert.equal(200, (ask("GET", "entities", nil, nobody)))
    asking.refused(401, "denied", "PUT", "entities/a", '{"kind":"x"}', nobody)
    asking.refused(401, "denied", "PUT", "topology", {}, nobody)
    asking.refused(401, "denied", "PUT", "agents/a", asking.entry(), nobody)
    asking.refused(401, "denied", "GET", "entities", nil,
                   { "Authorization: Bearer perigee_wrong" })
    local path = ("%s/perigee/.ctrl-127.0.0.1-%d"):format(
      os.getenv "XDG_RUNTIME_DIR", server.port)
    local pipe = io.popen(("stat -c %%a '%s'"):format(path))
    assert.equal("600\n", pipe:read "*a")
    pipe:close()
    assert.equal(201, (ask("PUT", "entities/a", '{"kind":"x"}')))
    server.process:signal "TERM"
    server.process:wait(LONG)
    assert.is_nil(io.open(path))
  end)

  it("is told no token that lies in a folder which others may write to",
     function()
    begin()
    local own = require "perigee.registry.http.own"
    local url = "http://127.0.0.1:" .. server.port
    local base = os.getenv "XDG_RUNTIME_DIR" .. "/perigee"
    assert.matches("^perigee_", (own.find(url)))
    os.execute(("chmod 777 '%s'"):format(base))
    local found = own.find(url)
    os.execute(("chmod 700 '%s'"):format(base))
    assert.is_nil(found)
  end)

  it("gives an agent that outlives it the token of its next life", function()
    begin()
    local backends = require "spec.support.backends"
    for _, host in ipairs { "127.0.0.1", "localhost" } do
      local address = control.address(cases):gsub("127%.0%.0%.1", host)
      local name = host:gsub("%W", "-")
      local agent = assert(backends.take(address, name))
      server:kill()
      server:begin()
      local other
      eventually(function()
        other = backends.take(address, "other-" .. name)
        return other
      end)
      assert(other:session(name))
      other:close()
      agent:close()
    end
  end)
end)
