-- SPDX-License-Identifier: Apache-2.0
--- What a server knows whose store others write to as well: other servers, and
-- agents. It has the functions of server/state, but no record of its own. A
-- round reads by begin() what its requests ask for, and commit() writes over
-- what was read, and over nothing newer. So all servers tell the same, and each
-- tells what there was when it was asked.
--
-- Records are kept by the store for as long as their leases say, and no longer
-- if all servers are away.
--
-- Only collections that somebody watches are followed, by a feed each; these
-- are in `scopes`, and change between rounds.
local cells = require "perigee.control.server.cells"
local changes = require "perigee.registry.changes"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local reading = require "perigee.control.server.reading"
local reports = require "perigee.control.server.reports"
local states = require "perigee.control.server.state"
local tasks = require "perigee.task"
local watch = require "perigee.control.server.watch"

local new_collection, take = reading.new_collection, reading.take

local M = {}

-- Kinds whose records are read by name alone.
local UNLISTED = { reports = true }

local IDLE = 30                         -- seconds until nobody's feed ends
local MOST = 512                        -- collections that are followed

local Shared = {}
Shared.__index = Shared

--- The state of a store (server/redis). Its field `told` is a function that is
-- called after watchers were told something. most: of followed collections.
function M.new(store, most)
  return setmetatable({ store = store, view = {}, scopes = {}, writes = {},
                        order = {}, timed = {}, feeding = {}, graphs = {},
                        revision = 0,
                        now = 0, seen = loop.now(), refused = false,
                        told = false, followed = 0, most = most or MOST },
                      Shared)
end

-- The store's time in seconds.
function Shared:time()
  return self.now + (loop.now() - self.seen) * 1e-9
end

-- ---- What is read ----------------------------------------------------------

--- The records of a kind in a scope that were read in this round.
function Shared:collection(scope, kind)
  local space = cells.space(scope, kind)
  local found = self.view[space] or new_collection(scope, kind)
  self.view[space] = found
  return found
end

Shared.known = Shared.collection

--- Begins a round: reads what is wanted (server/wants). True; or nil, a kind
-- and why. Waits.
function Shared:begin(wanted)
  self.view, self.writes, self.order, self.refused = {}, {}, {}, false
  return reading.read(self, wanted)
end

-- ---- Writing ---------------------------------------------------------------

