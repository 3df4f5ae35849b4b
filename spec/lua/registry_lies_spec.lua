-- SPDX-License-Identifier: Apache-2.0
-- Servers of names that answer what costs those who ask them much: lists that
-- say how long they are and end, bombs, lists without an end, odd ids. An agent
-- that asks is told in time, and its loop goes on.
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"
local registries = require "perigee.registry"
local turns = require "spec.support.turns"

local LONG = 30 * cases.slow
-- Seconds of the processor's time of a turn of the loop. What is tried here
-- took seconds in one.
local SHORT = 0.1
-- Seconds of processor time that a whole answer may cost.
local ALL = 5 * cases.slow

-- A server that answers each request with the same bytes, the results of the
-- code `making` (a head and a part, which comes `times`), and then hangs up.
local function liar(child, _, _, making, times)
  local sockets = require "spec.net.sockets"
  local door, port = sockets.listen "127.0.0.1"
  local head, part = assert(loadstring(making))()
  child.say(port)
  while true do
    local fd = sockets.accept(door)
    sockets.readable({ fd }, 60)
    sockets.receive(fd)
    local fine = sockets.send(fd, head)
    for _ = 1, tonumber(times) do
      fine = fine and sockets.send(fd, part)
    end
    sockets.close(fd)
  end
end

