-- SPDX-License-Identifier: Apache-2.0
--- The leases that a client has of a cache in one session: where entries lie
-- (`slab`, `offset`, `length`, `version`), and until when they may be read
-- there (`till`, ns of this host's clock).
--
--   a lease is   event                                     becomes
--   kept         its key is asked for, or viewed           kept
--   kept         its key has another value, there are      let go
--                too many leases, the client closes
--   let go       it has no view, or its last one closes    given back
--   any          its time is over                          over
--
-- Leases are given back by requests that nobody waits for; one that is over is
-- not.
local loop = require "perigee.runtime.loop"
local wire = require "perigee.cache.wire"

local now = loop.now

local M = {}

local Leases = {}
Leases.__index = Leases

local MOST = 4096                       -- that are kept

--- tell(request) makes a request that nobody waits for.
function M.new(session, tell)
  return setmetatable({ session = session, tell = tell, list = {}, count = 0 },
                      Leases)
end

-- What is given back is over: a read that is under way finds it so.
local function give_back(self, leases)
  for _, lease in ipairs(leases) do lease.till = 0 end
  if not self.session.handle then return end
  for first = 1, #leases, wire.KEYS do
    self.tell(wire.release(leases, first,
                           math.min(first + wire.KEYS - 1, #leases)))
  end
end

-- Is there nothing to give back: because views are open, or its time is over?
local function stays(lease)
  return lease.views > 0 or lease.till <= now()
end

--- Lets all go.
function Leases:clear()
  local leases = {}
  for _, lease in pairs(self.list) do
    lease.kept = false
    if not stays(lease) then leases[#leases + 1] = lease end
  end
  self.list, self.count = {}, 0
  give_back(self, leases)
end
jit.off(Leases.clear)

--- Keeps a lease of a key.
function Leases:keep(key, lease)
  if self.count >= MOST then self:clear() end
  self:forget(key)
  lease.kept, lease.views = true, 0
  self.list[key], self.count = lease, self.count + 1
  return lease
end

--- Returns the lease of a key that lasts for ns more at least, or nil.
function Leases:find(key, ns)
  local lease = self.list[key]
  if lease and lease.till > now() + ns then return lease end
  return nil
end

--- The key has another value, or none: its lease is let go.
function Leases:forget(key)
  local lease = self.list[key]
  if not lease then return end
  self.list[key], self.count = nil, self.count - 1
  lease.kept = false
  if not stays(lease) then give_back(self, { lease }) end
end

--- May what was leased be read?
function Leases:holds(lease)
  return self.session.handle and lease.till > now()
end

--- A view of a lease has closed.
function Leases:leave(lease)
  lease.views = lease.views - 1
  if not lease.kept and not stays(lease) then give_back(self, { lease }) end
end

return M
