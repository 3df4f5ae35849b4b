-- SPDX-License-Identifier: Apache-2.0
--- The state of a server to whose store others write as well: other servers,
-- and agents. It has no record of its own: each round of requests has a view of
-- what the store has then (control/view). So all servers tell the same, and
-- each tells what there was when it was asked.
--
-- Records are kept by the store for as long as their leases say, and no longer
-- if all servers are away.
--
-- Only collections that somebody watches are followed, by a feed each; these
-- are in `scopes`, and change between rounds.
local cells = require "perigee.control.cells"
local changes = require "perigee.registry.changes"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local states = require "perigee.control.state"
local tasks = require "perigee.runtime.task"
local views = require "perigee.control.view"
local watch = require "perigee.control.watch"

local M = {}

local IDLE = 30                         -- seconds until nobody's feed ends
local MOST = 512                        -- collections that are followed

local Shared = {}
Shared.__index = Shared

--- The state of a store (control/redis). Its field `told` is a function that is
-- called after watchers were told something. most: of followed collections.
function M.new(store, most)
  return setmetatable({ store = store, scopes = {}, timed = {}, feeding = {},
                        graphs = {}, now = 0, seen = loop.now(), told = false,
                        followed = 0, gone = 0, most = most or MOST }, Shared)
end

--- The view of the store that the requests of a round have.
function Shared:view()
  local view = views.new(self.store, self.graphs, self.longest)
  view.stats = self.stats
  return view
end

-- The store's time in seconds.
function Shared:time()
  return self.now + (loop.now() - self.seen) * 1e-9
end

-- ---- Following -------------------------------------------------------------

-- Takes over what the feed of a collection knows of some names.
local function absorb(state, collection, names)
  local from = collection.changes:revision()
  for _, name in ipairs(names) do
    local cell = collection.feed.known[name]
    states.put_in(collection, name,
                  cell and cells.record(collection, name, cell))
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
  if names[1] then absorb(state, collection, names) end
  collection.at = feed.changes:revision()
end

local function yes() return true end

-- Waits for something of a collection's feed. True; or nil, a kind and why:
-- then the collection is `deaf`, until something is heard.
local function hear(collection, seconds)
  local future = collection.feed.changes:next(yes)
  loop.wait(future, loop.deadline(seconds))
  local fine, kind, why = nil, "timeout", "the store does not answer"
  if future.ended then
    fine, kind, why = futures.results(future)
  else
    future:cancel()
  end
  collection.deaf = not fine
  return fine, kind, why
end

local function end_watchers(collection)
  for _, each in ipairs(collection.watchers) do each.stream:close() end
  collection.watchers = {}
end

-- Keeps a collection up to date as long as somebody watches it.
local function keep_up(state, collection)
  local feed = collection.feed
  while not feed.over do
    hear(collection, IDLE)
    catch_up(state, collection)
    if collection.watchers[1] then collection.used = loop.now() end
    if loop.now() - collection.used > IDLE * 1e9 then break end
  end
end

-- Does so, and ends the collection then, even if that has failed. Watchers
-- whose feed has ended for another reason come back, and get another.
local function keep(state, collection)
  local feed = collection.feed
  local fine, why = xpcall(keep_up, debug.traceback, state, collection)
  if not fine then log.write("error", "a feed failed: " .. tostring(why)) end
  local of = state.scopes[collection.scope]
  of[collection.kind] = nil
  if not next(of) then state.scopes[collection.scope] = nil end
  state.followed = state.followed - 1
  end_watchers(collection)
  state.told()
  feed:close("closed", "nobody watched")
end

local function new_followed(state, scope, kind)
  local collection = {
    scope = scope, kind = kind, records = {}, names = {}, watchers = {},
    deaf = false,
    changes = changes.new(kind .. " of scope " .. scope), used = loop.now(),
    feed = state.store:follow(cells.space(scope, kind)) }
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
-- a stranger. True when it is known, and its changes are heard; or nil, a kind
-- and why. Waits.
function Shared:follow(scope, kind, trusted)
  local now, away, reason = self.store:read({}, {})
  if not now then return nil, away, reason end
  self.now, self.seen = now, loop.now()
  local of = self.scopes[scope]
  local collection = of and of[kind]
  if not collection and not may_follow(self, trusted) then
    return nil, "no_memory", "this server follows as many collections as it can"
  end
  collection = collection or new_followed(self, scope, kind)
  collection.used = loop.now()
  while not collection.feed.looked or collection.deaf do
    local fine, failed, why = hear(collection, self.store.patience)
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