needing("a registry's server that lies", { control }, function()
  local pretended = {}                -- what ends servers of this process

  after_each(function()
    for _, stop in ipairs(pretended) do stop() end
    pretended = {}
    cases.cleanup()
  end)

  -- The registry at a liar.
  local function lying(scheme, making, times)
    cases.engine()
    local child = process.start(liar, making, times or 0)
    return assert(registries.open(("%s://127.0.0.1:%s?timeout=%g")
      :format(scheme, child:read(LONG, cases.pump), LONG)))
  end

  -- Asks a liar for a name and for all names. Both fail, in no long turn.
  local function costs_little(registry, kinds)
    for _, asking in ipairs { "lookup", "list" } do
      local kilobytes, began = collectgarbage "count", os.clock()
      local seconds, none, kind, why = turns.longest(function()
        return registry[asking](registry, cases.scope, asking == "list" and {}
          or "one"):wait(LONG)
      end)
      assert.is_nil(none)
      assert.is_truthy(kinds[kind], ("%s: %s"):format(kind, why))
      assert.is_true(seconds < SHORT, ("%s: a turn of %g s"):format(asking,
                                                                    seconds))
      assert.is_true(os.clock() - began < ALL, asking .. " costs too much")
      local more = collectgarbage "count" - kilobytes
      assert.is_true(more < 2 ^ 17, ("%s: %d KiB"):format(asking, more))
    end
  end

  local GIVEN_UP = { protocol = true, too_large = true, peer_lost = true }

  for what, making in pairs {
    ["a list of 2,000,000,000 replies"] = [[return "*2000000000\r\n"]],
    ["seven such lists in one another"] =
      [[return ("*2000000000\r\n"):rep(7)]],
    ["many lists that are too long together"] =
      [[return "*1000\r\n" .. ("*1000\r\n:1\r\n"):rep(100)]],
    ["a text of 2,000,000,000 bytes"] = [[return "$2000000000\r\n"]],
  } do
    it("is Redis, and hangs up after " .. what, function()
      costs_little(lying("redis", making), GIVEN_UP)
    end)
  end

  for what, making in pairs {
    ["a line without an end"] = [[return "+", ("+"):rep(2 ^ 20)]],
    ["a text's length without an end"] = [[return "$", ("0"):rep(2 ^ 20)]],
    ["a text that is too long"] =
      [[return "$60000000\r\n", ("x"):rep(2 ^ 20)]],
    ["a list of as many texts as there may be"] =
      [[return "*65000\r\n", ("$1\r\nx\r\n"):rep(1000)]],
  } do
    it("is Redis, and sends " .. what, function()
      costs_little(lying("redis", making, 65), GIVEN_UP)
    end)
  end

  -- Answers all but TIME by an empty list.
  local function timeless(child, _, _, time)
    local sockets = require "spec.net.sockets"
    local door, port = sockets.listen "127.0.0.1"
    child.say(port)
    while true do
      local fd = sockets.accept(door)
      repeat
        sockets.readable({ fd }, 60)
        local got = sockets.receive(fd)
        local text = ""
        for command in (got or ""):gmatch "%*%d+\r\n%$%d+\r\n(%w+)" do
          text = text .. (command == "TIME" and time or "*0\r\n")
        end
      until text == "" or not sockets.send(fd, text)
      sockets.close(fd)
    end
  end

  for what, time in pairs {
    ["nothing"] = "$-1\r\n", ["an empty list"] = "*0\r\n",
    ["a number"] = ":7\r\n", ["words"] = "*2\r\n$1\r\nx\r\n$1\r\ny\r\n",
  } do
    it("is Redis, and answers TIME by " .. what, function()
      cases.engine()
      local child = process.start(timeless, time)
      local address = ("redis://127.0.0.1:%s?timeout=%g")
        :format(child:read(LONG, cases.pump), LONG)
      costs_little(assert(registries.open(address)), { protocol = true })
    end)
  end

  local HEAD = [[local head = "HTTP/1.1 200 OK\r\n\r\n" return head .. ]]

  for what, json in pairs {
    ["60 MB of empty objects"] =
      { [==['{"kvs":[', ("{},"):rep(333333)]==], 60 },
    ["7 MB of empty objects"] = { [==['{"kvs":[', ("{},"):rep(333333)]==], 7 },
    ["7 MB of numbers"] = { [==['{"kvs":[', ("1,"):rep(500000)]==], 7 },
    ["7 MB of keys"] = { [==['{', ('"abcd":1,'):rep(111111)]==], 7 },
    ["7 MB of one text"] = { [==['"', ("x"):rep(1000000)]==], 7 },
    ["7 MB of escapes"] = { [==['"', ("\\u1234"):rep(160000)]==], 7 },
    ["7 MB of one number"] = { [==['1', ("1"):rep(1000000)]==], 7 },
    ["7 MB of blanks"] = { [==[' ', (" "):rep(1000000)]==], 7 },
    ["a nest of lists"] = { [==['[', ("["):rep(1000000)]==], 7 },
  } do
    for _, scheme in ipairs { "etcd", "http" } do
      it(("is found by %s://, and sends %s"):format(scheme, what), function()
        costs_little(lying(scheme, HEAD .. json[1], json[2]), GIVEN_UP)
      end)
    end
  end

  -- ---- Lists without an end ------------------------------------------------

  -- A server of this process: answers each request by answer(n), where n counts
  -- them. Returns its port, and a function for that count.
  local function pretend(answer)
    local web = require "perigee.net.web"
    local asked, is_over = 0, false
    cases.engine()
    local server = assert(web.open {
      host = "127.0.0.1", port = 0, connections = 10, per_host = 0,
      head = 32768, body = 65536, patience = 30, queued = 2 ^ 20 })
    local task = perigee.spawn(function()
      while not is_over do
        local list = {}
        server:run(list)
        for _, each in ipairs(list) do
          asked = asked + 1
          answer(each, asked)
        end
        if not list[1] then server:wait(0.1) end
      end
      server:close()
    end)
    pretended[#pretended + 1] = function()
      is_over = true
      task:wait(LONG)
    end
    return server.port, function() return asked end
  end

  local pages = {}
  function pages.etcd(n)
    local base64 = require "perigee.net.base64"
    return ('{"header":{"revision":"1"},"more":true,"kvs":[{"key":"%s"}]}')
      :format(base64.encode(("perigee/%s/name/n%07d"):format(cases.scope, n)))
  end
  function pages.http(n)
    return ('{"items":[{"name":"n%07d","scope":"%s","addresses":["x"]}],'
      .. '"next":"n%07d"}'):format(n, cases.scope, n)
  end

  for scheme, page in pairs(pages) do
    it(("is found by %s://, and whose list has no end is asked for no more by "
      .. "who has given up"):format(scheme), function()
      local port, asked = pretend(function(request, n)
        request:answer(200, page(n), {})
      end)
      local registry = assert(registries.open(("%s://127.0.0.1:%d?timeout=%g")
        :format(scheme, port, LONG)))
      local future = registry:list(cases.scope, {})
      cases.await(function() return asked() > 10 end)
      future:cancel()
      perigee.sleep(0.05)
      local before = asked()
      perigee.sleep(0.2)
      assert.is_true(asked() <= before + 1, asked() - before)
    end)
  end

  it("tells who watches of 20,000 names by one event, and may", function()
    local registry = lying("http", [==[
      local name = '{"name":"n%d","scope":"%s","addresses":["x"]},'
      local scope, parts = os.getenv "PERIGEE_SPEC_SCOPE", {}
      for i = 1, 20000 do parts[i] = name:format(i, scope) end
      return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        .. 'event: all\nid: 1\ndata: {"entries":[' .. table.concat(parts)
        .. '1]}\n\n']==])
    local seconds, answer = turns.longest(function()
      return registry:watch(cases.scope, {}):wait(LONG)
    end)
    assert.equal(20000, #answer.entries)
    assert.is_true(seconds < SHORT, seconds)
  end)

  -- Answers one request by an event of 100,000 fields, which has no end.
  local function chatty(child)
    local sockets = require "spec.net.sockets"
    local door, port = sockets.listen "127.0.0.1"
    child.say(port)
    local fd = sockets.accept(door)
    sockets.readable({ fd }, 60)
    sockets.receive(fd)
    sockets.send(fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
      .. "\r\n")
    for i = 1, 100 do
      local lines = {}
      for k = 1, 1000 do
        local field = (i * 1000 + k .. ""):gsub("%d", function(digit)
          return string.char(97 + digit)
        end)
        lines[k] = field .. ": " .. field:rep(40) .. "\n"
      end
      sockets.send(fd, table.concat(lines))
    end
    child.say "sent"
    child.hear()
  end

  it("tells of fields that no event has, which are not kept", function()
    cases.engine()
    local child = process.start(chatty)
    local registry = assert(registries.open(("http://127.0.0.1:%s?timeout=%g")
      :format(child:read(LONG, cases.pump), LONG)))
    collectgarbage()
    local kilobytes = collectgarbage "count"
    local watching = registry:watch(cases.scope, {})
    child:expect("sent", LONG, cases.pump)
    collectgarbage()
    local more = collectgarbage "count" - kilobytes
    assert.is_true(more < 2 ^ 13, ("%d KiB are kept"):format(more))
    watching:cancel()
  end)

  it("whose list goes on and on is followed to so many names and bytes",
     function()
    local module = require "perigee.registry.pages"
    local function until_refused(bytes)
      local list = module.new()
      local fine, kind, why
      repeat
        for _ = 1, 1000 do list:name(bytes) end
        fine, kind, why = list:turn()
      until not fine
      assert.equal("too_large", kind)
      return why, list
    end
    local why, list = until_refused(0)
    assert.matches("more than 262144 names", why)
    assert.is_true(list.names <= 264000)
    why, list = until_refused(1000)
    assert.matches("more than 64 MiB", why)
    assert.is_true(list.bytes <= 2 ^ 26 + 1e6)
    list = module.new()
    list.deadline = 0
    assert.equal("timeout", select(2, list:turn()))
  end)

  -- ---- Ids of events -------------------------------------------------------

  -- Watches a control server that tells an event with an id, ends its stream,
  -- and answers as one does that refuses who comes back with that. Returns
  -- what it was asked with after that, in order.
  local function came_back_with(id, status)
    local told = {}
    local port = pretend(function(request, n)
      told[n] = request:header "Last-Event-ID" or "none"
      if told[n] ~= "none" and status then
        return request:answer(status, "{}", {})
      end
      request:answer(200, 'event: all\nid: ' .. id
        .. '\ndata: {"entries":[]}\n\n', { "Content-Type",
                                            "text/event-stream" })
    end)
    local registry = assert(registries.open(("http://127.0.0.1:%d?timeout=%g")
      :format(port, LONG)))
    local answer = assert(registry:watch(cases.scope, {}):wait(LONG))
    local again = registry:watch(cases.scope, { from = answer.revision })
    cases.await(function() return #told >= 4 end)
    again:cancel()
    return told
  end

  it("sends an id that no header can have, which is not sent back", function()
    for _, id in ipairs { "a\rb", "a\0b", "caf\195\169", ("9"):rep(129),
                          ("9"):rep(7000), "\27[2J" } do
      local told = came_back_with(id)
      for i = 1, 4 do assert.equal("none", told[i]) end
    end
    assert.equal(("9"):rep(128), came_back_with(("9"):rep(128))[2])
  end)

  it("sends an id that it refuses then, which is sent back once", function()
    for _, status in ipairs { 400, 404, 431, 503 } do
      local told = came_back_with("1:7", status)
      assert.same({ "none", "1:7", "none", "1:7" },
                  { told[1], told[2], told[3], told[4] })
    end
  end)
end)
