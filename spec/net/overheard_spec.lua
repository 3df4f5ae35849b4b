-- SPDX-License-Identifier: Apache-2.0
-- An eavesdropper on the wire between two hosts sees nothing that was meant for
-- the peer of an encrypted session, and all of a plain one; it never sees a
-- secret.
local capture = require "spec.net.capture"
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local sockets = require "spec.net.sockets"

local REGION = "the region that nobody shall know of"
local METHOD, SERVICE = "method_that_nobody_knows", "service_that_nobody_knows"
local PAYLOAD = "what is for the peer and for nobody else; "
local SECRET = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=" -- hosts.SECRET

local function serving(child, perigee, _, region, service, method, listen)
  local agent = assert(child.cases.agent("worker", {
    listen = listen,
      secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
      encrypt = false }))
  agent.engine:alloc(2 ^ 20, { name = region, access = "rw" })
  agent:serve { name = service, version = 1, methods = {
    [method] = { raw = true, function(request) return request end } } }
  child.say(agent.addresses[1])
  perigee.run()
  agent:close()
end

describe("who listens on the wire", function()
  local possible, why = hosts.possible()
  if not possible then
    it("sees nothing of what is sealed", function() return pending(why) end)
    return
  end
  local listener

  before_each(function()
    assert(hosts.start())
    listener = assert(capture.new())
  end)
  after_each(function()
    listener:close()
    hosts.finish()
  end)

  -- Makes a call, a bulk call, a write and a read of the payload; returns what
  -- was captured.
  local function talk(options)
    local child = hosts.far(serving, REGION, SERVICE, METHOD,
                            "tcp://10.77.7.2:0")
    local address = assert(child:read(20))
    options.secret = SECRET
    local near = assert(cases.agent(nil, options))
    local proxy = assert(near:proxy(address, SERVICE, { timeout = 20 }))
    local session = assert(near:session(address))
    local remote = assert(session:region(REGION))
    for _, count in ipairs { 2, 5000 } do
      local text = PAYLOAD:rep(count)
      assert.is_true(assert(proxy[METHOD](proxy, text)) == text)
      local here = near.engine:alloc(2 ^ 20)
      local slice = here:slice(0, #text)
      require "ffi".copy(slice.pointer, text, #text)
      assert(session:write { from = slice, to = remote:slice(0, #text) }
        :wait(20))
      assert(session:read { from = remote:slice(0, #text), to = slice }
        :wait(20))
    end
    session:close()
    return listener:text()
  end

  local function count(text, what)
    local n, at = 0, 1
    while true do
      at = text:find(what, at, true)
      if not at then return n end
      n, at = n + 1, at + #what
    end
  end

  for _, streams in ipairs { 1, 4 } do
    it(("sees all of a plain session (%d streams)"):format(streams), function()
      local seen = talk { streams = streams, encrypt = false }
      assert.is_true(count(seen, PAYLOAD) > 4 * 5000 * 0.9)
      for _, word in ipairs { REGION, METHOD, SERVICE } do
        assert.is_true(count(seen, word) > 0, word)
      end
      assert.equal(0, count(seen, SECRET))
    end)

    it(("sees nothing of a sealed one (%d streams)"):format(streams), function()
      local seen = talk { streams = streams, encrypt = true }
      assert.is_true(#seen > 4 * 5000 * #PAYLOAD) -- it was listening
      local words = { REGION, METHOD, SERVICE, SECRET, PAYLOAD }
      for at = 1, #PAYLOAD - 12, 5 do
        words[#words + 1] = PAYLOAD:sub(at, at + 11)
      end
      for _, word in ipairs(words) do
        assert.equal(0, count(seen, word), word)
      end
    end)
  end

  -- In 2 MiB of encrypted text each byte value occurs about equally often.
  it("sees bytes without a pattern", function()
    local seen = talk { encrypt = true }
    local counts = {}
    for byte in seen:gmatch "." do counts[byte] = (counts[byte] or 0) + 1 end
    for byte, n in pairs(counts) do
      if byte ~= "\0" then
        assert.is_true(n < #seen / 256 * 1.5 and n > #seen / 256 * 0.7,
                       ("%d: %d of %d"):format(byte:byte(), n, #seen))
      end
    end
  end)
end)

describe("who has no secret", function()
  local possible = hosts.possible()
  if not possible then return end

  before_each(function() assert(hosts.start()) end)
  after_each(hosts.finish)

  -- Expects no answer, or a refusal: a head of 8 bytes, a status and a text.
  local function refused(fd, said)
    local limit = 5 + 3 * cases.slow -- more than hello_timeout
    local heard, ended = sockets.hear(fd, limit)
    assert.is_true(ended, said)
    assert.is_true(#heard == 0 or #heard <= 8 + 4 + 240, #heard)
    if #heard > 0 then assert.equal(4, heard:byte(5)) end
    assert.is_nil(heard:find("nobody", 1, true))
    sockets.close(fd)
  end

  it("gets at most one refusal, whatever it sends", function()
    local child = hosts.far(serving, REGION, SERVICE, METHOD,
                            "tcp://10.77.7.2:0")
    local address = assert(child:read(20))
    local zeros = ("\0"):rep(400)
    local sayings = { "", "GET / HTTP/1.1\r\n\r\n", ("\255"):rep(5000), zeros,
                      REGION, "\8\0\0\0\6\0\0\0" .. zeros }
    for kind = 0, 16 do -- frames of every kind, of some lengths
      for _, length in ipairs { 0, 8, 40, 56, 320 } do
        sayings[#sayings + 1] = ("%c%c\0\0%c\0\0\0"):format(length % 256,
          length / 256, kind) .. ("\1"):rep(length)
      end
    end
    for first = 1, #sayings, 32 do
      local fds = {}
      for i = first, math.min(first + 31, #sayings) do
        fds[i] = assert(sockets.dial(address))
        sockets.send(fds[i], sayings[i])
      end
      for i, fd in pairs(fds) do refused(fd, sayings[i]) end
    end
  end)
end)
