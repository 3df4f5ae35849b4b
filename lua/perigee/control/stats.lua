-- SPDX-License-Identifier: Apache-2.0
--- What agents report that they count (perigee.stats.summary), in memory, for
-- /metrics and the page. The answers to what an agent sends about its name say
-- when a report is wanted:
--
--   Perigee-Stats: wanted
--
-- The last one counts until the name is released, has another epoch, or was
-- not renewed in time here. So each of several servers over one store tells of
-- the agents that ask it.
--
-- A peer is whose token it is. Each has so many reports in a second, and leaves
-- some of the places to others.
local native = require "perigee.native"

local M = {}

local EVERY, SOON = 3, 1                -- seconds between an agent's reports,
                                        -- wanted and at least
local PLACES, SHARE = 2048, 1536        -- agents, and those of one peer; each
                                        -- has 20 KiB at most
local RATE = 100                        -- reports of a peer in a second

local Stats = {}
Stats.__index = Stats

--- has_many: a function of a token, false if a report would cost who has it a
-- request that is missed; clock: one that tells nanoseconds.
function M.new(has_many, clock)
  return setmetatable({ by = {}, n = 0, peers = {}, has_many = has_many,
                        clock = clock or native.clock }, Stats)
end

local function now(stats) return stats.clock() / 1e9 end
local function key_of(scope, name) return scope .. "/" .. name end

-- ---- Places -----------------------------------------------------------------

local function peer_of(stats, token)
  return stats.peers[token]
    or { n = 0, left = RATE, at = now(stats) }
end

-- Has the peer a report left in this second?
local function refill(stats, peer)
  local at = now(stats)
  peer.left = math.min(RATE, peer.left + (at - peer.at) * RATE)
  peer.at = at
  return peer.left >= 1
end

local function remove(stats, key)
  local report = stats.by[key]
  if not report then return end
  stats.by[key], stats.n = nil, stats.n - 1
  report.peer.n = report.peer.n - 1
end

-- The report of a record's agent, in the life that it has now; nil: none.
local function report_of(stats, key, record)
  local report = stats.by[key]
  if report and report.told.epoch == record.epoch then return report end
  remove(stats, key)
end

-- Is a report of a peer taken that comes `seconds` after the one before?
local function has_room(stats, report, peer, seconds)
  if not refill(stats, peer) then return false end
  if report then return now(stats) - report.at >= seconds end
  return stats.n < PLACES and peer.n < SHARE
end

-- ---- Names ------------------------------------------------------------------

--- A record of an agent was written or renewed by who has a token: its report
-- counts for another lease. Is one wanted?
function Stats:renewed(record, token)
  local report = report_of(self, key_of(record.collection.scope, record.name),
                           record)
  if report then report.over = now(self) + record.ttl end
  return self.has_many(token)
    and has_room(self, report, peer_of(self, token), EVERY)
end

--- A name was released.
function Stats:gone(record)
  remove(self, key_of(record.collection.scope, record.name))
end

-- ---- Reports ----------------------------------------------------------------

--- May the agent of a record report now? If so that counts as one, whether it
-- turns out to be sound or not.
function Stats:may(record, token)
  local key, peer = key_of(record.collection.scope, record.name),
                    peer_of(self, token)
  if not has_room(self, report_of(self, key, record), peer, SOON) then
    return false
  end
  self.peers[token], peer.left = peer, peer.left - 1
  return true
end

--- Keeps what the agent of a record reports, as perigee.stats.summary reads it.
-- May must have said so.
function Stats:keep(record, token, told)
  local scope, name = record.collection.scope, record.name
  local key = key_of(scope, name)
  local before = report_of(self, key, record)
  local peer = before and before.peer or peer_of(self, token)
  told.scope, told.name, told.epoch, told.path = scope, name, record.epoch, key
  told.reported, told.peer = self.clock(), peer
  if not before then self.n, peer.n = self.n + 1, peer.n + 1 end
  self.by[key] = { told = told, peer = peer, at = now(self),
                   over = before and before.over or now(self) + record.ttl }
end

local function is_before(a, b) return a.path < b.path end

-- Forgets peers that count for nothing.
local function forget_peers(stats)
  for token, peer in pairs(stats.peers) do
    if peer.n == 0 and now(stats) - peer.at > 1 then
      stats.peers[token] = nil
    end
  end
end
jit.off(forget_peers)

--- What the agents that are there have reported last, as perigee.stats.partial
-- reads files, sorted. Forgets what is over.
function Stats:list()
  local list = {}
  for key, report in pairs(self.by) do
    if report.over <= now(self) then
      remove(self, key)
    else
      list[#list + 1] = report.told
    end
  end
  forget_peers(self)
  table.sort(list, is_before)
  return list
end
jit.off(Stats.list)

return M
