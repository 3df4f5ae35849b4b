-- SPDX-License-Identifier: Apache-2.0
--- The state of a server that has a file of its own: records, by scope,
-- collection and name, in memory, and in a storage (control/file.lua). Reads
-- are answered from memory.
--
-- Writes are in memory at once. `State:commit` keeps them, for many of them
-- together, and only after it may anybody be told of them. A commit that fails
-- leaves memory as it was before the writes.
--
-- A record has a lease if it has a ttl. Leases are in memory alone. Their time
-- stops while the server does: neither a restart nor a pause of the server ends
-- a lease whose holder could not renew it.
--
-- Records are those of control/known. The state frees a record after the commit
-- of the record that took its place. The report of an agent (control/graph) is
-- in no storage, and counts as long as the agent's name has the same epoch. A
-- record that takes the place of another takes its slot as well, so that a name
-- is in one slot, however often it is written.
local cells = require "perigee.control.cells"
local changes = require "perigee.registry.changes"
local check = require "perigee.runtime.check"
local known = require "perigee.control.known"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"

local json = require "cjson.safe".new()
json.decode_max_depth(32)

local M = {}

local SLOT = 0.25                       -- seconds of a slot of leases
local LONGEST = 1                       -- seconds that one pass may count
local LOOKS = 4000                      -- at leases in one pass
local SHRUNK, LEAST = 4, 1000           -- a collection with so many times less

local State = {}
State.__index = State

-- ---- Records by name -------------------------------------------------------

-- The first place of names, which are sorted, whose name is not before name.
local function place_of(names, name)
  local low, high = 1, #names + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if names[middle] < name then low = middle + 1 else high = middle end
  end
  return low
end
M.place_of = place_of

local function new_collection(scope, kind)
  return { scope = scope, kind = kind, records = {}, names = {}, watchers = {},
           reports = {}, most = 0,
           changes = changes.new(kind .. " of scope " .. scope) }
end

--- The records of a kind ("agents", "entities", ...) in a scope.
function State:collection(scope, kind)
  local of = self.scopes[scope]
  if not of then
    of = {}
    self.scopes[scope] = of
  end
  of[kind] = of[kind] or new_collection(scope, kind)
  return of[kind]
end

--- The same, for who watches them.
State.watched = State.collection

--- The collection if anything was ever in it.
function State:known(scope, kind)
  local of = self.scopes[scope]
  return of and of[kind]
end

--- The record of a name, or nil.
function State:find(scope, kind, name)
  local collection = self:known(scope, kind)
  return collection and collection.records[name]
end

local EMPTY = { names = {}, records = {} }

--- The records of a list of names, by name.
function State:find_all(scope, kind, _)
  return (self:known(scope, kind) or EMPTY).records
end

--- The list that a call asks for: { names, records, cut }. cut: the first name
-- that is not in it; nil: all are there.
function State:listed(call, kind)
  return self:known(call.scope, kind) or EMPTY
end

local function is_idle(collection)
  return not collection.names[1] and not collection.watchers[1]
end

--- Forgets collections that are empty and that nobody watches. A watcher that
-- comes back to such a collection gets all that there is. Not between a write
-- and its commit.
function State:tidy()
  for scope, of in pairs(self.scopes) do
    for kind, collection in pairs(of) do
      if is_idle(collection) then of[kind] = nil end
    end
    if not next(of) then self.scopes[scope] = nil end
  end
end
jit.off(State.tidy)

-- ---- Leases ----------------------------------------------------------------

local function slot_of(time) return math.floor(time / SLOT) + 1 end

