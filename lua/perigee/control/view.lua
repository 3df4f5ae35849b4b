-- SPDX-License-Identifier: Apache-2.0
--- The part of a store that the requests of a round read and write, where
-- others write to the store as well (control/redis). Handlers ask it as they
-- ask control/state. A handler that asks for something that was not read is
-- left where it asks. It is run again from its beginning once that was read
-- (View:try); its writes before count for nothing. So no handler is told less
-- than it asks for, and the store is asked once for what many handlers want.
--
-- commit() writes over what was read, and over nothing newer.
--
--   place    a name: { space, name, collection, cell (what the store has),
--            record (as the round sees it), strange (the cell is no record),
--            written }, and of a write what the store needs: text, ttl, renew,
--            unlisted
local cells = require "perigee.control.cells"
local entries = require "perigee.registry.entry"
local graphs = require "perigee.control.graph"
local loop = require "perigee.runtime.loop"
local records = require "perigee.control.records"
local reports = require "perigee.control.reports"
local states = require "perigee.control.state"
local calls = require "perigee.control.call"
local tokens = require "perigee.control.tokens"

local M = {}

-- Kinds whose records are read by name alone.
local UNLISTED = { reports = true }

local UNREAD = {}                       -- what a handler yields that is left

local View = {}
View.__index = View

--- A view of a store, in which nothing is read yet. graphs: of topologies, by
-- scope, kept from view to view (control/graph). longest: bytes of a body.
function M.new(store, known_graphs, longest)
  return setmetatable({
    store = store, graphs = known_graphs, longest = longest, places = {},
    lists = {}, order = {}, own = {}, touched = {}, collections = {},
    wanted = { names = {}, lists = {} }, now = 0, seen = loop.now(),
    revision = false }, View)
end

--- The store's time in seconds.
function View:time()
  return self.now + (loop.now() - self.seen) * 1e-9
end

-- ---- Asking ----------------------------------------------------------------

local function key_of(scope, kind, name)
  return cells.space(scope, kind) .. "\n" .. name
end

-- One of a handler's own writes goes before what all see.
local function place_of(view, scope, kind, name)
  local key = key_of(scope, kind, name)
  return view.own[key] or view.places[key]
end

local function collection_of(view, scope, kind)
  local space = cells.space(scope, kind)
  local collection = view.collections[space] or { scope = scope, kind = kind }
  view.collections[space] = collection
  return collection
end

local function want(view, scope, kind, name)
  local key = key_of(scope, kind, name)
  if view.places[key] or view.wanted.names[key] then return end
  view.wanted.names[key] = {
    space = cells.space(scope, kind), name = name, cell = nil, record = nil,
    collection = collection_of(view, scope, kind), strange = false,
    written = false, unlisted = UNLISTED[kind] }
  if kind ~= "agents" then return end
  -- A request for an agent mostly asks for these, too.
  want(view, scope, "reports", name)
  want(view, scope, "topology", graphs.WANTED)
end

--- The records of a list of names, by name.
function View:find_all(scope, kind, names)
  local found, whole = {}, true
  for _, name in ipairs(names) do
    local place = place_of(self, scope, kind, name)
    if place then found[name] = place.record else whole = false end
  end
  if whole then return found end
  for _, name in ipairs(names) do want(self, scope, kind, name) end
  return coroutine.yield(UNREAD)
end

--- The record of a name, or nil.
function View:find(scope, kind, name)
  local place = place_of(self, scope, kind, name)
  if place then return place.record end
  want(self, scope, kind, name)
  return coroutine.yield(UNREAD)
end

--- The list that a call asks for, as far as one page goes (State:listed).
function View:listed(call, kind)
  if self.lists[call] then return self.lists[call] end
  self.wanted.lists[call] = kind
  return coroutine.yield(UNREAD)
end

View.report, View.keep_report = reports.of, reports.keep
View.is_reported = reports.is_known

-- ---- Reading ---------------------------------------------------------------

local function take_names(view)
  local names = {}
  for key, place in pairs(view.wanted.names) do
    view.places[key] = place
    names[#names + 1] = { space = place.space, name = place.name,
                          take = function(cell)
      place.cell = cell
      place.record = cell and cells.record(place.collection, place.name, cell)
        or nil
      place.strange = cell ~= nil and place.record == nil
    end }
  end
  return names
end
jit.off(take_names)

-- The revision of a page: of what is on it.
local function revision_of(collection)
  local all = {}
  for i, name in ipairs(collection.names) do
    all[i] = name .. collection.records[name].revision
  end
  return tokens.hash(table.concat(all, " ")):sub(1, 16)
end

local function new_list(scope, kind)
  local list = { scope = scope, kind = kind, names = {}, records = {},
                 cut = nil }
  list.changes = { revision = function() return revision_of(list) end }
  return list
end

