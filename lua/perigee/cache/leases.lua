-- SPDX-License-Identifier: Apache-2.0
--- The leases that a client has of a cache in one session: where entries lie
-- (`slab`, `offset`, `length`, `version`), and until when they may be read
-- there (`till`, ns of this host's clock). A lease is used with what it is
-- `among`: the client may have another session by then.
--
--   a lease is   event                                     becomes
--   new          it was read, its key was leased before,   kept
--                and the client takes what is stale
--   new          its key is viewed                         kept, for views
--   new          it was read                               let go
--   kept         its key is asked for, or viewed           kept
--   kept         its key has another value, there are      let go
--                too many leases, the client closes, or
--                nobody has asked for its key for a while
--   let go       it has no view, or its last one closes    given back
--   any          its time is over                          over
--
-- So who reads much that is new holds none of the cache's space by that. Leases
-- are given back some at a time, or after a while (TURN), by requests that
-- nobody waits for; one that is over at the cache, too, is not (`over`).
local loop = require "perigee.runtime.loop"
local maps = require "perigee.cache.mapped"
local signals = require "perigee.runtime.signal"
local timers = require "perigee.runtime.timers"
local wire = require "perigee.cache.wire"

local now = loop.now
local max, huge = math.max, math.huge

local M = {}

local Leases = {}
Leases.__index = Leases

-- MOST: leases that are kept, and keys of which the last answer is known.
-- BACK: bytes, and number, of leases that wait to be given back. TURN: ns until
-- these are given back, and for which nobody asks for the key of one that is
-- kept.
local MOST, BACK, BACK_COUNT, TURN = 4096, 2 ^ 22, 64, 2.5e8

--- tell(request) makes a request that nobody waits for. stale: ns by which what
-- is read may be old.
function M.new(session, tell, stale)
  return setmetatable({ session = session, tell = tell, stale = stale,
                        slabs = maps.slabs(), list = {}, count = 0,
                        once = {}, onces = 0,
                        back = {}, bytes = 0, timer = false }, Leases)
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
  return lease.views > 0 or lease.over <= now()
end

--- Gives back what waits for that; returns whether there was any.
function Leases:flush()
  local leases = self.back
  self.back, self.bytes = {}, 0
  give_back(self, leases)
  return #leases > 0
end

-- Lets go what nobody has asked for since the turn before, and gives back what
-- was let go.
local function turn(self)
  for key, lease in pairs(self.list) do
    if not lease.asked and lease.views == 0 then self:forget(key) end
    lease.asked = false
  end
  self:flush()
  return next(self.list) ~= nil
end
jit.off(turn)

-- Has a turn come. A timer rather than a task: it outlives a stop of the loop.
local function turn_soon(self)
  self.timer = signals.new(1, function()
    local more = turn(self)
    self.timer = false
    if more then turn_soon(self) end
  end)
  self.timer.at = now() + TURN
  timers.add(self.timer)
end
jit.off(turn_soon)

--- Gives back what waits for that, if it is much; the rest has its turn soon.
-- Others of these functions leave that to their callers, who do it after a
-- loop: LuaJIT does not compile loops in which requests are made.
function Leases:tidy()
  if self.bytes >= BACK or #self.back >= BACK_COUNT then self:flush() end
  if not self.timer and (self.count > 0 or #self.back > 0) then
    turn_soon(self)
  end
end

-- Gives a lease back with others.
local function give_back_soon(self, lease)
  if stays(lease) then return end
  self.back[#self.back + 1] = lease
  self.bytes = self.bytes + lease.length
end

--- Lets all go; returns whether there were any.
function Leases:clear()
  local leases = self.back
  self.back, self.bytes = {}, 0
  for _, lease in pairs(self.list) do
    lease.kept = false
    if not stays(lease) then leases[#leases + 1] = lease end
  end
  self.list, self.count = {}, 0
  give_back(self, leases)
  return #leases > 0
end
jit.off(Leases.clear)

--- The cache has told of a version of a key (nil: that there is none, or one
-- that is not known), or has sealed it. A lease of an older one is let go, and
-- none is kept later: answers may come in another order than they were made in.
function Leases:answered(key, version)
  local lease, before = self.list[key], self.once[key]
  if lease and not (version and version <= lease.version) then
    self:forget(key)
  end
  if not before then
    if self.onces >= MOST then self.once, self.onces = {}, 0 end
    self.onces = self.onces + 1
  end
  self.once[key] = version and max(version, before or 0) or huge
end

--- Is this version the newest one that the cache has told of?
function Leases:is_newest(key, version) return self.once[key] == version end

--- Takes a lease of a key that was granted to a request of that time, for as
-- long as its `till` says (wire.lua).
function Leases:add(key, lease, sent)
  lease.again = self.once[key] ~= nil
  self:answered(key, lease.version)
  local till = sent + lease.till
  lease.sent, lease.till, lease.over, lease.among = sent, till, till, self
  return lease
end

--- Keeps a lease of a key. gets: to be read, too. One that a view keeps may
-- last for longer than what is stale will do, and may be of an older value.
function Leases:keep(key, lease, gets)
  if lease.kept then return end
  if self.count >= MOST then self:clear() end
  self:forget(key)
  lease.kept, lease.asked = gets and "gets" or "views", true
  self.list[key], self.count = lease, self.count + 1
end

--- A lease of a key was read. It is kept, if what is stale will do, it is not
-- the first one, and the cache has told nothing newer of the key: who has got
-- that gets nothing older.
function Leases:was_read(key, lease)
  if lease.kept then return end
  if self.stale > 0 and lease.again
    and lease.version >= (self.once[key] or huge) then
    lease.till = math.min(lease.till, lease.sent + self.stale)
    return self:keep(key, lease, true)
  end
  give_back_soon(self, lease)
end

--- Returns the lease of a key that is kept to be read, or nil. Whether it is
-- over is looked at when what was leased has been read, once.
function Leases:kept(key)
  local lease = self.stale > 0 and self.list[key]
  if not (lease and lease.kept == "gets" and lease.till > 0) then
    return nil
  end
  lease.asked = true
  return lease
end

--- May a lease of a key that is kept be viewed without asking: will what is
-- stale do, and has the cache told nothing newer?
function Leases:will_do(key, lease)
  return lease.version >= (self.once[key] or huge)
    and now() < lease.sent + self.stale
end

--- Returns the lease of a key that lasts for ns more at least, or nil.
function Leases:find(key, ns)
  local lease = self.list[key]
  if not (lease and lease.till > now() + ns) then return nil end
  lease.asked = true
  return lease
end

--- The key has another value, or none: its lease is let go.
function Leases:forget(key)
  local lease = self.list[key]
  if not lease then return end
  self.list[key], self.count = nil, self.count - 1
  lease.kept = false
  give_back_soon(self, lease)
end

--- May what was leased be read?
function Leases:holds(lease)
  return self.session.handle and lease.till > now()
end

--- A view of a lease has closed.
function Leases:leave(lease)
  lease.views = lease.views - 1
  if not lease.kept then give_back_soon(self, lease) end
  self:tidy()
end

return M