-- A slot has names, each with its collection behind it.
local function wait_for(state, collection, name, record)
  local slot = math.max(slot_of(record.deadline), state.slot + 1)
  local list = state.due[slot] or {}
  state.due[slot], record.slot = list, slot
  list[#list + 1] = name
  list[#list + 1] = collection
end

--- The server's time in seconds, which stands still while the server does.
function State:time()
  local passed = loop.now() * 1e-9 - self.seen
  return self.now + math.min(math.max(passed, 0), LONGEST)
end

local function pass_time(state)
  state.now, state.seen = state:time(), loop.now() * 1e-9
end

--- Begins a record's lease anew. since: seconds since its agent began, if it
-- says so.
function State:renew(record, since)
  if record.ttl > 0 then record.deadline = self:time() + record.ttl end
  if since then record.began = self:time() - since end
end

-- Gives a record its lease, in the slot of what it replaces, unless that would
-- be looked at too late.
local function give_lease(state, collection, name, record, before)
  if record.ttl == 0 then return end
  record.deadline = state:time() + record.ttl
  if before and before.slot > 0
    and before.slot <= slot_of(record.deadline) then
    record.slot = before.slot
  else
    wait_for(state, collection, name, record)
  end
end

-- ---- Writing ---------------------------------------------------------------

--- Sets or removes a name of a collection { records, names }.
local function put_in(collection, name, record)
  local before = collection.records[name]
  collection.records[name] = record
  if (before == nil) == (record == nil) then return end
  local at = place_of(collection.names, name)
  if record then
    table.insert(collection.names, at, name)
  else
    table.remove(collection.names, at)
  end
end

M.put_in = put_in

local function note(state, collection, name)
  state.revision = state.revision + 1
  state.undo[#state.undo + 1] = { collection, name, collection.records[name] }
end

--- Sets a name's record. text: JSON of an object, without its last brace;
-- value: the same as a table; since: as of renew(). Returns the record.
function State:put(scope, kind, name, text, ttl, value, since)
  local collection = self:collection(scope, kind)
  local record = known.new(collection, name, text, value)
  local before = collection.records[name]
  note(self, collection, name)
  record.revision, record.ttl = self.revision, ttl
  record.began = since and self:time() - since
    or before and before.epoch == value.epoch and before.began or self:time()
  put_in(collection, name, record)
  self.storage:set(scope, kind, name, record.revision,
                   math.floor(ttl * 1000), text)
  give_lease(self, collection, name, record, before)
  return record
end

--- The number of a taking that is about to be written; before: the record that
-- it replaces. It is the record's revision, which is never used again.
function State:term() return self.revision + 1 end

--- The report of an agent (control/topology); nil: it has reported nothing.
function State:report(agent) -- luacheck: ignore 212
  local report = agent.collection.reports[agent.name]
  return report and report.epoch == agent.epoch and report.peers or nil
end

function State:keep_report(agent, peers) -- luacheck: ignore 212
  agent.collection.reports[agent.name] = { epoch = agent.epoch, peers = peers }
end

function State:is_reported(agent) return self:report(agent) ~= nil end

function State:remove(record)
  local collection, name = record.collection, record.name
  note(self, collection, name)
  put_in(collection, name, nil)
  self.storage:unset(collection.scope, collection.kind, name)
end

--- Has anything been written since the last commit?
function State:is_dirty() return self.undo[1] ~= nil end

local function take_back(state)
  for i = #state.undo, 1, -1 do
    local collection, name, record = unpack(state.undo[i], 1, 3)
    known.free(collection.records[name])
    put_in(collection, name, record)
    if record and record.ttl > 0 then
      wait_for(state, collection, name, record)
    end
  end
end

--- Takes back what was written since the last commit.
function State:discard()
  take_back(self)
  self.undo = {}
  self.storage:discard()
end

-- Tables do not shrink by themselves. None of a collection's is kept by others.
local function shrink(collection)
  local records, names = {}, {}
  for i, name in ipairs(collection.names) do
    records[name], names[i] = collection.records[name], name
  end
  collection.records, collection.names = records, names
end

local function fit(collection)
  local n = #collection.names
  if collection.most > SHRUNK * n + LEAST then
    shrink(collection)
    collection.most = n
  end
  collection.most = math.max(collection.most, n)
end

-- Takes what was written as kept. The collections, each once, with their names
-- noted.
local function settle(state)
  local list, seen = {}, {}
  for _, each in ipairs(state.undo) do
    local collection, name = each[1], each[2]
    collection.changes:note(name)
    known.free(each[3])
    if not collection.records[name] then
      collection.reports[name], state.gone = nil, state.gone + 1
    end
    if not seen[collection] then
      seen[collection] = true
      list[#list + 1] = collection
      fit(collection)
    end
  end
  return list
end

--- Keeps what was written. Returns a list of the collections that changed; or
-- nil, a kind and why.
function State:commit()
  local fine, kind, why = self.storage:commit(self.revision)
  local list = fine and settle(self)
  if not fine then take_back(self) end
  self.undo = {}
  if not fine then return nil, kind, why end
  return list
end

-- ---- Time ------------------------------------------------------------------

-- The record of a name whose lease is over; or nil. It may have moved to
-- another slot, where it is looked at then.
local function ended(state, collection, name, slot)
  local record = collection.records[name]
  if not record or record.slot ~= slot then return end
  if record.deadline <= state.now then return record end
  wait_for(state, collection, name, record)
end

-- The next name in the slots up to last, and its collection; nil if there is
-- none.
local function next_due(state, last)
  while not state.ending or state.ending[state.at] == nil do
    if state.slot >= last then
      state.ending = false
      return nil
    end
    state.slot, state.at = state.slot + 1, 1
    state.ending, state.due[state.slot] = state.due[state.slot], nil
  end
  state.at = state.at + 2
  return state.ending[state.at - 2], state.ending[state.at - 1]
end

-- Removes names from those of a collection, in one walk over them.
local function drop_names(collection, gone)
  local names, next_gone = collection.names, 1
  table.sort(gone)
  local n = place_of(names, gone[1]) - 1
  local count = #names
  for i = n + 1, count do
    if names[i] == gone[next_gone] then
      next_gone = next_gone + 1
    else
      n = n + 1
      names[n] = names[i]
    end
  end
  for i = n + 1, count do names[i] = nil end
end

-- The lists of names to be dropped are by collection.
local function remove_later(state, collection, name, lists)
  note(state, collection, name)
  collection.records[name] = nil
  state.storage:unset(collection.scope, collection.kind, name)
  local list = lists[collection] or {}
  lists[collection] = list
  list[#list + 1] = name
end

--- Removes records whose leases are over, at most so many; they are gone after
-- a commit. To be called some times in a second. Returns whether there may be
-- more, and how many were removed.
function State:pass(most)
  pass_time(self)
  local last, lists, ends, looks = slot_of(self.now) - 1, {}, 0, 0
  while ends < most and looks < LOOKS do
    local name, collection = next_due(self, last)
    if not name then break end
    local record = ended(self, collection, name, self.slot)
    looks, ends = looks + 1, ends + (record and 1 or 0)
    if record then remove_later(self, collection, name, lists) end
  end
  for collection, gone in pairs(lists) do drop_names(collection, gone) end
  return self.ending ~= false, ends
end
jit.off(State.pass)

-- ---- Opening ---------------------------------------------------------------

-- A row as a table; nil if it is no record of a server's. Others can write to
-- the file, and a disk can fail.
local function value_of(collection, name, text)
  if check.name(collection.scope) then return nil end
  return cells.checked(json.decode(text .. "}"), collection, name)
end

local function warn(strange)
  if strange[1] then
    log.write("warning", ("%d rows of the store are no records and count as "
      .. "nothing, until somebody writes these names: %s"):format(#strange,
                                                                 strange[1]))
  end
end

local function load(state)
  local strange = {}
  local fine, failure, why = state.storage:load(
    function(scope, kind, name, revision, ttl, text)
      local collection = state:collection(scope, kind)
      local value = value_of(collection, name, text)
      if not value then
        strange[#strange + 1] = ("%q of %s in scope %q"):format(name, kind,
                                                               scope)
        return
      end
      local record = known.new(collection, name, text, value)
      record.revision, record.ttl, record.began = revision, ttl / 1000, 0
      put_in(collection, name, record)
      give_lease(state, collection, name, record)
    end)
  warn(strange)
  return fine, failure, why
end

--- Frees all records.
function State:close()
  for _, of in pairs(self.scopes) do
    for _, collection in pairs(of) do
      for _, record in pairs(collection.records) do known.free(record) end
      collection.records, collection.names = {}, {}
    end
  end
  for _, each in ipairs(self.undo) do known.free(each[3]) end
  self.scopes, self.undo = {}, {}
end
jit.off(State.close)

--- The state that a storage has kept; leases begin anew. Or nil, a kind and
-- why.
function M.open(storage)
  local state = setmetatable({
    storage = storage, scopes = {}, undo = {}, timed = {}, feeding = {},
    revision = storage:revision(), graphs = {}, gone = 0,
    due = {}, slot = 0, ending = false, at = 0, -- leases that are looked at
    now = 0, seen = loop.now() * 1e-9 }, State)
  local fine, kind, why = load(state)
  if fine then return state end
  state:close()
  return nil, kind, why
end

return M
