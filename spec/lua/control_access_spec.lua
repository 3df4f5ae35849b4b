-- SPDX-License-Identifier: Apache-2.0
-- Who may ask the control server, and what it does when its clients are slow,
-- broken or too many.
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

local LONG = 60 * cases.slow

local ask, entry, refused = asking.ask, asking.entry, asking.refused
local STRANGER = asking.STRANGER
local eventually, request = cases.await, asking.request

needing("the control server", { control }, function()
  local server

  local function begin(...) server = asking.begin(...) end
  after_each(asking.finish)

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
    eventually(function()
      return ask("GET", "agents", nil, STRANGER) == 401
    end)
    refused(401, "denied", "GET", "agents", nil, STRANGER)
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
      for _, more in ipairs(control.is_over_store() and { ".log" }
                            or { "", "-wal", ".log" }) do
        local file = assert(io.open(server.store .. more))
        assert.is_nil(file:read "*a":find(text, 1, true), name .. more)
        file:close()
      end
    end
  end)

  it("ends the streams of those who may not watch any more", function()
    begin()
    local function opened(text)
      return assert(asking.client:stream(request("GET", "watch", nil, text
        and { "Authorization: Bearer " .. text } or STRANGER)))
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
    eventually(function()
      return ask("GET", "agents", nil, STRANGER) == 401
    end)
    eventually(function()
      local asked, refusals = {}, 0
      for i = 1, 10 do
        asked[i] = asking.client:send(request("GET", "agents", nil, headers))
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
    begin { "--patience", ("%g"):format(cases.slow) }
    local put = "PUT /v1/scopes/s/entities/a HTTP/1.1\r\nHost: localhost\r\n"
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
                            "GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
                            "GET " .. ("/x"):rep(50000) } do
      sockets.close(raw(text))
    end
    local fd = raw "GET / HTTP/1.1\r\nHost: localhost\r\n"
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
      local answer = asking.client:ask(request("GET", "/healthz"))
      return answer and answer.status == 200
    end)
  end)

  it("ends when it is told to, however much it is asked", function()
    begin()
    local flood = process.spawn { "bash", "-c", ([[
      for _ in 1 2 3 4 5 6 7 8; do
        (exec 3<>/dev/tcp/127.0.0.1/%d; cat <&3 >/dev/null &
         yes $'GET /healthz HTTP/1.1\r\nHost: [::1]\r\n\r' >&3) 2>/dev/null &
      done
      echo asking; wait]]):format(server.port) }
    flood:expect("asking", LONG)
    for _ = 1, 20 do assert.equal(200, (ask("GET", "/healthz"))) end
    server.process:signal "TERM"
    assert.same({ "exit", 0 }, { server.process:wait(LONG) })
    flood:wait(LONG)
  end)
end)
