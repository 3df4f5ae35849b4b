-- SPDX-License-Identifier: Apache-2.0
--- Records as the texts that a store keeps which several servers share. Agents
-- are kept in the form in which agents without a server keep them in that store
-- (registry/text). So agents with a server and agents without one find each
-- other. Behind what the client has written, a text of a server's ends in
--
--   ,"began":MILLISECONDS,"lease":MILLISECONDS}
--
-- by the store's clock, and with a lease of 0 if it has none.
--
-- A cell is such a text with what its store needs to write over it, and over
-- nothing newer: { text, ... }.
local check = require "perigee.runtime.check"
local entries = require "perigee.registry.entry"
local json = require "perigee.net.json"
local tokens = require "perigee.control.tokens"

local M = {}

local ENDING = '^(.*),"began":(%-?%d+),"lease":(%d+)}$'
local TTL = 10                          -- seconds, of agents that do not say

--- The scope under which a store keeps a collection. No agent can have it,
-- unless it is that of agents.
function M.space(scope, kind)
  return kind == "agents" and scope or scope .. "/" .. kind
end

--- The text of a record: text (JSON of an object, without its last brace),
-- the second in which it began, and the seconds of its lease.
function M.text(text, began, ttl)
  return ('%s,"began":%.0f,"lease":%.0f}'):format(text, began * 1000,
                                                  ttl * 1000)
end

--- The seconds of the lease that a text tells; nil if it does not.
function M.ttl(text)
  local lease = text:match '"lease":(%d+)}$'
  return lease and tonumber(lease) / 1000
end

-- The JSON of a record that no server has written, without its fields of time;
-- nil if it has a number that is too large: "1e999" is JSON, and infinity not.
local function plain(value)
  local began = tonumber(value.began) or 0
  if began - began ~= 0 then began = 0 end
  value.began, value.lease = nil, nil
  local text = json.encode(value)
  return text and text:sub(1, -2), began, TTL * 1000
end

--- Returns a decoded value if it is a record of that name in a collection; else
-- nil.
local function checked(value, collection, name)
  if collection.kind == "agents" then
    return entries.trusted(value, collection.scope, name)
  end
  return type(value) == "table" and value.name == name and not check.name(name)
    and (type(value.kind) == "string" or collection.kind ~= "entities")
    and value or nil
end

M.checked = checked

--- The record that a cell is in a collection (control/state), with `cell`; nil
-- if it is none. Its revision is a hash, so it is the same for all servers. An
-- agent that tells no term has taken the name by making the cell.
function M.record(collection, name, cell)
  local value = checked(json.decode(cell.text), collection, name)
  if not value then return nil end
  if collection.kind == "agents" then
    value.term = value.term or cell.created
  end
  local text, began, lease = cell.text:match(ENDING)
  if not text then text, began, lease = plain(value) end
  if not text then return nil end
  return { collection = collection, name = name, text = text, cell = cell,
           kind = value.kind, epoch = value.epoch, services = value.services,
           term = value.term,
           revision = tokens.hash(cell.text):sub(1, 16),
           began = began / 1000, ttl = lease / 1000 }
end

return M
