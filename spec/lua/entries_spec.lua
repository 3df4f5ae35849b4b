-- SPDX-License-Identifier: Apache-2.0
-- Entries of agents that have many regions and services: what registries take,
-- who is told where it is too much, and that no name is lost by it.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local etcd = require "spec.support.etcd"
local ffi = require "ffi"
local needing = require "spec.support.needing"
local own = require "perigee.registry.http.own"
local perigee = require "perigee"
local process = require "spec.support.process"
local redis = require "spec.support.redis"
local sockets = require "spec.net.sockets"

local await, slow = cases.await, cases.slow
local memory = ffi.new "uint8_t[64]"

local function padded(name, length)
  return name .. ("."):rep(length - #name)
end

-- Names regions of agent until there are n, or one is refused. Returns how many
-- there are now, and the error.
local function name_some(agent, from, n, length)
  for i = from, n do
    local region, err = agent.engine:register(memory, 64, {
      name = padded("r" .. i .. ".", length), access = "rw" })
    if not region then return i - 1, err end
  end
  return n
end

-- Counts the regions that the registry has of the agent called name.
local function count(agent, name)
  local entry, n = agent:lookup(name), 0
  for _ in pairs(entry and entry.regions or {}) do n = n + 1 end
  return n
end

-- The messages that are logged meanwhile: a list of texts.
local function logged()
  local list, log = {}, perigee.log
  perigee.log = function(_, text) list[#list + 1] = text end
  finally(function() perigee.log = log end)
  return list
end

local function mentions(list, text)
  local n = 0
  for _, each in ipairs(list) do
    if each:find(text, 1, true) then n = n + 1 end
  end
  return n
end

-- Sees that agent has its name all the time for longer than a TTL.
local function stays_held(agent)
  local limit = process.now() + 1.5 * agent.registry.ttl
  repeat
    assert.is_true(agent.held)
    perigee.sleep(0.05)
  until process.now() > limit
end

describe("an entry", function()
  after_each(cases.cleanup)

  for _, where in ipairs(backends.all) do
    if where ~= "board" then
    it("with all the regions that peers may reach, of the longest names, is "
      .. "kept in " .. where, function()
      local registry = backends.start(where)
      local one = assert(backends.take(registry, "one"))
      local two = assert(backends.take(registry, "two"))
      assert.equal(1024, (name_some(one, 1, 1024, 255)))
      for i = 1, 200 do
        assert(one:serve { name = padded("s" .. i .. ".", 64), version = 1,
                           methods = { f = print } })
      end
      await(function() return count(two, "one") == 1024 end)
      await(function()
        return two:lookup "one".services[padded("s200.", 64)] == 1
      end)
      assert.is_true(one.held)
    end)

    it("that grows beyond what " .. where .. " takes is refused where it "
      .. "grows, and keeps its name", function()
      local registry = backends.start(where)
      local one = assert(backends.take(registry, "one",
                                       { engine = { regions = 4096 } }))
      local two = assert(backends.take(registry, "two"))
      local said = logged()
      local n, err = name_some(one, 1, 4096, 255)
      assert.equal("too_large", err.kind, tostring(err))
      assert.matches("naming the region .* would have up to %d+ bytes, and .* "
        .. "takes 1048576;", tostring(err))
      local full
      for i = 1, 10 do
        full = select(2, one:serve { name = padded("s" .. i .. ".", 64),
                                     methods = { f = print } })
        if full then break end
      end
      assert.equal("too_large", full.kind)
      assert.matches("adding the service s%d", tostring(full))
      await(function() return count(two, "one") == n end)
      assert(one.engine.regions[padded("r1.", 255)]:close())
      assert.equal(n + 1, (name_some(one, n + 1, n + 1, 255)))
      await(function()
        return two:lookup "one".regions[padded(("r%d."):format(n + 1), 255)]
      end)
      assert.is_true(one.held)
      assert.equal(0, mentions(said, "too large"), table.concat(said, "\n"))
    end)
    end
  end
end)

-- Calls f with a wrong name; the message, which names this file's line.
local function refused(f)
  local fine, message = pcall(f)
  assert.is_false(fine)
  assert.matches("^[^:]*entries_spec.lua:%d+: ", message)
  return message
end

describe("a name in an entry that is no UTF-8", function()
  after_each(cases.cleanup)

  it("is misuse where a region or a service gets it", function()
    local one = assert(cases.agent "one")
    for _, name in ipairs { "kv\255", "\237\160\128", "\192\175" } do
      assert.matches("option name of engine:alloc must be a text in UTF%-8",
        refused(function() one.engine:alloc(64, { name = name }) end))
      assert.matches("option name of engine:register must be a text in UTF%-8",
        refused(function()
          one.engine:register(memory, 64, { name = name })
        end))
      assert.matches("a service needs a name of 1 to 255 bytes in UTF%-8",
        refused(function() one:serve { name = name, methods = {} } end))
    end
    assert(one.engine:alloc(64, { name = "Schl\195\188ssel" })):close()
    local engine = cases.engine()
    assert(engine:alloc(64, { name = "\255" })):close()  -- nobody tells of it
  end)
end)

needing("an entry in a control server", { control }, function()
  after_each(cases.cleanup)

  local function start(body)
    return control.start { "--body", tostring(body) }
  end

  it("is refused where it grows beyond what the server said", function()
    start(4096)
    local registry = control.address(cases)
    local one = assert(backends.take(registry, "one"))
    local _, err = name_some(one, 1, 1000, 20)
    assert.equal("too_large", err.kind)
    assert.matches("takes 4096;", tostring(err))
  end)

  it("that a server with another limit refuses stays as it was, and its name "
    .. "is renewed", function()
    local server = start(65536)
    local registry = control.address(cases)
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    name_some(one, 1, 5, 20)
    await(function() return count(two, "one") == 5 end)
    local term = two:lookup "one".term
    server:kill()
    server.more = { "--body", "2048" }
    server:begin()
    local said = logged()
    assert.equal(200, (name_some(one, 6, 200, 20)))
    await(function() return mentions(said, "larger than this server") > 0 end)
    stays_held(one)
    assert.equal(5, count(two, "one"))
    assert.equal(term, two:lookup "one".term)
    assert.equal(1, mentions(said, "larger than this server"))
    for i = 6, 200 do
      one.engine.regions[padded("r" .. i .. ".", 20)]:close()
    end
    name_some(one, 6, 6, 20)
    await(function() return count(two, "one") == 6 end)
  end)

  it("that was refused is sent anew with a name that was lost meanwhile",
     function()
    local server = start(65536)
    local registry = control.address(cases)
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    name_some(one, 1, 5, 20)
    await(function() return count(two, "one") == 5 end)
    server:kill()
    server.more = { "--body", "2048" }
    server:begin()
    local said = logged()
    assert.equal(200, (name_some(one, 6, 200, 20)))
    await(function() return mentions(said, "larger than this server") > 0 end)
    server:kill()
    await(function() return not one.held end)
    for i = 2, 200 do
      one.engine.regions[padded("r" .. i .. ".", 20)]:close()
    end
    server:begin()
    await(function() return one.held and count(two, "one") == 1 end)
  end)

  it("has its share of memory while it is read, however many there are",
     function()
    local server = start(2 ^ 23)
    local head = ("PUT /v1/scopes/s/agents/x HTTP/1.1\r\nHost: localhost\r\n"
      .. "Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n")
      :format(own.find(server.url), 2 ^ 23)
    local list, left, statuses = {}, {}, {}
    local function send(i, n)
      assert(sockets.send(list[i], ("x"):rep(n)))
      left[i] = left[i] - n
    end
    for i = 1, 12 do
      list[i], left[i] = sockets.dial("tcp://127.0.0.1:" .. server.port), 2 ^ 23
      assert(sockets.send(list[i], head))
      repeat
        send(i, math.min(2 ^ 19, left[i] - 2 ^ 10))
        for j = 1, i - 1 do send(j, 1) end -- who pauses loses its place
      until left[i] == 2 ^ 10
    end
    for i = 1, 12 do send(i, left[i]) end
    for _, fd in ipairs(list) do
      assert(#sockets.readable({ fd }, 60 * slow) > 0, "it has no answer")
      local answer = assert(sockets.receive(fd))
      -- A refusal may be lost as the server closes over bytes that it left.
      local status = answer:match "^HTTP/1.1 (%d+)" or "503"
      statuses[status] = (statuses[status] or 0) + 1
      sockets.close(fd)
    end
    assert.same({ ["503"] = 4, ["400"] = 8 }, statuses)
  end)
end)

needing("an entry in etcd", { etcd }, function()
  after_each(cases.cleanup)

  local function start()
    return etcd.start { words = { "--max-request-bytes", "8192" } }
  end

  it("that is more than a request may have stays as it was, and its name is "
    .. "renewed", function()
    start()
    local registry = etcd.address(cases, ("&ttl=%d"):format(2 * slow))
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    name_some(one, 1, 5, 20)
    await(function() return count(two, "one") == 5 end)
    local said = logged()
    assert.equal(400, (name_some(one, 6, 400, 20)))
    await(function() return mentions(said, "request is too large") > 0 end)
    stays_held(one)
    assert.equal(5, count(two, "one"))
    assert.equal(1, mentions(said, "request is too large"))
  end)

  it("behind a control server is refused alone, and its name is renewed",
     function()
    start()
    control.start({}, nil, nil, (etcd.address(cases):gsub("ttl=%d+&", "")))
    local registry = control.address(cases):gsub("ttl=[%d.]+",
      ("ttl=%d"):format(2 * slow))
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    name_some(one, 1, 5, 20)
    await(function() return count(two, "one") == 5 end)
    local said = logged()
    assert.equal(400, (name_some(one, 6, 400, 20)))
    await(function() return mentions(said, "request is too large") > 0 end)
    name_some(two, 1, 3, 20)
    await(function() return count(one, "two") == 3 end)
    stays_held(one)
    assert.equal(5, count(two, "one"))
    assert.equal(1, #said, table.concat(said, "\n"))
  end)
end)

needing("an entry in Redis", { redis }, function()
  after_each(cases.cleanup)

  it("that a full server refuses stays as it was, and its name is renewed",
     function()
    local server = redis.start()
    local registry = redis.address(cases)
    local one = assert(backends.take(registry, "one"))
    local two = assert(backends.take(registry, "two"))
    name_some(one, 1, 5, 20)
    await(function() return count(two, "one") == 5 end)
    local said = logged()
    server:ask "CONFIG SET maxmemory 1"
    assert.equal(10, (name_some(one, 6, 10, 20)))
    await(function() return said[1] ~= nil end)
    stays_held(one)
    assert.equal(5, count(two, "one"))
    server:ask "CONFIG SET maxmemory 0"
    await(function() return count(two, "one") == 10 end)
  end)
end)
