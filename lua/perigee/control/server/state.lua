-- SPDX-License-Identifier: Apache-2.0
--- What a server knows: records, by scope, collection and name, in memory, and
-- in a storage (server/file.lua). Reads are answered from memory.
--
-- Writes are in memory at once, and kept by `State:commit`, which is called for
-- many of them together; only after it may anybody be told of them. If it
-- fails, memory is again as it was before them.
--
-- A record has a lease if it has a ttl. Leases are in memory alone. Their time
-- stops while the server does: neither a restart nor a pause of the server ends
-- a lease whose holder could not renew it.
--
-- Record: collection, name, text (JSON of an object, without its last brace),
-- revision, ttl (seconds, or 0), lease, began, and what its collection needs of
-- the text: kind, epoch, term, services. An agent's has a report
-- (server/graph), which is in no storage. A record that takes the place of
-- another takes its lease as well, so that a name is in one slot, however often
-- it is written.
local cells = require "perigee.control.server.cells"
local changes = require "perigee.registry.changes"
local check = require "perigee.check"
local log = require "perigee.log"
local loop = require "perigee.loop"

local json = require "cjson.safe".new()
json.decode_max_depth(32)

local M = {}

local SLOT = 0.25                       -- seconds of a slot of leases
local LONGEST = 1                       -- seconds that one pass may count
local LOOKS = 4000                      -- at leases in one pass
local ENDS = 250                        -- of leases in one pass
local FEW = 8                           -- names that are removed one by one

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

--- What a call lists { names, records, cut }. cut: the name at which more than
-- it will tell begins; nil: all are there.
function State:listed(call, kind)
  return self:known(call.scope, kind) or EMPTY
end

local function is_idle(collection)
  return not collection.names[1] and not collection.watchers[1]
end

--- Forgets collections in which nothing is, and that nobody watches; who comes
-- back to one gets all that there is. Not between a write and its commit.
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

