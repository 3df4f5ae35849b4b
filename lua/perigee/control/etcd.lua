-- SPDX-License-Identifier: Apache-2.0
--- Records in etcd, where agents' registries keep theirs, too (registry/etcd).
-- control/redis tells what a store has to do. A cell has the revision of its
-- key, which transactions compare, the one that made the key, and the id of its
-- lease. Each text that has a lease is written under a new one; the old one
-- ends by itself. So is one that is renewed under another leader than that
-- which granted its lease, as far as this server knows (registry/etcd/lease
-- tells why).
local base64 = require "perigee.net.base64"
local etcd = require "perigee.registry.etcd"
local feeds = require "perigee.registry.etcd.feed"
local futures = require "perigee.runtime.future"
local keys = require "perigee.registry.etcd.keys"
local loop = require "perigee.runtime.loop"
local tasks = require "perigee.runtime.task"

local M = {}

local MOST = 100                        -- names of a question; etcd takes 128
local LEASES = 2 ^ 17                   -- that are noted at once

local Store = {}
Store.__index = Store

--- The store at an address (of registry/etcd); or nil and what it should be.
function M.open(address)
  local registry, why = etcd.open(address)
  if not registry then return nil, why end
  return setmetatable({ registry = registry, target = registry.target,
                        cluster = registry.cluster,
                        patience = registry.patience, raft = false,
                        granted = {}, before = {}, noted = 0 }, Store)
end

local function cell_of(found)
  local text = type(found) == "table" and base64.decode(found.value)
  if not text then return nil end
  return { text = text, revision = found.mod_revision,
           created = tonumber(found.create_revision),
           lease = found.lease ~= "0" and found.lease or nil }
end

-- ---- Reading ---------------------------------------------------------------

local function first_of(response)
  local range = type(response) == "table" and response.response_range
  return type(range) == "table" and type(range.kvs) == "table"
    and range.kvs[1] or nil
end

-- Reads names of a list. etcd's revision; or nil, a kind and why. Half of them
-- at a time where their texts are more than an answer may have.
local function read_some(store, names, from, to)
  local wanted = {}
  for i = from, to do
    wanted[#wanted + 1] = { request_range = {
      key = keys.name(names[i].space, names[i].name) } }
  end
  local told, kind, why = store.cluster:ask("kv/txn", { success = wanted })
  if kind == "too_large" and to > from then
    local middle = math.floor((from + to) / 2)
    local first, second
    first, kind, why = read_some(store, names, from, middle)
    if not first then return nil, kind, why end
    second, kind, why = read_some(store, names, middle + 1, to)
    return second and math.max(first, second), kind, why
  end
  if not told then return nil, kind, why end
  if type(told.responses) ~= "table" or #told.responses ~= #wanted then
    return nil, "protocol", "what it has is no list of keys"
  end
  for i, response in ipairs(told.responses) do
    names[from + i - 1].take(cell_of(first_of(response)))
  end
  return type(told.header) == "table" and tonumber(told.header.revision) or 0
end

local function read_list(store, list)
  return store.registry:each(list.space, list, function(name, found)
    local cell = cell_of(found)
    return cell and list.take(name, cell)
  end)
end

function Store:read(names, lists)
  local last = 0
  for from = 1, #names, MOST do
    local revision, kind, why = read_some(self, names, from,
                                          math.min(#names, from + MOST - 1))
    if not revision then return nil, kind, why end
    last = math.max(last, revision)
  end
  for _, list in ipairs(lists) do
    local fine, kind, why = read_list(self, list)
    if not fine then return nil, kind, why end
  end
  return self.cluster:now() / 1000, last
end

-- ---- Leases ----------------------------------------------------------------

-- The number of the leader that has answered.
local function leader_of(told)
  return type(told.header) == "table" and told.header.raft_term or nil
end

-- Notes that a leader has granted a lease. Those of leaders before are
-- forgotten, and so are some of many that were not renewed for longest.
local function note(store, id, leader)
  if store.raft ~= leader then
    store.raft, store.granted, store.before, store.noted = leader, {}, {}, 0
  elseif store.noted >= LEASES then
    store.before, store.granted, store.noted = store.granted, {}, 0
  end
  if not store.granted[id] then store.noted = store.noted + 1 end
  store.granted[id] = true
end

-- The id of a new lease; or nil, a kind and why.
local function grant(store, write)
  local told, kind, why = store.cluster:ask("lease/grant", {
    TTL = ("%d"):format(math.ceil(write.ttl)) })
  if not told then return nil, kind, why end
  if type(told.ID) ~= "string" then
    return nil, "protocol", "what it grants is no lease"
  end
  note(store, told.ID, leader_of(told))
  return told.ID
end

-- Has this leader granted the lease?
local function is_of(store, id, leader)
  if not leader or leader ~= store.raft
    or not (store.granted[id] or store.before[id]) then
    return false
  end
  note(store, id, leader)
  return true
end

-- True; false if there is no such lease any more; the id of a new one that is
-- to replace it; or nil, a kind and why.
local function prolong(store, write)
  local id = write.cell.lease
  if not id then return true end
  local told, kind, why = store.cluster:ask("lease/keepalive", { ID = id })
  if not told then return nil, kind, why end
  local result = type(told.result) == "table" and told.result or {}
  if (tonumber(result.TTL) or 0) <= 0 then return false end
  if is_of(store, id, leader_of(result)) then return true end
  return grant(store, write)
end

-- The question that a write's lease needs; nil: none.
local function asking(write)
  if write.renew then return prolong end
  return write.text and write.ttl > 0 and grant or nil
end

-- Asks for all writes' leases at the same time. A list of what was answered,
-- "0" where nothing was asked; or nil, a kind and why.
local function ask_leases(store, writes)
  local asked, answers = {}, {}
  for i, write in ipairs(writes) do
    local f = asking(write)
    asked[i] = f and tasks.spawn(f, store, write) or futures.done "0"
  end
  for i, future in ipairs(asked) do
    loop.wait(future, math.huge)
    local answer, kind, why = futures.results(future)
    if answer == nil then return nil, kind, why end
    answers[i] = answer
  end
  return answers
end

-- ---- Writing ---------------------------------------------------------------

local function compared(key, cell)
  if not cell then
    return { key = key, target = "CREATE", result = "EQUAL",
             create_revision = "0" }
  end
  return { key = key, target = "MOD", result = "EQUAL",
           mod_revision = cell.revision }
end

local function operation(key, write, lease)
  local text = write.renew and write.cell.text or write.text
  if not text then return { request_delete_range = { key = key } } end
  return { request_put = { key = key, value = base64.encode(text),
                           lease = lease } }
end

function Store:write(writes)
  local leases, kind, why = ask_leases(self, writes)
  if not leases then return nil, kind, why end
  local compare, success = {}, {}
  for i, write in ipairs(writes) do
    if leases[i] == false then return false end
    if leases[i] ~= true then
      local key = keys.name(write.space, write.name)
      compare[#compare + 1] = compared(key, write.cell)
      success[#success + 1] = operation(key, write, leases[i])
    end
  end
  if not compare[1] then return true end
  local told
  told, kind, why = self.cluster:ask("kv/txn", { compare = compare,
                                                 success = success })
  if not told then return nil, kind, why end
  return told.succeeded == true
end

-- ---- Following -------------------------------------------------------------

-- Without what changes by renewals.
local function decode(found)
  local cell = cell_of(found)
  return cell and { text = cell.text, created = cell.created }
end

function Store:follow(space)
  return feeds.new(self.registry, space, decode)
end

function Store:close() self.cluster.client:close() end

return M
