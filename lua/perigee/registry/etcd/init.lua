-- SPDX-License-Identifier: Apache-2.0
--- The registry in etcd: an entry is a key under its holder's lease (etcd/keys,
-- etcd/lease). Names are taken by transactions that compare the key's revision:
-- the key was never made, or its revision is the one that was read. All reads
-- are linearizable. There is one client for each Lua state and address, with a
-- stream of changes for each scope that is watched (etcd/feed).
local addresses = require "perigee.registry.etcd.address"
local clusters = require "perigee.registry.etcd.cluster"
local entries = require "perigee.registry.entry"
local feed = require "perigee.registry.etcd.feed"
local feeds = require "perigee.registry.feed"
local keys = require "perigee.registry.etcd.keys"
local leases = require "perigee.registry.etcd.lease"
local pages_of = require "perigee.registry.pages"
local parts = require "perigee.registry.address"
local tasks = require "perigee.runtime.task"

local M = {}

local TTL, TIMEOUT = 10, 5              -- seconds
local PAGE = 500                        -- keys that are read at once

local Etcd = {}
Etcd.__index = Etcd

--- The registry at an address; or nil and what the address should be.
function M.open(address)
  local target, why = addresses.read(address)
  if not target then return nil, why end
  if target.password and address:find "^etcd:" then
    parts.warn("the password for " .. target.text, target.hosts, "etcds://")
  end
  local patience = target.timeout or TIMEOUT
  local cluster, _, missing = clusters.new(target, patience)
  if not cluster then return nil, "one for which " .. missing end
  return setmetatable({ target = target, cluster = cluster,
                        ttl = target.ttl or TTL, patience = patience,
                        feeds = feeds.set() }, Etcd)
end

--- The entry of name in what etcd tells of its key; nil if it is none.
function Etcd:entry(found, scope, name)
  return type(found) == "table"
    and keys.entry(found, scope, name, self.cluster:now()) or nil
end

-- ---- Holding ---------------------------------------------------------------

local function hold(etcd, entry, over)
  local lease = leases.new(etcd, entry)
  local fine, kind, why, other = lease:take(over)
  if fine then return lease end
  return nil, kind, why, other
end

--- Takes a name, or that of a holder with the epoch over.
function Etcd:hold(entry, over)
  return tasks.spawn(hold, self, entry, over)
end

--- Prolongs a name's lease, and updates its entry if one is given.
function Etcd:renew(lease, entry)
  return tasks.spawn(lease.keep, lease, entry)
end

function Etcd:release(lease)
  return tasks.spawn(lease.release, lease)
end

-- ---- Asking ----------------------------------------------------------------

local function range(etcd, question)
  local told, kind, why, code = etcd.cluster:ask("kv/range", question)
  if not told then return nil, kind, why, code end
  if type(told.header) ~= "table"
    or told.kvs and type(told.kvs) ~= "table" then
    return nil, "protocol", "what it has is no list of keys"
  end
  return told.kvs or {}, told
end

local function lookup(etcd, scope, name)
  local found, kind, why = range(etcd, { key = keys.name(scope, name) })
  if not found then return nil, kind, why end
  return etcd:entry(found[1], scope, name)
end

function Etcd:lookup(scope, name)
  return tasks.spawn(lookup, self, scope, name)
end

local function length_of(text) return type(text) == "string" and #text or 0 end

-- Calls f(name, kv) for each name of a page, until f returns true; returns
-- whether it has.
local function take_page(pages, scope, page, f)
  for _, kv in ipairs(page) do
    local name = type(kv) == "table" and keys.name_of(kv.key, scope)
    pages:name(name and length_of(kv.value) or 0)
    if name and f(name, kv) then return true end
  end
end

-- Calls f(name, kv) for each name in a range of keys, as they were at one
-- revision, in the order of names, until f returns true. Pages whose answer is
-- too large are made smaller; each has to be behind the one before it. Returns
-- the first answer; or nil, a kind, why.
local function each(pages, etcd, scope, from, to, limit, f)
  local first
  while true do
    local found, told, why, code = range(etcd, {
      key = from, range_end = to, limit = ("%d"):format(limit),
      revision = first and first.header.revision or nil })
    if not found and told == "too_large" and limit > 1 then
      limit = math.ceil(limit / 8)
    elseif not found then
      return nil, told, why, code
    else
      first = first or told
      if take_page(pages, scope, found, f) or not told.more then
        return first
      end
      local fine, kind, failed = pages:turn()
      if not fine then return nil, kind, failed end
      local last = found[#found]
      from = type(last) == "table" and keys.after(last.key, from)
      if not from then
        return nil, "protocol", "what it has are no keys in order"
      end
    end
  end
end

local function list(pages, etcd, scope, filter)
  local from, to = keys.range(scope, filter.prefix, filter.after)
  local chosen, choose = entries.choice(filter)
  local plain = not filter.kind and not filter.service
  local limit = plain and filter.limit or PAGE
  local fine, kind, why = each(pages, etcd, scope, from, to,
    math.max(1, math.min(limit, PAGE)),
    function(name, kv) return choose(etcd:entry(kv, scope, name)) end)
  if not fine then return nil, kind, why end
  return chosen
end

function Etcd:list(scope, filter)
  return pages_of.spawn(list, self, scope, filter)
end

--- As each(), for the names that a filter { prefix, after } lets through.
-- Waits.
function Etcd:each(scope, filter, f)
  local from, to = keys.range(scope, filter.prefix, filter.after)
  return each(pages_of.new(), self, scope, from, to, PAGE, f)
end

--- Reads a scope: { entries by name, revision, term, cluster }. Waits. Used by
-- feeds. decode(found, scope, name) makes what is known of a key.
function Etcd:all(scope, decode)
  local from, to = keys.range(scope)
  local found = {}
  local first, kind, why = each(pages_of.new(), self, scope, from, to, PAGE,
    function(name, kv) found[name] = decode(kv, scope, name) end)
  if not first then return nil, kind, why end
  local header = first.header
  return { entries = found, revision = tonumber(header.revision) or 0,
           term = tonumber(header.raft_term) or 0,
           cluster = header.cluster_id }
end

--- Watches a scope.
function Etcd:watch(scope, filter)
  return feeds.of(self.feeds, scope, feed.new, self, scope):watch(filter)
end

return M
