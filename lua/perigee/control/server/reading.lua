-- SPDX-License-Identifier: Apache-2.0
--- How a round reads what its requests want (server/wants) from a store that
-- servers share (server/redis) into the records of a state (server/shared).
local cells = require "perigee.control.server.cells"
local entries = require "perigee.registry.entry"
local loop = require "perigee.loop"
local records = require "perigee.control.server.records"
local states = require "perigee.control.server.state"
local tokens = require "perigee.control.server.tokens"

local M = {}

-- The revision of a page: of what is on it.
local function revision_of(collection)
  local all = {}
  for i, name in ipairs(collection.names) do
    all[i] = name .. collection.records[name].revision
  end
  return tokens.hash(table.concat(all, " ")):sub(1, 16)
end

--- A collection in which nothing is yet.
function M.new_collection(scope, kind)
  local collection = { scope = scope, kind = kind, records = {}, names = {},
                       strange = {} }
  collection.changes = { revision = function()
    return revision_of(collection)
  end }
  return collection
end

--- Notes what there is under a name. What is no record of ours stays as it is.
local function take(collection, name, cell)
  local record = cell and cells.record(collection, name, cell) or nil
  collection.strange[name] = cell and not record or nil
  states.put_in(collection, name, record)
  return record
end

M.take = take

local function one(state, wants)
  local collection = state:collection(wants.scope, wants.kind)
  return { space = cells.space(wants.scope, wants.kind), name = wants.name,
           take = function(cell) take(collection, wants.name, cell) end }
end

-- A list that ends when it has more than a page.
local function many(state, wants)
  local collection = state:collection(wants.scope, wants.kind)
  local n, looked, size = 0, 0, 0
  wants.call.cut = nil
  return { space = cells.space(wants.scope, wants.kind),
           prefix = wants.filter.prefix, after = wants.filter.after,
           take = function(name, cell)
    local record = take(collection, name, cell)
    looked = looked + 1
    if record and entries.matches(record, wants.filter) then
      n, size = n + 1, size + #record.text
    end
    local enough = n > wants.limit or size >= records.PAGE
      or looked >= records.LOOKED
    if enough and record then wants.call.cut = name end
    return wants.call.cut ~= nil
  end }
end

-- Reads names, each once, and lists.
local function read_some(state, wanted)
  local names, lists, asked = {}, {}, {}
  for _, wants in ipairs(wanted) do
    local key = wants.name and cells.space(wants.scope, wants.kind) .. "\n"
      .. wants.name
    if key and not asked[key] then
      asked[key], names[#names + 1] = true, one(state, wants)
    elseif wants.filter then
      lists[#lists + 1] = many(state, wants)
    end
  end
  local now, kind, why = state.store:read(names, lists)
  if not now then return nil, kind, why end
  state.now, state.seen = now, loop.now()
  return true
end

-- What is wanted after the first of it was read.
local function rest_of(wanted)
  local rest = {}
  for _, wants in ipairs(wanted) do
    for _, each in ipairs(wants.more and wants.more() or {}) do
      rest[#rest + 1] = each
    end
  end
  return rest
end

--- Reads what is wanted, and the time. True; or nil, a kind and why. Waits.
function M.read(state, wanted)
  local fine, kind, why = read_some(state, wanted)
  local rest = fine and rest_of(wanted) or {}
  if rest[1] then return read_some(state, rest) end
  return fine, kind, why
end

return M
