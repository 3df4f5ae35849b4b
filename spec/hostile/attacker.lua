-- SPDX-License-Identifier: Apache-2.0
-- What runs in an attacker's process: one file of attacks/, for so many
-- seconds, with what the files share. It says "there" when the attack has
-- begun, and "done N" when it is over: N times it did what it came for, so that
-- a judge knows of an attack that never took place.
local bare = require "spec.hostile.bare"
local ffi = require "ffi"
local native = require "perigee.native"
local process = require "spec.support.process"
local values = require "spec.hostile.values"
local victim = require "spec.hostile.victim"

ffi.cdef [[
  int spec_setpriority(int, unsigned, int) __asm__("setpriority");
]]

local Attack = {}
Attack.__index = Attack
local M = {}

-- Whole numbers from 0 that a seed repeats.
function Attack:random(limit)
  local x = self.dice
  x = bit.bxor(x, bit.lshift(x, 13))
  x = bit.bxor(x, bit.rshift(x, 17))
  x = bit.bxor(x, bit.lshift(x, 5))
  self.dice = x
  return (x % 2 ^ 32) % limit
end

-- Is its time over? That begins when this is asked for the first time: what it
-- takes to prepare is no part of it.
function Attack:over()
  self.ends = self.ends or native.clock() + self.seconds * 1e9
  return native.clock() > self.ends
end

-- One of them is done; the first of them is told.
function Attack:done()
  self.count = self.count + 1
  if self.count == 1 then self.say "there" end
end

-- A peer with the secret.
function Attack:peer(options)
  local all = { secret = self.secret, scope = self.scope, insecure = 1 }
  for name, value in pairs(options or {}) do all[name] = value end
  return assert(bare.new(all))
end

-- A session of that peer with the victim; raises without one, unless the
-- victim may be busy by now.
function Attack:dial(peer, seconds)
  local session, why = peer:dial(self.address, self.transport, seconds)
  if not session and self.count == 0 then
    error("the attacker is not let in: " .. why, 0)
  end
  return session
end

-- That session, or where the victim has ended it a new one, if there is any.
function Attack:keep(peer, session)
  return peer:is_open(session) and session or self:dial(peer) or session
end

-- Another peer, or nil where this process has no room for one any more.
function Attack:try_peer(options)
  local fine, peer = pcall(self.peer, self, options)
  return fine and peer or nil
end

-- The victim's methods by name: their ids, as it tells anybody.
function Attack:learn()
  local peer = self:peer()
  local session, told = self:dial(peer), nil
  for _, service in ipairs { "calc", "store" } do
    peer:call(session, { typed = true, bytes = values.encode(service) })
    peer:attend(5, function(event)
      if event.kind ~= native.C.PERIGEE_EVENT_REPLY then return false end
      told = values.decode(ffi.string(event.pointer, event.length))
      return true
    end)
    for name, method in pairs(assert(told, "no description").methods) do
      self.methods[name] = method.id
    end
  end
  peer:close()
end

-- Does nothing: what has come is not looked at.
function Attack:nap(seconds)
  process.usleep(math.max(0, seconds))
end

function Attack:nap_to_the_end()
  while not self:over() do self:nap(0.01) end
end

-- What the victim did, and may not.
function Attack:found(what)
  self.say("found " .. what:gsub("\n", " "))
end

-- Where an attacker that is called listens.
function Attack:listen(peer)
  local address = self.transport == "shm"
    and ("unix:%s/liar-%d.sock"):format(self.folder, process.pid())
    or "tcp://127.0.0.1:0"
  self.say(peer:listen(address))
end

local function nice() ffi.C.spec_setpriority(0, 0, 19) end

-- As a child of spec/support/process.lua.
-- more: what else a scenario says, as "key=value key=value".
function M.run(child, name, address, transport, seconds, seed, scale, more)
  local cases = child.cases
  nice()
  ffi.C.spec_mkdir(cases.folder, 448)
  local attack = setmetatable({
    say = child.say, name = name, address = address, transport = transport,
    secret = victim.SECRET, scope = cases.scope,
    folder = cases.folder, dice = bit.tobit(tonumber(seed) * 2 + 1),
    scale = tonumber(scale), count = 0, methods = {}, hear = child.hear,
    ends = false, seconds = tonumber(seconds),
  }, Attack)
  for key, value in more:gmatch "(%w+)=(%S*)" do attack[key] = value end
  local run = require("spec.hostile.attacks." .. name)
  if address ~= "" then attack:learn() end
  run(attack)
  child.say("done " .. attack.count)
end

return M
