-- SPDX-License-Identifier: Apache-2.0
-- The HTTP server on the loop, by itself: what becomes of requests that are not
-- answered as they should be.
local cases = require "spec.support.cases"
local sockets = require "spec.net.sockets"

describe("an HTTP server", function()
  if not package.searchpath("perigee.control", package.cpath) then
    it("is there", function() pending "perigee/control.so is missing" end)
    return
  end

  local web = require "perigee.net.web"
  local LONG = 60 * cases.slow
  local server, fd

  local function open(more)
    local target = { host = "127.0.0.1", port = 0, connections = 10,
                     per_host = 0, head = 32768, body = 1000, patience = 60,
                     queued = 65536 }
    for name, value in pairs(more or {}) do target[name] = value end
    return web.open(target)
  end

  before_each(function()
    cases.engine()
    server = assert(open())
    fd = sockets.dial("tcp://127.0.0.1:" .. server.port)
  end)
  after_each(function()
    server:close()
    sockets.close(fd)
    cases.cleanup()
  end)

  -- Runs the server until f is true of the requests that have come meanwhile.
  local function run(f)
    local list = {}
    assert.is_true(cases.eventually(function()
      server:run(list)
      return f(list)
    end, LONG))
    return list
  end

  local function request(text)
    sockets.send(fd, text or "GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
    return run(function(list) return list[1] ~= nil end)[1]
  end

  local function has_ended()
    return #sockets.readable({ fd }, 0) > 0 and sockets.receive(fd) == ""
  end

  -- The kernel goes through all connections whenever that begins.
  it("is watched once, however often it waits", function()
    local function watched()
      local n = 0
      for each = 0, 255 do
        local file = io.open("/proc/self/fdinfo/" .. each)
        local text = file and file:read "*a" or ""
        if file then file:close() end
        if text:find("tfd: +" .. server:descriptor() .. " ") then n = n + 1 end
      end
      return n
    end
    assert.equal(0, watched())
    server:wait(1)
    for _ = 1, 3 do
      request():answer(200, "x", {})
      assert.equal(1, watched())
      server:wake()
      server:wait(1)
      assert.equal(1, watched())
    end
  end)

  -- An empty value is none that can be sent.
  it("ends a connection whose answer cannot be sent, and asks no more",
     function()
    request():answer(200, "x", { "X-Empty", "" })
    assert.same({}, run(has_ended))
  end)

  it("ends a connection whose stream cannot begin", function()
    assert.is_nil((request():stream(200, { "X-Empty", "" })))
    assert.same({}, run(has_ended))
  end)

  it("is closed with requests that nobody has answered, and with streams",
     function()
    local stream = assert(request():stream(200, {}))
    stream:tell "a part"
    stream:close()
    sockets.close(fd)
    fd = sockets.dial("tcp://127.0.0.1:" .. server.port)
    request()
    server:close()
    server:close()
    assert.is_true(cases.eventually(has_ended, LONG))
  end)

  it("knows that the client of a stream has gone", function()
    local stream = assert(request():stream(200, {}))
    sockets.close(fd)
    run(function() return not stream:tell "a part" end)
    stream:close()
    fd = sockets.dial("tcp://127.0.0.1:" .. server.port)
    assert.equal("/a", request().target)
  end)

  -- The number of the next descriptor.
  local function next_descriptor()
    local next_one = sockets.listen "127.0.0.1"
    sockets.close(next_one)
    return next_one
  end

  it("says why it cannot listen, and keeps nothing of it", function()
    local before = next_descriptor()
    local none, err = open { port = server.port }
    assert.is_nil(none)
    assert.matches("listening at 127.0.0.1:%d+: Address already in use",
                   err.message)
    none, err = open { certificate = "none", key = "none" }
    assert.is_nil(none)
    assert.matches("its certificate or key is not taken", err.message, 1, true)
    assert.equal(before, next_descriptor())
  end)
end)
