-- SPDX-License-Identifier: Apache-2.0
--- The lease under which an agent has its name in etcd. The agent itself counts
-- for how long the name is certainly its own (agent/lease).
--
-- The agent gets a new lease from each new leader, because a majority agrees on
-- a new lease. The leases before may be wrong. A server that led, was stopped
-- and goes on ends the leases that it knows, although they were prolonged
-- elsewhere (etcd before 3.4.25 and 3.5.8). A server that does not know yet
-- that it has been replaced still confirms them.
local keys = require "perigee.registry.etcd.keys"
local tasks = require "perigee.runtime.task"

local M = {}

local ATTEMPTS = 100                    -- of a write that others disturb

local Lease = {}
Lease.__index = Lease

--- The lease, yet to be taken, of entry's name in the registry etcd.
function M.new(etcd, entry)
  return setmetatable({
    etcd = etcd, scope = entry.scope, name = entry.name, epoch = entry.epoch,
    entry = entry, dirty = true, id = false, raft = false, revision = "0",
    term = nil, released = false,
  }, Lease)
end

-- ---- Leases of etcd's ------------------------------------------------------

local function ask(lease, path, question)
  return lease.etcd.cluster:ask(path, question, lease.etcd.patience)
end

-- Has etcd forget a lease's id, and what is under it. Its end is not waited
-- for, as the lease ends by itself.
local function forget(lease, id)
  tasks.spawn(ask, lease, "lease/revoke", { ID = id })
end

-- A new lease of etcd's: { id, raft }, the latter the number of its leader; or
-- nil, a kind and why. etcd may grant more time than was asked for.
local function grant(lease)
  local ttl = math.ceil(lease.etcd.ttl)
  local told, kind, why = ask(lease, "lease/grant",
                              { TTL = ("%d"):format(ttl) })
  if not told then return nil, kind, why end
  if (tonumber(told.TTL) or 0) < ttl or type(told.ID) ~= "string"
    or type(told.header) ~= "table" then
    return nil, "protocol", "what it grants is no lease"
  end
  return { id = told.ID, raft = told.header.raft_term }
end

-- Prolongs the lease. True; false: it needs a new one; or nil, a kind and why.
local function prolong(lease)
  local told, kind, why = ask(lease, "lease/keepalive", { ID = lease.id })
  if not told then return nil, kind, why end
  local result = type(told.result) == "table" and told.result or {}
  local header = type(result.header) == "table" and result.header or {}
  return (tonumber(result.TTL) or 0) > 0 and header.raft_term == lease.raft
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
-- revision that is known. True and the revision; false, what is there (or nil)
-- and etcd's revision; or nil, a kind and why.
local function write_if(lease, value, id)
  local key = keys.name(lease.scope, lease.name)
  local told, kind, why = ask(lease, "kv/txn", {
    compare = compare(key, lease.revision),
    success = value and { { request_put = { key = key, value = value,
                                            lease = id } } } or nil,
    failure = { { request_range = { key = key } } } })
  if not told then return nil, kind, why end
  local revision = type(told.header) == "table" and told.header.revision
  if told.succeeded then return true, value and revision or lease.revision end
  local first = type(told.responses) == "table" and told.responses[1]
  local range = type(first) == "table" and first.response_range
  return false, type(range) == "table" and (range.kvs or {})[1] or nil,
         tonumber(revision)
end

function M.who(entry)
  if not entry then return "what is no entry of Perigee's is in its place" end
  return ("process %s on %s holds it"):format(tostring(entry.pid or "?"),
                                              tostring(entry.host or "?"))
end

-- Writes the key under the lease's id, so that the name is ours. It does so
-- only if nobody has the name, if we have it (by a write whose answer was
-- lost), or if its holder has the epoch over. is_new: the key is under another
-- lease. True; or nil, a kind, why and the holder's entry.
--
-- The number of a taking is the revision that makes the key. An agent that
-- takes the name over writes a number into the entry: etcd's next revision,
-- while the key is as it was read, or one more than the number that is there.
local function claim(lease, id, is_new, over)
  local write, etcd = is_new or lease.dirty, lease.etcd
  for _ = 1, ATTEMPTS do
    local value, wrong
    if lease.released then return nil, "closed", "it was given up" end
    if write then
      lease.entry.term = lease.term
      value, wrong = keys.value(lease.entry, etcd.cluster:now())
      if not value then return nil, "protocol", wrong end
      lease.dirty = false
    end
    local done, found, why = write_if(lease, value, id)
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
    if over and other and other.epoch == over then
      lease.term = math.max(why or 0, other.term) + 1
    end
    if not found then lease.term = nil end
    lease.revision, write = found and found.mod_revision or "0", true
  end
  return nil, "timeout", "others change the name " .. lease.name
    .. " all the time"
end

-- ---- Taking and keeping ----------------------------------------------------

--- Takes the name under a new lease. over: as of Registry:hold. True; or nil, a
-- kind, why and the holder's entry.
--
-- A new lease is left to its TTL if nobody knows whether the key is under it,
-- because the key would go with the lease.
function Lease:take(over)
  local given, kind, why = grant(self)
  if not given then return nil, kind, why end
  local before = self.id
  local fine, failed, reason, other = claim(self, given.id, true, over)
  if self.released or not fine and (failed == "name_taken" or not before) then
    forget(self, given.id)
  end
  if not fine then return nil, failed, reason, other end
  if before then forget(self, before) end
  self.id, self.raft = given.id, given.raft
  return true
end

-- Kinds of failures that say nothing of the entry.
local NO_ANSWER = { peer_lost = true, timeout = true, closed = true,
                    name_taken = true, denied = true }

local function keep(lease)
  local fine, kind, why = prolong(lease)
  if fine == nil then return nil, kind, why end
  if not fine then return lease:take() end
  return claim(lease, lease.id, false)
end

--- Shows the servers that the holder lives, and gives them its new entry, if
-- there is one. The entry before stays if they refuse the new one. As take().
function Lease:keep(entry)
  if not entry then return keep(self) end
  local before = self.entry
  self.entry, self.dirty = entry, true
  local fine, kind, why = keep(self)
  if fine or NO_ANSWER[kind] then return fine, kind, why end
  self.entry, self.dirty = before, false
  local kept, failed, reason = keep(self)
  if kept then return true, kind, why end
  return nil, failed, reason
end

--- Gives the name up.
function Lease:release()
  self.released = true
  if not self.id then return true end
  local told, kind, why = ask(self, "lease/revoke", { ID = self.id })
  return told and true, kind, why
end

return M
