-- SPDX-License-Identifier: Apache-2.0
-- A man in the middle between a client and the victim flips one bit: anywhere
-- in the handshake, or in the calls after it. A session with a flipped bit in
-- its handshake must not answer a call or stay open. A dialer that has sent its
-- last frame may consider such a session open until it learns of its end. With
-- authenticated bytes (attack.encrypt) no call may get a wrong answer.
local ffi = require "ffi"
local native = require "perigee.native"
local sockets = require "spec.net.sockets"

local C = native.C
-- A session that has not opened in this time will not open.
local OPENING, CALLING, CALLS = 0.1, 0.2, 6
-- Without encryption the lane's first head follows the handshake at once, in
-- each direction (tcp.h).
local HEAD = 24

-- ---- The relay -------------------------------------------------------------

local Relay = {}
Relay.__index = Relay

local function relay(target)
  local fd, port = sockets.listen "127.0.0.1"
  return setmetatable({ at = fd, target = target, links = {},
                        address = "tcp://127.0.0.1:" .. port }, Relay)
end

-- Flips this bit of the next connection, in this direction.
function Relay:turn(way, place, bit_)
  self.way, self.place, self.bit = way, place, bit_
  self.turned = false
  self:drop()
end

local function hang_up(link)
  if link.over then return end
  link.over = true
  sockets.close(link.near)
  sockets.close(link.far)
end

function Relay:drop()
  for _, link in ipairs(self.links) do hang_up(link) end
  self.links = {}
end

local function turned(self, link, way, text)
  local at = self.place and self.place - link.passed[way] + 1
  link.passed[way] = link.passed[way] + #text
  if way ~= self.way or not at or at < 1 or at > #text then return text end
  self.turned = true
  local byte = bit.bxor(text:byte(at), bit.lshift(1, self.bit))
  return text:sub(1, at - 1) .. string.char(byte) .. text:sub(at + 1)
end

local function pass(self, link, from, to, way)
  local text = not link.over and sockets.receive(from)
  if not text then return end
  if text == "" or not sockets.send(to, turned(self, link, way, text)) then
    hang_up(link)
  end
end

function Relay:pump()
  if #sockets.readable({ self.at }, 0) > 0 then
    local near = sockets.accept(self.at)
    local far = sockets.dial(self.target)
    if not far then return sockets.close(near) end
    self.links[#self.links + 1] = { near = near, far = far,
                                    passed = { to = 0, back = 0 } }
  end
  for _, link in ipairs(self.links) do
    pass(self, link, link.near, link.far, "to")
    pass(self, link, link.far, link.near, "back")
  end
end

-- ---- The client ------------------------------------------------------------

-- Polls and relays until f(event) is true or the time is over.
local function until_(peer, between, seconds, f)
  local limit, over = native.clock() + seconds * 1e9, false
  repeat
    between:pump()
    peer:poll(function(event) over = f(event) or over end)
  until over or native.clock() > limit
  return over
end

local function open(peer, between)
  local operation = C.perigee_connect(peer.handle, between.address, "tcp",
                                      OPENING * 1e9)
  local id
  until_(peer, between, OPENING + 0.1, function(event)
    if event.kind ~= C.PERIGEE_EVENT_CONNECTED then return false end
    id = event.operation == operation and event.status == 0 and event.session
    return true
  end)
  return id and C.perigee_session(peer.handle, id)
end

-- Makes one call; returns a description of its answer if that is wrong, or nil.
local function ask(attack, peer, between, session, round)
  local text = ("%08d"):format(round):rep(64)
  local operation = peer:call(session, { method = attack.methods.echo,
                                         bytes = text, timeout = CALLING })
  local wrong
  until_(peer, between, CALLING + 0.1, function(event)
    if event.kind == C.PERIGEE_EVENT_LOST then return true end
    if event.operation ~= operation then return false end
    if event.status == 0 then
      wrong = ffi.string(event.pointer, event.length) ~= text
    end
    return true
  end)
  return wrong
end

-- Measures the handshake's length in each direction, by one without a flipped
-- bit. It takes the last connection: one that was given up before may still
-- have waited to be accepted.
local function measure(attack, peer, between)
  local session
  for _ = 1, 20 do
    between:drop()
    session = open(peer, between)
    if session then break end
  end
  assert(session, "no bit was turned, and no session opened")
  local passed = between.links[#between.links].passed
  until_(peer, between, 0.05, function() return false end)
  local long = { to = passed.to, back = passed.back }
  if not attack.encrypt then
    long.to, long.back = long.to - HEAD, long.back - HEAD
  end
  assert(not ask(attack, peer, between, session, 0), "a wrong answer")
  peer:hang_up(session)
  return long
end

-- Makes calls over a session that opened; returns how many were answered.
local function use(attack, peer, between, session, round)
  local answered = 0
  for i = 1, CALLS do
    local wrong = ask(attack, peer, between, session, round * CALLS + i)
    if wrong and attack.encrypt then
      attack:found(("a call was answered wrongly with bit %d of byte %d "
        .. "turned, %s the server"):format(between.bit, between.place,
                                           between.way))
    end
    if wrong == nil then break end
    answered = answered + 1
  end
  return answered
end

return function(attack)
  local peer = attack:peer { hello_timeout = OPENING * 1e9 }
  local between, round = relay(attack.address), 0
  local long = measure(attack, peer, between)
  while not attack:over() do
    round = round + 1
    local way = attack:random(2) == 0 and "to" or "back"
    local later = attack.encrypt and attack:random(3) == 0
    local place = later and long[way] + attack:random(3000)
                  or attack:random(long[way])
    between:turn(way, place, attack:random(8))
    local session = open(peer, between)
    local early = between.turned and place < long[way]
    local answered = session and use(attack, peer, between, session, round)
    if session and early and (answered > 0 or peer:is_open(session)) then
      attack:found(("a session was open with bit %d of byte %d of the %d of "
        .. "the handshake turned, %s the server"):format(between.bit, place,
          long[way], way))
    end
    if session then peer:hang_up(session) end
    peer:poll()
    attack:done()
  end
  between:drop()
  peer:close()
end