-- The write of a name in this round, which goes over what was read.
local function write_of(state, collection, name)
  local space = cells.space(collection.scope, collection.kind)
  local key = space .. "\n" .. name
  local write = state.writes[key]
  if not write then
    local before = collection.records[name]
    write = { space = space, name = name, cell = before and before.cell,
              renew = true, ttl = before and before.ttl or 0,
              unlisted = UNLISTED[collection.kind] }
    state.writes[key] = write
    state.order[#state.order + 1] = write
  end
  state.revision = state.revision + 1
  if collection.strange[name] then state.refused = name end
  return write
end

function Shared:put(collection, name, text, ttl, decoded, since)
  local write, before = write_of(self, collection, name),
                        collection.records[name]
  local began = since and self:time() - since
    or before and before.epoch == decoded.epoch and before.began or self:time()
  write.text, write.ttl, write.renew = cells.text(text, began, ttl), ttl, false
  return take(collection, name, { text = write.text })
end

--- The number of a taking: greater than those of all before, unless the store's
-- time has gone back since.
function Shared:term(before)
  local last = before and before.term or 0
  return math.max(last + 1, math.floor(self:time() * 1e6))
end

Shared.report, Shared.keep_report = reports.of, reports.keep
Shared.is_reported = reports.is_known

function Shared:remove(record)
  local write = write_of(self, record.collection, record.name)
  write.text, write.renew = nil, false
  states.put_in(record.collection, record.name, nil)
end

--- Begins a record's lease anew.
function Shared:renew(record)
  if record.ttl > 0 then write_of(self, record.collection, record.name) end
end

--- Has anything been written since the last commit, besides renewed?
function Shared:has_written()
  for _, write in ipairs(self.order) do
    if not write.renew then return true end
  end
  return false
end

--- Writes what the round has written: true; false if another was quicker with
-- a part of it; or nil, a kind and why. Waits.
function Shared:commit()
  local writes = {}
  for _, write in ipairs(self.order) do
    if write.cell or write.text then writes[#writes + 1] = write end
  end
  self.writes, self.order = {}, {}
  if self.refused then
    return nil, "name_taken", "what is no record of a server's is in the place "
      .. "of " .. self.refused
  end
  if not writes[1] then return true end
  return self.store:write(writes)
end

-- ---- Following -------------------------------------------------------------

-- Takes over what the feed of a collection knows of some names.
local function absorb(state, collection, names)
  local from = collection.changes:revision()
  for _, name in ipairs(names) do
    take(collection, name, collection.feed.known[name])
    collection.changes:note(name)
  end
  watch.told(state, collection, from)
  state.told()
end

local function all_names(collection)
  local names = {}
  for name in pairs(collection.feed.known) do names[#names + 1] = name end
  for name in pairs(collection.records) do
    if not collection.feed.known[name] then names[#names + 1] = name end
  end
  return names
end
jit.off(all_names)

local function catch_up(state, collection)
  local feed = collection.feed
  if not feed.looked then return end
  local names = collection.at and feed.changes:since(collection.at)
    or all_names(collection)
  collection.at = feed.changes:revision()
  if names[1] then absorb(state, collection, names) end
end

local function yes() return true end

-- Waits for something of a feed. True; or nil, a kind and why.
local function hear(feed, seconds)
  local future = feed.changes:next(yes)
  loop.wait(future, loop.deadline(seconds))
  if future.ended then return futures.results(future) end
  future:cancel()
  return nil, "timeout", "the store does not answer"
end

local function end_watchers(collection)
  for _, each in ipairs(collection.watchers) do each.stream:close() end
  collection.watchers = {}
end

-- Keeps a collection up to date as long as somebody watches it. Watchers whose
-- feed has ended for another reason come back, and get another.
local function keep(state, collection)
  local feed = collection.feed
  while not feed.over do
    hear(feed, IDLE)
    catch_up(state, collection)
    if collection.watchers[1] then collection.used = loop.now() end
    if loop.now() - collection.used > IDLE * 1e9 then break end
  end
  local of = state.scopes[collection.scope]
  of[collection.kind] = nil
  if not next(of) then state.scopes[collection.scope] = nil end
  state.followed = state.followed - 1
  end_watchers(collection)
  state.told()
  feed:close("closed", "nobody watched")
end

local function new_followed(state, scope, kind)
  local collection = new_collection(scope, kind)
  collection.changes = changes.new(kind .. " of scope " .. scope)
  collection.watchers, collection.used = {}, loop.now()
  collection.feed = state.store:follow(cells.space(scope, kind))
  state.scopes[scope] = state.scopes[scope] or {}
  state.scopes[scope][kind] = collection
  state.followed = state.followed + 1
  tasks.spawn(keep, state, collection)
  return collection
end

--- The collection for who watches, just after follow().
function Shared:watched(scope, kind)
  return self.scopes[scope][kind]
end

-- Strangers leave half of the places to who is known.
local function may_follow(state, trusted)
  return state.followed < (trusted and state.most or state.most / 2)
end

--- Follows a collection until nobody watches it, for somebody who is known, or
-- a stranger. True when it is known; or nil, a kind and why. Waits.
function Shared:follow(scope, kind, trusted)
  local answers, away, reason = reading.read(self, {})
  if not answers then return nil, away, reason end
  local of = self.scopes[scope]
  local collection = of and of[kind]
  if not collection and not may_follow(self, trusted) then
    return nil, "no_memory", "this server follows as many collections as it can"
  end
  collection = collection or new_followed(self, scope, kind)
  collection.used = loop.now()
  while not collection.feed.looked do
    local fine, failed, why = hear(collection.feed, self.store.patience)
    if not fine then return nil, failed, why end
  end
  catch_up(self, collection)
  return true
end

function Shared:close()
  for _, of in pairs(self.scopes) do
    for _, collection in pairs(of) do
      collection.feed:close("closed", "the server has ended")
    end
  end
end
jit.off(Shared.close)

return M
