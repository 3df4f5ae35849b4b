-- SPDX-License-Identifier: Apache-2.0
--- The lease under which an agent has its name in etcd, and the proof that it
-- still has it.
--
-- The servers give a name away when they have heard nothing of its lease for
-- the lease's TTL. The holder counts from the moment at which it sent the last
-- request that they have confirmed, so its time is over first, and by a tenth
-- of the TTL, in which it can say so. It counts in CLOCK_BOOTTIME, which goes
-- on while the host sleeps.
--
--   state   event                                           becomes
--   held    the lease is prolonged, the key is as it was    held
--   held    the lease is gone, or another server leads      renewed by a new
--                                                           lease: held
--   held    no confirmation, and the time is over           lost
--   lost    the name is free, or still under an old lease   held
--   any     another has the name                            taken, for good
--
-- A new leader gets a new lease: a server that led before, and was stopped,
-- ends the leases that it knows when it goes on, although they were prolonged
-- elsewhere (etcd before 3.4.25 and 3.5.8), and one that does not know that it
-- has been replaced confirms what is not so. A new lease is agreed on by a
-- majority.
local ffi = require "ffi"
local keys = require "perigee.registry.etcd.keys"
local log = require "perigee.log"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local M = {}

local ATTEMPTS = 100                    -- of a write that others disturb
local KEPT = 0.9                        -- of a TTL, for which a name is ours
local CLOCK_BOOTTIME = 7

local time = ffi.new "int64_t[2]"

local Lease = {}
Lease.__index = Lease

--- Seconds of a clock that goes on while the host sleeps.
function M.clock()
  ffi.C.perigee_clock(CLOCK_BOOTTIME, time)
  return tonumber(time[0]) + tonumber(time[1]) * 1e-9
end

--- The lease, yet to be taken, of entry's name in the registry etcd.
function M.new(etcd, entry)
  return setmetatable({
    etcd = etcd, scope = entry.scope, name = entry.name, epoch = entry.epoch,
    entry = entry, dirty = true, id = false, term = false, ttl = etcd.ttl,
    deadline = 0, revision = "0", lost = false, released = false,
  }, Lease)
end

--- The seconds for which the name is certainly ours; at most 0: it may be
-- another's.
function Lease:left()
  return self.id and self.deadline - M.clock() or 0
end

-- ---- Leases of etcd's ------------------------------------------------------

-- Asks until the loop's time limit, nil: for as long as the registry waits.
local function ask(lease, path, question, limit)
  local seconds = lease.etcd.patience
  return lease.etcd.cluster:ask(path, question,
    limit and math.min(seconds, loop.left(limit)) or seconds)
end

-- Has etcd forget a lease's id, and what is under it. Its end is not waited
-- for, as the lease ends by itself.
local function forget(lease, id)
  tasks.spawn(ask, lease, "lease/revoke", { ID = id })
end

-- A new lease of etcd's: { id, ttl, deadline, term }; or nil, a kind and why.
local function grant(lease, limit)
  local sent = M.clock()
  local told, kind, why = ask(lease, "lease/grant", {
    TTL = ("%d"):format(math.ceil(lease.etcd.ttl)) }, limit)
  if not told then return nil, kind, why end
  local ttl, id = tonumber(told.TTL), told.ID
  if not ttl or type(id) ~= "string" or type(told.header) ~= "table" then
    return nil, "protocol", "what it grants is no lease"
  end
  return { id = id, ttl = ttl, deadline = sent + KEPT * ttl,
           term = told.header.raft_term }
end

-- Prolongs the lease. True; false: it needs a new one; or nil, a kind and why.
local function prolong(lease, limit)
  local sent = M.clock()
  local told, kind, why = ask(lease, "lease/keepalive", { ID = lease.id },
                              limit)
  if not told then return nil, kind, why end
  local result = type(told.result) == "table" and told.result or {}
  local header = type(result.header) == "table" and result.header or {}
  local ttl = tonumber(result.TTL) or 0
  if ttl <= 0 or header.raft_term ~= lease.term then return false end
  return true, { id = lease.id, ttl = ttl, deadline = sent + KEPT * ttl,
                 term = lease.term }
end

-- ---- The key ---------------------------------------------------------------

local function compare(key, revision)
  if revision == "0" then
    return { { key = key, target = "CREATE", result = "EQUAL",
               create_revision = "0" } }
  end
  return { { key = key, target = "MOD", result = "EQUAL",
             mod_revision = revision } }
end

