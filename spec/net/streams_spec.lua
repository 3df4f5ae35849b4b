-- SPDX-License-Identifier: Apache-2.0
-- A connection for payloads is held back on its way, while the session's own
-- goes on: a middlebox has forgotten it and drops its packets, or takes what it
-- brings and passes nothing on. Bytes that it held back are sent again, and
-- arrive once.
local cases = require "spec.support.cases"
local hosts = require "spec.net.hosts"
local middlebox = require "spec.net.middlebox"
local perigee = require "perigee"
local process = require "spec.support.process"

local DEAD = hosts.DEAD -- dead_after
local LONG = 30 * cases.slow -- the timeout of all that is to be done
local SIZE = 2 ^ 22

local function serving(child, perigee_, _, listen, dead)
  require("spec.net.worker").serve(child, perigee_, {
    listen = listen, secret = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
    encrypt = false, dead_after = tonumber(dead) })
end

local function relaying(child, _, _, host, target, number, way, limit)
  require "spec.net.relay" { say = child.say, host = host, target = target,
    what = "swallow", number = tonumber(number), way = way,
    limit = tonumber(limit) }
end

-- One session, and a payload of each kind, both ways.
local Case = {}
Case.__index = Case

local function connect(address, options)
  options.secret, options.dead_after = hosts.SECRET, options.dead_after or DEAD
  options.encrypt = options.encrypt or false
  local near = assert(cases.agent(nil, options))
  local case = setmetatable({ near = near, address = address }, Case)
  case.proxy = assert(near:proxy(address, "x", { timeout = LONG }))
  case.session = assert(near:session(address))
  case.remote = assert(case.session:region("m"))
  case.here = near.engine:alloc(6 * SIZE)
  return case
end

function Case:facts() return self.session:explain().facts end

-- Begins one payload of each kind; finish() waits for all, and compares.
function Case:begin(byte)
  local function own(i) return self.here:slice(i * SIZE, SIZE) end
  local there = self.remote:slice(2 * SIZE, SIZE)
  local list, async = {}, self.proxy.async
  self.byte, self.list = byte, list
  own(0):fill(byte)
  list.request = async:put(own(0), byte)
  list.reply = self.proxy:with({ into = own(1):fill(0) }).async:get(SIZE,
                                                                  byte + 1)
  list.write = self.session:write { from = own(0), to = there }
  list.read = self.session:read { from = self.remote:slice(3 * SIZE, SIZE),
                                  to = own(2):fill(byte + 2) }
  list.text = async:echo(string.char(byte):rep(SIZE))
end

local function is_all(slice, byte)
  return slice:string() == string.char(byte):rep(slice.length)
end

function Case:finish()
  local got = {}
  for name, future in pairs(self.list) do
    local result, err = future:wait(LONG)
    assert(result ~= nil, ("%s: %s"):format(name, tostring(err)))
    got[name] = result
  end
  local byte = self.byte
  assert(got.request == SIZE, "the request has other bytes")
  assert(is_all(self.here:slice(SIZE, SIZE), byte + 1), "another reply")
  assert(is_all(self.here:slice(2 * SIZE, SIZE), 0), "something else was read")
  assert(got.text == string.char(byte):rep(SIZE), "another text")
  local back = self.here:slice(4 * SIZE, SIZE)
  assert(self.session:read { from = self.remote:slice(2 * SIZE, SIZE),
                             to = back }:wait(LONG))
  assert(is_all(back, byte), "something else was written")
end

-- Small calls go on all the while beside a long reply, until it is there.
-- (Behind a long request they wait, as requests arrive in order.)
function Case:calls_beside()
  local calls, hurried = 0, self.proxy:with { timeout = DEAD }
  local into = self.here:slice(5 * SIZE, SIZE):fill(0)
  local long = self.proxy:with({ into = into }).async:get(SIZE, 70)
  repeat
    local got, err = hurried:same(calls)
    assert(got == calls, ("call %d: %s"):format(calls, tostring(err or got)))
    calls = calls + 1
    perigee.sleep(0.01)
  until long:done()
  assert(long:wait(0))
  assert(is_all(into, 70), "another reply")
end

-- The streams are whole again: used, as many as before, and `lost` were lost.
function Case:is_whole(streams, lost)
  assert(cases.eventually(function()
    local facts = self:facts()
    return facts.payload_sockets == streams
      and (facts.payload_sockets_lost or 0) >= lost
  end, 10 * DEAD + hosts.MORE), "it has fewer streams than before")
  self:begin(90)
  self:finish()
  assert.is_false(self.session.lost)
end

local WAYS = {
  ["plain"] = {}, ["sealed"] = { encrypt = true },
  ["plain, by three streams"] = { streams = 3 },
  ["sealed, by three streams"] = { encrypt = true, streams = 3 },
}

