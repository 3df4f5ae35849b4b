-- SPDX-License-Identifier: Apache-2.0
-- A server that everybody can reach, while it serves: scans, other protocols,
-- half a hello, a hello of another version, a recorded one, crowds that connect
-- and stay. Its clients are served on, new clients with the secret are let in,
-- and its memory does not grow.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local perigee = require "perigee"
local process = require "spec.support.process"
local sockets = require "spec.net.sockets"

-- KiB that a server may grow by.
local MEMORY = cases.sanitized and math.huge or 8192
local SOON = 2 * hosts.MORE

-- The number of connections: count, or what the limit of descriptors allows.
local function crowd_of(count)
  for line in io.lines("/proc/self/limits") do
    local files = tonumber(line:match "^Max open files%s+(%d+)")
    if files then return math.min(count, files - 100) end
  end
  return count
end
local CROWD = crowd_of(math.max(2000, 10000 * cases.scale * 50))

local function serving(child, perigee_)
  require("spec.net.worker").serve(child, perigee_, {
    listen = "tcp://127.0.0.1:0",
      secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="
      })
end

-- Connects count times, sends text, and stays or closes.
local function crowd(child, _, _, address, count, text, stay)
  local net = require "spec.net.sockets"
  local fds = {}
  text = text:gsub("%x%x", function(x) return string.char(tonumber(x, 16)) end)
  for i = 1, count do
    local fd = assert(net.dial(address, #text == 0))
    if #text > 0 then net.send(fd, text) end
    if stay == "true" then fds[i] = fd else net.close(fd) end
  end
  child.say("there")
  return child.hear(), fds
end

local function hex(text)
  return (text:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

describe("a server that strangers come to", function()
  after_each(cases.cleanup)
  local child, address, near, friend

  local function agent()
    return assert(cases.agent(nil, { secret = hosts.SECRET,
                                     transport = "tcp" }))
  end

  before_each(function()
    child = process.start(serving)
    address = assert(child:read(20))
    near = agent()
    friend = assert(near:proxy(address, "x", { timeout = 30 }))
    for i = 1, 200 do assert(friend:echo(("x"):rep(100 * i))) end
  end)

  -- Serves the friend meanwhile; returns the time of its longest call.
  local function serve_on(until_)
    local longest, text = 0, ("y"):rep(20000)
    repeat
      local started = process.now()
      assert(assert(friend:echo(text)) == text)
      longest = math.max(longest, process.now() - started)
    until until_()
    assert(longest < SOON, ("a call took %.2f s"):format(longest))
  end

  local function memory() return child:number("status", "VmRSS") end

  local function files()
    local pipe = io.popen(("ls /proc/%d/fd | wc -l"):format(child.pid))
    local count = tonumber(pipe:read("*a"))
    pipe:close()
    return count
  end

  -- A new client with the secret is let in, in some seconds at most.
  local function newcomer()
    local other = agent()
    local proxy
    assert.is_true(cases.eventually(function()
      proxy = other:proxy(address, "x", { timeout = 5 })
      return proxy
    end, 10 * hosts.MORE))
    assert.equal(6, (assert(proxy:same(6))))
    other:close()
  end

  -- Sends a text from a crowd; all must be as before when the crowd has gone.
  local function survives(text, count, stay)
    local before, open = memory(), files()
    local other = process.start(crowd, address, count, hex(text), stay)
    local coming = perigee.spawn(function()
      other:expect("there", 60 * cases.slow,
                   function() perigee.sleep(0.001) end)
      return true
    end)
    serve_on(function() return coming:done() end)
    assert.is_true(coming:wait(1))
    newcomer()
    other:close()
    assert.is_true(cases.eventually(function()
      return files() <= open and friend:sessions() == 1
    end, 10))
    assert.is_true(memory() - before < MEMORY, memory() - before .. " KiB")
    serve_on(function() return true end)
  end

  -- A client's hello, as an eavesdropper recorded it.
  local function overheard()
    local fd, port = sockets.listen "127.0.0.1"
    local dial = perigee.spawn(function()
      return near.engine:connect("tcp://127.0.0.1:" .. port,
                                 { timeout = 1, transport = "tcp" })
    end)
    local peer, hello
    assert.is_true(cases.eventually(function()
      peer = peer or #sockets.readable({ fd }, 0) > 0 and sockets.accept(fd)
      hello = peer and sockets.receive(peer)
      return hello and #hello > 0
    end))
    sockets.close(peer)
    sockets.close(fd)
    dial:wait(5)
    return hello
  end

  it("serves on during a scan of its port", function()
    survives("", CROWD / 4, false)
  end)

  it("serves on while others speak HTTP, or nothing that is known", function()
    survives("GET / HTTP/1.1\r\nHost: x\r\n\r\n", CROWD / 8, false)
    survives(("\255"):rep(3000), CROWD / 8, false)
  end)

  it("serves on while a crowd says half a hello and stays", function()
    survives(overheard():sub(1, 100), 500, true)
  end)

  it("serves on while a crowd says what it heard of others", function()
    survives(overheard(), 500, true)
  end)

  it("serves on while a crowd is of another version", function()
    local hello = overheard()
    survives(hello:sub(1, 16) .. "\9\0\0\0\9\0\0\0" .. hello:sub(25), 500, true)
  end)

  it("serves on while thousands connect and stay", function()
    survives("", CROWD, true)
  end)

  it("lets others in while those who say nothing never cease to come",
     function()
    process.start(function(other, _, ffi, where)
      local net = require "spec.net.sockets"
      local fds, n = {}, 0
      other.say "coming"
      while true do
        n = n % 1000 + 1
        if fds[n] then net.close(fds[n]) end
        fds[n] = net.dial(where, true)
        ffi.C.spec_usleep(5000)
      end
    end, address):expect("coming")
    perigee.sleep(0.5)
    local fine = 0
    for _ = 1, 10 do
      local session = near.engine:connect(address, { timeout = 5,
                                                     transport = "tcp" })
      if session then
        fine = fine + 1
        session:close()
      end
    end
    assert.is_true(fine >= 9, fine)
  end)

  it("gives nobody a stream of a friend's session", function()
    local attach = "\56\0\0\0\11\0\0\0"
    for round = 1, 50 do
      local fd = assert(sockets.dial(address))
      sockets.send(fd, attach .. ("%c"):format(round):rep(8) .. "\1\0\0\0"
        .. "\0\0\0\0" .. ("\7"):rep(40))
      local heard, ended = sockets.hear(fd, 5)
      assert.is_true(ended and #heard <= 252)
      sockets.close(fd)
    end
    serve_on(function() return true end)
  end)

  it("serves on while friends do not read what they asked for", function()
    local before = memory()
    local others = {}
    for i = 1, 4 do
      others[i] = process.start(function(other, perigee_, _, where)
        local own = assert(other.cases.agent(nil, {
          secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
            transport = "tcp" }))
        local proxy = assert(own:proxy(where, "x", { timeout = 60 }))
        for _ = 1, 200 do proxy.async:echo(("z"):rep(8000)) end
        for _ = 1, 20 do proxy.async:get(2 ^ 24, 1) end
        other.say("asked")
        perigee_.run(function() perigee_.sleep(0.01) end)
        other.hear()
      end, address):expect("asked", 20)
      others[i]:signal("STOP")
    end
    local limit = process.now() + 2
    serve_on(function() return process.now() > limit end)
    assert.is_true(memory() - before < 16 * MEMORY)
    newcomer()
    for _, other in ipairs(others) do other:close() end
    assert.is_true(cases.eventually(function()
      return friend:sessions() == 1
    end, 10))
  end)
end)