-- Writes a value (nil: writes nothing) under a lease's id if the key has the
-- revision that is known. True and the revision; false and what is there, or
-- nil; or nil, a kind and why.
local function write_if(lease, value, id, limit)
  local key = keys.name(lease.scope, lease.name)
  local told, kind, why = ask(lease, "kv/txn", {
    compare = compare(key, lease.revision),
    success = value and { { request_put = { key = key, value = value,
                                            lease = id } } } or nil,
    failure = { { request_range = { key = key } } } }, limit)
  if not told then return nil, kind, why end
  if told.succeeded then
    return true, value and told.header.revision or lease.revision
  end
  local first = type(told.responses) == "table" and told.responses[1]
  local range = type(first) == "table" and first.response_range
  return false, type(range) == "table" and (range.kvs or {})[1] or nil
end

function M.who(entry)
  if not entry then return "what is no entry of Perigee's is in its place" end
  return ("process %s on %s holds it"):format(tostring(entry.pid or "?"),
                                              tostring(entry.host or "?"))
end

-- Has the key say, under the lease's id, that the name is ours, if nobody has
-- it, or only we (what was written before we knew), or who has the epoch over.
-- is_new: the lease is not the one under which the key is. True; or nil, a
-- kind, why and the holder's entry.
local function claim(lease, id, is_new, over, limit)
  local write, etcd = is_new or lease.dirty, lease.etcd
  for _ = 1, ATTEMPTS do
    local value, wrong
    if lease.released then return nil, "closed", "it was given up" end
    if write then
      value, wrong = keys.value(lease.entry, etcd.cluster:now())
      if not value then return nil, "protocol", wrong end
      lease.dirty = false
    end
    local done, found, why = write_if(lease, value, id, limit)
    if not done then lease.dirty = lease.dirty or write end
    if done == nil then return nil, found, why end
    if done then
      lease.revision = found
      return true
    end
    local other = found and etcd:entry(found, lease.scope, lease.name)
    if found and not (other and (other.epoch == lease.epoch
                                 or other.epoch == over)) then
      return nil, "name_taken", M.who(other), other
    end
    lease.revision, write = found and found.mod_revision or "0", true
  end
  return nil, "timeout", "others change the name " .. lease.name
    .. " all the time"
end

-- ---- Taking and keeping ----------------------------------------------------

-- Notes what etcd has confirmed of the lease. Nil, a kind and why if that took
-- so long that it is over.
local function confirmed(lease, given)
  lease.id, lease.ttl, lease.term = given.id, given.ttl, given.term
  lease.deadline = given.deadline
  if lease:left() > 0 then return true end
  return nil, "timeout", "the answers came after the lease's time"
end

--- Takes the name under a new lease, until the loop's time limit. over: as of
-- Registry:hold. True; or nil, a kind, why and the holder's entry.
--
-- A new lease whose fate is not known is left to its TTL while the name is
-- ours: the key may be under it already, and would go with it.
function Lease:take(over, limit)
  local given, kind, why = grant(self, limit)
  if not given then return nil, kind, why end
  local before = self.id
  local fine, failed, reason, other = claim(self, given.id, true, over, limit)
  if self.released or not fine and (failed == "name_taken" or not before) then
    forget(self, given.id)
  end
  if not fine then return nil, failed, reason, other end
  if before then forget(self, before) end
  fine, kind, why = confirmed(self, given)
  if not fine and not before then forget(self, given.id) end
  return fine, kind, why
end

-- Once. As take().
local function keep(lease, limit)
  if lease.lost then return lease:take(nil, limit) end
  local fine, given, why = prolong(lease, limit)
  if fine == nil then return nil, given, why end
  if not fine then return lease:take(nil, limit) end
  local kind
  fine, kind, why = claim(lease, lease.id, false, nil, limit)
  if not fine then return nil, kind, why end
  return confirmed(lease, given)
end

--- Shows the servers that the holder lives, and what entry tells of it, if
-- given; while the name is ours. As take().
function Lease:keep(entry)
  if entry then self.entry, self.dirty = entry, true end
  local left = self.lost and math.huge or self:left()
  if left <= 0 then return nil, "timeout", "its time is over" end
  local fine, kind, why = keep(self, loop.deadline(left))
  if fine then self.lost = false end
  return fine, kind, why
end

--- Says that the name is lost: it may be another's from soon on.
function Lease:lose(why)
  self.lost = true
  log.write("error", ("the name %s in scope %s is lost, as its lease of %g s "
    .. "was not confirmed in time (%s); it is taken again if it is free")
    :format(self.name, self.scope, self.ttl, why))
end

--- Gives the name up.
function Lease:release()
  self.released = true
  if not self.id then return true end
  local told, kind, why = ask(self, "lease/revoke", { ID = self.id })
  return told and true, kind, why
end

return M
