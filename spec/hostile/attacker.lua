-- SPDX-License-Identifier: Apache-2.0
-- The program of an attacker's process: it runs one file of attacks/ for some
-- seconds; the functions here are shared by these files. It prints "there" when
-- the attack has begun, and "done N" when it is over: N is how often the attack
-- succeeded in doing what it tries, so that a judge notices an attack that
-- never took place.
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

-- Random whole numbers from 0, which a seed repeats.
function Attack:random(limit)
  local x = self.dice
  x = bit.bxor(x, bit.lshift(x, 13))
  x = bit.bxor(x, bit.rshift(x, 17))
  x = bit.bxor(x, bit.lshift(x, 5))
  self.dice = x
  return (x % 2 ^ 32) % limit
end

-- Tells whether the attack's time is over. The time begins with the first call
-- of this function, so that preparation does not count.
function Attack:over()
  self.ends = self.ends or native.clock() + self.seconds * 1e9
  return native.clock() > self.ends
end

-- Counts one attack; prints "there" at the first.
function Attack:done()
  self.count = self.count + 1
  if self.count == 1 then self.say "there" end
end

-- A peer that has the secret.
function Attack:peer(options)
  local all = { secret = self.secret, scope = self.scope, insecure = 1 }
  for name, value in pairs(options or {}) do all[name] = value end
  return assert(bare.new(all))
end

-- A session of that peer with the victim. Raises without one, unless an attack
-- took place already, which may have made the victim busy.
function Attack:dial(peer, seconds)
  local session, why = peer:dial(self.address, self.transport, seconds)
  if not session and self.count == 0 then
    error("the attacker is not let in: " .. why, 0)
  end
  return session
end

-- That session; if the victim has ended it, a new one if possible.
function Attack:keep(peer, session)
  return peer:is_open(session) and session or self:dial(peer) or session
end

-- Another peer, or nil if this process has no room for one.
function Attack:try_peer(options)
  local fine, peer = pcall(self.peer, self, options)
  return fine and peer or nil
end

-- The ids of the victim's methods by name, as the victim tells any peer.
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

-- Does nothing: events are not polled meanwhile.
function Attack:nap(seconds)
  process.usleep(math.max(0, seconds))
end

function Attack:nap_to_the_end()
  while not self:over() do self:nap(0.01) end
end

-- Reports something that the victim did and must not do.
function Attack:found(what)
  self.say("found " .. what:gsub("\n", " "))
end

-- The address where an attacker that serves listens.
function Attack:listen(peer)
  local address = self.transport == "shm"
    and ("unix:%s/liar-%d.sock"):format(self.folder, process.pid())
    or "tcp://127.0.0.1:0"
  self.say(peer:listen(address))
end

local function nice() ffi.C.spec_setpriority(0, 0, 19) end

-- Runs as a child of spec/support/process.lua. more: further settings from the
-- scenario, "key=value key=value".
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
