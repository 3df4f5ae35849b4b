-- SPDX-License-Identifier: Apache-2.0
-- Helpers of the specs for sessions without a socket: two agents in this
-- process, on the two sides that weather.lua names, and their endpoints and
-- sessions.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

local M = {}

-- ---- The content of an info -----------------------------------------------

local PREFIX = "perigee-endpoint:"

-- The bytes below the checksum; pack() makes a text with checksum of such
-- bytes.
function M.unpack(info)
  local text = info:sub(#PREFIX + 1, -17):gsub("%x%x", function(x)
    return string.char(tonumber(x, 16))
  end)
  return text
end

local function hex(text)
  return (text:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

function M.pack(bytes)
  local sum = 0xcbf29ce484222325ULL
  for i = 1, #bytes do
    sum = bit.bxor(sum, bytes:byte(i)) * 0x100000001b3ULL
  end
  return PREFIX .. hex(bytes .. ffi.string(ffi.new("uint64_t[1]", sum), 8))
end

-- The places of the hello's fields, behind a version, a frame's head, the magic
-- number and two versions. The offer's version is behind the terms.
M.HELLO_VERSION_MIN, M.NONCE, M.OFFER_VERSION = 20, 28, 452

local function nonce(endpoint)
  local at = M.unpack(endpoint:info()):sub(M.NONCE + 1, M.NONCE + 8)
  return ffi.cast("const uint64_t *", at)[0]
end

-- The one of two endpoints with the smaller nonce speaks first.
function M.calls(one, other) return nonce(one) < nonce(other) end

-- ---- Sides ------------------------------------------------------------------

-- Two agents; more: RDMA options of both.
function M.agents(more)
  local sides = assert(weather.anywhere(more))
  return weather.agent(sides.near), weather.agent(sides.far)
end

function M.endpoint(agent) return assert(agent.engine:endpoint()) end

-- Endpoints of both agents. calls, if it is given, tells whether the first one
-- speaks first.
function M.pair(near, far, calls)
  for _ = 1, 64 do
    local a, b = M.endpoint(near), M.endpoint(far)
    if calls == nil or M.calls(a, b) == calls then return a, b end
    a:close()
    b:close()
  end
  error "sixty-four throws of a coin came out alike"
end

-- Connects both endpoints, the second after a pause; returns their sessions.
function M.connect(a, b, pause)
  local first = perigee.spawn(function()
    return assert(a:connect(b:info(), { timeout = 20 }))
  end)
  perigee.sleep(pause or 0)
  local second = assert(b:connect(a:info(), { timeout = 20 }))
  return assert(first:wait(20)), second
end

function M.sessions(near, far)
  return M.connect(M.pair(near, far))
end

-- Starts a child with an agent on the far side, which connects an endpoint and
-- then calls f(child, perigee, ffi, agent, session). Returns the session to it.
function M.child(near, f)
  local sides = assert(weather.anywhere())
  local child = process.start(function(child, perigee_, ffi_, rdma, code)
    local agent = assert(child.cases.agent(nil, { engine = { rdma = rdma } }))
    local endpoint = assert(agent.engine:endpoint())
    child.say(endpoint:info())
    local session = assert(endpoint:connect(child.hear(), { timeout = 20 }))
    local unhex = code:gsub("%x%x", function(x)
      return string.char(tonumber(x, 16))
    end)
    assert(loadstring(unhex))(child, perigee_, ffi_, agent, session)
  end, sides.far, hex(string.dump(f)))
  local endpoint = M.endpoint(near)
  child:tell(endpoint:info())
  return assert(endpoint:connect(assert(child:read(20)), { timeout = 20 })),
    child
end

-- Tells whether the session was lost within so many seconds.
function M.lost(session, seconds)
  return cases.eventually(function() return session.lost end, seconds)
end

return M