describe("a connection for payloads that a middlebox forgets", function()
  local possible, why = middlebox.possible()
  if not possible then
    it("is replaced", function() return pending(why) end)
    return
  end

  before_each(function() assert(middlebox.start()) end)
  after_each(middlebox.finish)

  local port -- of the far host

  local function connected(options)
    local child = middlebox.far(serving, "tcp://10.77.10.1:0", DEAD)
    local address = assert(child:read(20))
    port = tonumber(address:match ":(%d+)$")
    local streams = options.streams or 1
    local case = connect(address, options)
    assert(cases.eventually(function()
      return case:facts().payload_sockets == streams
    end))
    case:begin(10)
    case:finish()
    return case, streams
  end

  -- The port of the session's own connection, and those of its streams.
  local function ports(streams)
    local own, others
    assert(cases.eventually(function()
      own, others = middlebox.ports(port)
      return #own == 1 and #others == streams
    end), "there are other connections")
    return own[1], others
  end

  local function forget_payloads(streams)
    local _, others = ports(streams)
    for _, other in ipairs(others) do middlebox.forget(other) end
  end

  for way, given in pairs(WAYS) do
    local function options()
      local copy = {}
      for key, value in pairs(given) do copy[key] = value end
      return copy
    end

    it(("is replaced, and its payloads arrive (%s)"):format(way), function()
      local case, streams = connected(options())
      forget_payloads(streams)
      case:begin(20)
      case:finish()
      case:is_whole(streams, streams)
    end)

    it(("holds up no call beside its payloads (%s)"):format(way), function()
      local case, streams = connected(options())
      forget_payloads(streams)
      case:calls_beside()
      case:is_whole(streams, 1)
    end)

    it(("in the midst of payloads is replaced (%s)"):format(way), function()
      local case, streams = connected(options())
      local busy = true
      local _, others = ports(streams)
      local echoing = perigee.spawn(function()
        while busy do
          local text = ("e"):rep(SIZE)
          assert(assert(case.proxy:echo(text)) == text, "another echo")
        end
        return true
      end)
      case:begin(30)
      perigee.sleep(0.002)
      for _, other in ipairs(others) do middlebox.forget(other) end
      case:finish()
      busy = false
      assert(echoing:wait(LONG))
      case:is_whole(streams, streams)
    end)
  end

  it("again and again is replaced each time", function()
    local case, streams = connected { streams = 2 }
    for round = 1, 3 do
      forget_payloads(streams)
      case:begin(20 + round)
      case:finish()
      case:is_whole(streams, round * streams)
    end
  end)

  it("is given up in time if the peer has no word for that", function()
    local case, streams = connected {
      engine = { features = "-streams" } }
    forget_payloads(streams)
    local since = process.now()
    case:begin(20)
    local lost = 0
    for _, future in pairs(case.list) do
      local got, err = future:wait(LONG)
      if got == nil then
        assert.equal("peer_lost", err.kind)
        lost = lost + 1
      end
    end
    assert.is_true(lost > 0)
    assert.is_true(process.now() - since < LONG)
    local again = assert(case.near:session(case.address, { timeout = LONG }))
    assert.is_false(again.lost)
    assert.equal(SIZE, #assert(case.proxy:echo(("x"):rep(SIZE))))
  end)

  it("is the session's end if it is the session's own", function()
    local case, streams = connected {}
    local own = ports(streams)
    case:begin(50)
    local nap = case.proxy.async:nap(LONG)
    middlebox.forget(own)
    local since = process.now()
    local got, err = nap:wait(LONG)
    assert.is_nil(got)
    assert.equal("peer_lost", err.kind)
    assert.is_true(process.now() - since < DEAD + hosts.MORE)
  end)
end)

describe("a connection for payloads that is read on its way, and not passed on",
         function()
  local possible, why = hosts.possible()
  if not possible then
    it("is replaced", function() return pending(why) end)
    return
  end

  before_each(function() assert(hosts.start()) end)
  after_each(hosts.finish)

  local function held_back(options, way, limit)
    local child = hosts.far(serving, "tcp://10.77.7.2:0", DEAD)
    local relay = hosts.far(relaying, "10.77.7.2", assert(child:read(20)), 2,
                            way, limit)
    return connect(assert(relay:read(20)), options), relay, child
  end

  for way, given in pairs(WAYS) do
    for direction, text in pairs { to = "to the peer", back = "from it" } do
      it(("is replaced, and its payloads arrive (%s, %s)"):format(text, way),
         function()
        for _, limit in ipairs { 60, 2 ^ 16, 2 ^ 21 + 12345 } do
          local options = {}
          for key, value in pairs(given) do options[key] = value end
          local case, relay, child = held_back(options, direction, limit)
          case:begin(40)
          case:finish()
          relay:expect("now", LONG)
          case:is_whole(options.streams or 1, 1)
          case.near:close()
          relay:close()
          child:close()
        end
      end)
    end
  end
end)