-- A list that ends when it has more than a page.
local function page_of(list, call)
  local limit, filter = calls.limit(call), call.query
  local n, looked, size = 0, 0, 0
  return { space = cells.space(list.scope, list.kind), prefix = filter.prefix,
           after = filter.after, take = function(name, cell)
    local record = cells.record(list, name, cell)
    states.put_in(list, name, record)
    looked = looked + 1
    if record and entries.matches(record, filter) then
      n, size = n + 1, size + #record.text
    end
    local enough = n > limit or size >= records.PAGE
      or looked >= records.LOOKED
    if enough and record then list.cut = name end
    return list.cut ~= nil
  end }
end

local function take_lists(view)
  local lists = {}
  for call, kind in pairs(view.wanted.lists) do
    local list = new_list(call.scope, kind)
    view.lists[call], lists[#lists + 1] = list, page_of(list, call)
  end
  return lists
end
jit.off(take_lists)

--- Reads what was asked for and not read, and the time. True; or nil, a kind
-- and why. Waits.
function View:read()
  local names, lists = take_names(self), take_lists(self)
  self.wanted = { names = {}, lists = {} }
  local now, told, why = self.store:read(names, lists)
  if not now then return nil, told, why end
  self.now, self.seen = now, loop.now()
  if told then self.revision = math.max(self.revision or 0, told) end
  return true
end

-- ---- Running ---------------------------------------------------------------

-- Later handlers see the writes of the one that has ended.
local function keep(view)
  for _, key in ipairs(view.touched) do
    if not view.places[key].written then
      view.order[#view.order + 1] = key
    end
    view.places[key] = view.own[key]
  end
end

--- Calls f(...), which asks and writes; it returns a call, or nothing. What
-- was written for a call that has `failed` counts for nothing. False if f asked
-- for what was not read: then it is to be called again, after a read().
function View:try(f, ...)
  self.own, self.touched = {}, {}
  local fine, left = coroutine.resume(coroutine.create(f), ...)
  if not fine then error(left, 0) end
  if left ~= UNREAD and not (left and left.failed) then keep(self) end
  self.own, self.touched = {}, {}
  return left ~= UNREAD
end

-- ---- Writing ---------------------------------------------------------------

-- The place of a name that the handler which runs writes.
local function own_of(view, scope, kind, name)
  local key = key_of(scope, kind, name)
  if view.own[key] then return view.own[key] end
  view:find(scope, kind, name)
  local before, place = view.places[key], {}
  for field, value in pairs(before) do place[field] = value end
  if not before.written then
    place.renew, place.written = true, true
    place.ttl = before.record and before.record.ttl or 0
  end
  view.own[key], view.touched[#view.touched + 1] = place, key
  return place
end
jit.off(own_of)

--- As State:put; nil, and nothing is written, if what the store would have then
-- were no record: its values take more memory than may be taken for its text.
function View:put(scope, kind, name, text, ttl, value, since)
  local before = self:find(scope, kind, name)
  local began = since and self:time() - since
    or before and before.epoch == value.epoch and before.began or self:time()
  text = cells.text(text, began, ttl)
  local record = cells.record(collection_of(self, scope, kind), name,
                              { text = text })
  if not record then return nil end
  local place = own_of(self, scope, kind, name)
  place.text, place.ttl, place.renew, place.record = text, ttl, false, record
  return record
end

--- The number of a taking, as agents without a server count it in that store:
-- its next revision, while the name is as it was read, or its time. It is
-- greater than those of all before, unless that time has gone back since.
function View:term(before)
  local last = before and before.term or 0
  local next_one = self.revision and self.revision + 1
    or math.floor(self:time() * 1e6)
  return math.max(last + 1, next_one)
end

function View:remove(record)
  local collection = record.collection
  local place = own_of(self, collection.scope, collection.kind, record.name)
  place.text, place.renew, place.record = nil, false, nil
end

--- Begins a record's lease anew.
function View:renew(record)
  if record.ttl == 0 then return end
  local collection = record.collection
  own_of(self, collection.scope, collection.kind, record.name)
end

--- Has anything been written, besides renewed?
function View:has_written()
  for _, key in ipairs(self.order) do
    if not self.places[key].renew then return true end
  end
  return false
end

-- The writes; or nil and the name in whose place is what is no record.
local function writes_of(view)
  local writes = {}
  for _, key in ipairs(view.order) do
    local place = view.places[key]
    if place.strange then return nil, place.name end
    if place.cell or place.text then writes[#writes + 1] = place end
  end
  return writes
end

--- Writes what was written: true; false if another was quicker with a part of
-- it; or nil, a kind and why. Waits.
function View:commit()
  local writes, refused = writes_of(self)
  if not writes then
    return nil, "name_taken", "what is no record of a server's is in the place "
      .. "of " .. refused
  end
  if not writes[1] then return true end
  return self.store:write(writes)
end

return M
