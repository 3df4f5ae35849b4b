-- SPDX-License-Identifier: Apache-2.0
-- All peers at the same work, in turns: short bursts, in reversed order in each
-- second round. The distance between the two cores is taken before and after
-- each burst; a burst that does not count by it is repeated.

local distance = require "bench.lib.compare.distance"
local pairs_of = require "bench.lib.compare.pair"
local shapes = require "bench.lib.ranks.shape"

local M = {}

local WARM = 1 / 8        -- of a burst's time, before it
local VERIFIED = 3        -- calls whose every byte is compared, first and last
local LARGE = 2 ^ 24      -- bytes, above which it is one, for it takes so long
local SHARE = 0.4         -- of the machine's memory that all pairs may have

-- ---- One peer --------------------------------------------------------------

local function under_of(work)
  return work.mode == "paced" and 1 or work.under
end

-- Ends a peer's part of the row: it failed.
local function fail(entry, why)
  if entry.pair then entry.pair:close(true) end
  entry.pair, entry.why = nil, why
end

-- Bursts of pieces compare every byte themselves.
local function verify(entry, work)
  if entry.peer.floor or work.plan then return true end
  local calls = work.size > LARGE and 1 or VERIFIED
  local _, why = entry.pair:burst("verify", work.size, under_of(work),
                                  math.max(calls, under_of(work)))
  return why == nil, why
end

-- Starts the pair, or takes the one that lasts, and checks every byte.
local function open(entry, work, given)
  local peer = entry.peer
  local why
  entry.pair = peer.pair
  if not entry.pair then
    local size = peer.lasting and given.largest or work.size
    local under = peer.lasting and math.max(given.under, 1) or under_of(work)
    entry.pair, why = pairs_of.start(peer, given.pin, work.mode, size, under)
    if not entry.pair then return fail(entry, why) end
  end
  if work.plan then shapes.write(work.plan, entry.pair.folder) end
  peer.pair = peer.lasting and entry.pair
  entry.pair:go_on()
  local fine, reason = verify(entry, work)
  if not fine then
    peer.pair = nil
    return fail(entry, reason)
  end
  entry.pair:rest()
end

-- A short burst before one that counts. Of pieces the least time counts, and
-- each burst makes and compares all bytes, so there is none; nor is there one
-- of a floor, of which each burst is a process.
local function warm(pair, work, seconds)
  if work.plan or pair.peer.floor then return true end
  return pair:burst(work.mode, work.size, work.under, seconds * WARM)
end

-- A burst with all that is told of it; nil and why not.
local function burst(entry, work, given, seconds)
  local pair, peer = entry.pair, entry.peer
  local before = distance.before(given, work.plan)
  pair:go_on()
  local told, why = warm(pair, work, seconds)
  if told then
    told, why = pair:measure(work.mode, work.size, work.under, seconds)
  end
  if not told then
    peer.pair = nil
    return nil, why
  end
  entry.memory = pair:memory()
  pair:rest()
  told.before, told.after = before, distance.take(given)
  return told
end

-- A turn: a burst, again if it does not count by the cores' distance, which is
-- nothing beside the time of pieces.
local function turn(entry, work, given)
  local seconds = work.seconds / given.rounds
  for _ = 1, given.attempts do
    local told, why = burst(entry, work, given, seconds)
    if not told then return fail(entry, why) end
    entry.bursts[#entry.bursts + 1] = told
    if work.plan or distance.fits(told, distance.fitting(given)) then
      return
    end
    entry.repeated = entry.repeated + 1
  end
end

local function close(entry, work)
  local pair = entry.pair
  if not pair then return end
  pair:go_on()
  local fine, why = verify(entry, work)
  if not fine then
    entry.peer.pair = nil
    return fail(entry, why)
  end
  if entry.peer.lasting then pair:rest() else pair:close() end
  entry.pair = nil
end

-- ---- All of them -----------------------------------------------------------

local function missing(peer, work)
  local text = require "perigee.bench.table"
  if not peer.version then return peer.why end
  if work.size < (peer.smallest or 1) then
    return "not below " .. text.size(peer.smallest)
  end
  if work.size > (peer.largest or 2 ^ 40) then
    return "not above " .. text.size(peer.largest)
  end
end

-- Whether the buffers of all pairs together would take too much memory, so that
-- each pair has to be started again for each turn.
local function crowded(entries, work)
  local file = io.open "/proc/meminfo"
  local text = file and file:read "*a" or ""
  if file then file:close() end
  local free = (tonumber(text:match "MemAvailable:%s*(%d+)") or 0) * 1024
  return #entries * 8 * work.size * under_of(work) > free * SHARE
end

local function each_once(entries, work, given, backwards, alone)
  for i = 1, #entries do
    local entry = entries[backwards and #entries + 1 - i or i]
    given.progress(entry.peer.name, work)
    if not entry.why and alone then open(entry, work, given) end
    if not entry.why then turn(entry, work, given) end
    if not entry.why and alone then close(entry, work) end
  end
end

-- Measures a row of each peer. work: mode, size, under (calls at once, or each
-- second), seconds of each peer in all. given: pin, rounds, attempts, one_core,
-- line, largest, under, progress(name, work). Returns an entry for each peer:
-- peer, bursts (before, after, histogram, calls, ...), repeated, memory, or
-- why.
function M.row(peers, work, given)
  local entries = {}
  for i, peer in ipairs(peers) do
    entries[i] = { peer = peer, bursts = {}, repeated = 0,
                   why = missing(peer, work) }
  end
  local alone = crowded(entries, work)
  for _, entry in ipairs(entries) do
    given.progress(entry.peer.name, work)
    if not entry.why and not alone then open(entry, work, given) end
  end
  for round = 1, given.rounds do
    each_once(entries, work, given, round % 2 == 0, alone)
  end
  for _, entry in ipairs(entries) do close(entry, work) end
  return entries
end

-- Ends the pairs that last.
function M.stop(peers)
  for _, peer in ipairs(peers) do
    if peer.pair then peer.pair:close() end
    peer.pair = nil
  end
end

return M