local function wait_for(state, lease)
  local slot = math.max(slot_of(lease.deadline), state.slot + 1)
  local list = state.due[slot] or {}
  state.due[slot], lease.slot = list, slot
  list[#list + 1] = lease
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
  if record.ttl > 0 then record.lease.deadline = self:time() + record.ttl end
  if since then record.began = self:time() - since end
end

-- Gives a record its lease: the one of what it replaces, unless that would be
-- looked at too late.
local function give_lease(state, record, before)
  if record.ttl == 0 then return end
  local deadline = state:time() + record.ttl
  local lease = before and before.lease
  if lease and lease.slot <= slot_of(deadline) then
    lease.deadline, record.lease = deadline, lease
    return
  end
  record.lease = { collection = record.collection, name = record.name,
                   deadline = deadline, slot = 0 }
  wait_for(state, record.lease)
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

local function prepared(collection, name, text, value)
  return { collection = collection, name = name, text = text,
           kind = value.kind, epoch = value.epoch, term = value.term,
           services = value.services }
end

--- Sets a name's record. text: JSON of an object, without its last brace;
-- value: the same as a table; since: as of renew(). Returns the record.
function State:put(scope, kind, name, text, ttl, value, since)
  local collection = self:collection(scope, kind)
  local record = prepared(collection, name, text, value)
  local before = collection.records[name]
  note(self, collection, name)
  record.revision, record.ttl = self.revision, ttl
  record.began = since and self:time() - since
    or before and before.epoch == record.epoch and before.began or self:time()
  record.report = before and before.epoch == record.epoch and before.report
    or false
  put_in(collection, name, record)
  self.storage:set(scope, kind, name, record.revision,
                   math.floor(ttl * 1000), text)
  give_lease(self, record, before)
  return record
end

--- The number of a taking that is about to be written; before: the record that
-- it replaces. It is the record's revision, which is never used again.
function State:term() return self.revision + 1 end

--- What an agent has reported (server/topology); nil or false: nothing.
function State:report(agent) return agent.report end -- luacheck: ignore 212

function State:keep_report(agent, report) -- luacheck: ignore 212
  agent.report = report
end

function State:is_reported(agent) -- luacheck: ignore 212
  return agent.report ~= nil and agent.report ~= false
end

function State:remove(record)
  local collection = record.collection
  note(self, collection, record.name)
  put_in(collection, record.name, nil)
  self.storage:unset(collection.scope, collection.kind, record.name)
end

--- Has anything been written since the last commit?
function State:is_dirty() return self.undo[1] ~= nil end

local function take_back(state)
  for i = #state.undo, 1, -1 do
    local collection, name, record = unpack(state.undo[i], 1, 3)
    put_in(collection, name, record)
    if record and record.lease then wait_for(state, record.lease) end
  end
end

--- Takes back what was written since the last commit.
function State:discard()
  take_back(self)
  self.undo = {}
  self.storage:discard()
end

-- The collections that were written to, each once, with their names noted.
local function touched(state)
  local list, seen = {}, {}
  for _, each in ipairs(state.undo) do
    local collection = each[1]
    collection.changes:note(each[2])
    if not seen[collection] then
      seen[collection] = true
      list[#list + 1] = collection
    end
  end
  return list
end

--- Keeps what was written. Returns a list of the collections that changed; or
-- nil, a kind and why.
function State:commit()
  local fine, kind, why = self.storage:commit(self.revision)
  local list = fine and touched(self)
  if not fine then take_back(self) end
  self.undo = {}
  if not fine then return nil, kind, why end
  return list
end

-- ---- Time ------------------------------------------------------------------

-- The record of a lease that is over; or nil.
local function ended(state, lease, slot)
  local record = lease.collection.records[lease.name]
  if not record or record.lease ~= lease or lease.slot ~= slot then return end
  if lease.deadline <= state.now then return record end
  wait_for(state, lease)
end

-- The next lease in the slots up to last, and its slot; nil if there is none.
local function next_due(state, last)
  while not state.ending or state.ending[state.at] == nil do
    if state.slot >= last then
      state.ending = false
      return nil
    end
    state.slot, state.at = state.slot + 1, 1
    state.ending, state.due[state.slot] = state.due[state.slot], nil
  end
  state.at = state.at + 1
  return state.ending[state.at - 1]
end

-- Removes from a collection's names those without a record.
local function drop_names(collection, gone)
  local names, n = collection.names, 0
  if #gone < FEW then
    for _, name in ipairs(gone) do
      table.remove(names, place_of(names, name))
    end
    return
  end
  for i = 1, #names do
    local name = names[i]
    names[i] = nil
    if collection.records[name] then
      n = n + 1
      names[n] = name
    end
  end
end

-- The lists of names to be dropped are by collection.
local function remove_later(state, record, lists)
  local collection, name = record.collection, record.name
  note(state, collection, name)
  collection.records[name] = nil
  state.storage:unset(collection.scope, collection.kind, name)
  local list = lists[collection] or {}
  lists[collection] = list
  list[#list + 1] = name
end

--- Removes records whose leases are over; they are gone after a commit. To be
-- called some times in a second. Returns whether there may be more.
function State:pass()
  pass_time(self)
  local last, lists, ends, looks = slot_of(self.now) - 1, {}, 0, 0
  while ends < ENDS and looks < LOOKS do
    local lease = next_due(self, last)
    if not lease then break end
    local record = ended(self, lease, self.slot)
    looks, ends = looks + 1, ends + (record and 1 or 0)
    if record then remove_later(self, record, lists) end
  end
  for collection, gone in pairs(lists) do drop_names(collection, gone) end
  return self.ending ~= false
end
jit.off(State.pass)

-- ---- Opening ---------------------------------------------------------------

-- What a row is as a table; nil if it is no record of a server's. Others can
-- write to the file, and a disk can fail.
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
      local record = prepared(collection, name, text, value)
      record.revision, record.ttl, record.began = revision, ttl / 1000, 0
      put_in(collection, name, record)
      give_lease(state, record)
    end)
  warn(strange)
  return fine, failure, why
end

function State:close() end -- luacheck: ignore 212

--- What a storage has; leases begin anew. Or nil, a kind and why.
function M.open(storage)
  local state = setmetatable({
    storage = storage, scopes = {}, undo = {}, timed = {}, feeding = {},
    revision = storage:revision(), graphs = {},
    due = {}, slot = 0, ending = false, at = 0, -- leases that are looked at
    now = 0, seen = loop.now() * 1e-9 }, State)
  local fine, kind, why = load(state)
  if not fine then return nil, kind, why end
  return state
end

return M
