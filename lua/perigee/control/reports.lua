-- SPDX-License-Identifier: Apache-2.0
--- Reports of agents about a topology (control/topology), in a store that
-- servers share: a record for each agent, of the collection "reports", so that
-- all servers tell the same. It is written when an agent has something to
-- report, and not with the agent's renewals. So it has a lease of its own. The
-- agent is asked to report anew when half of that lease is over. It counts as
-- long as the agent's name has the epoch that it was reported with.
--
--   {"name":NAME,"epoch":EPOCH,"peers":{PEER:{"up":true,"began":SECONDS,
--    "why":TEXT},...}
local check = require "perigee.runtime.check"
local json = require "perigee.net.json"

local M = {}

local KIND = "reports"
local LEASE = 3600                      -- seconds

local function record_of(state, agent)
  local record = state:find(agent.collection.scope, KIND, agent.name)
  return record and record.epoch == agent.epoch and record or nil
end

local function is_sound(name, peer)
  return not check.name(name) and type(peer) == "table"
    and type(peer.up) == "boolean" and type(peer.began) == "number"
    and (peer.why == nil or type(peer.why) == "string")
end

-- The peers of a report. Each is checked, because others write to the store,
-- too.
local function peers_of(record)
  local value = json.decode(record.text .. "}") or {}
  local kept = {}
  for name, peer in pairs(type(value.peers) == "table" and value.peers or {}) do
    if is_sound(name, peer) then kept[name] = peer end
  end
  return kept
end
jit.off(peers_of)

--- The report of an agent: { up, began, why } by its peers' names; nil if there
-- is none.
function M.of(state, agent)
  local record = record_of(state, agent)
  if not record then return nil end
  record.peers = record.peers or peers_of(record)
  return record.peers
end

--- Is there a report that need not be made anew?
function M.is_known(state, agent)
  local record = record_of(state, agent)
  return record ~= nil and state:time() - record.began < LEASE / 2
end

--- Writes what an agent has reported.
function M.keep(state, agent, peers)
  local value = { name = agent.name, epoch = agent.epoch, peers = peers }
  state:put(agent.collection.scope, KIND, agent.name,
            json.encode(value):sub(1, -2), LEASE, value, 0)
end

return M
