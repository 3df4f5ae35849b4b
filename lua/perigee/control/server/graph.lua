-- SPDX-License-Identifier: Apache-2.0
--- The graph of a scope's topology: its edges, and who is joined with whom. It
-- is made of the record when it is first asked for, and kept with it.
--
-- An agent's reports are kept with the record of its name, in memory alone:
-- they are gone with the agent, and after a restart of the server until the
-- agent has reported again. The answers to what agents send about their names
-- have a header for those who are in the graph:
--
--   Perigee-Topology: wanted       the server has what the agent reported
--   Perigee-Topology: unreported   it has not
local topologies = require "perigee.registry.topology"

local json = require "cjson.safe"

local M = {}

--- The name of the record that a topology is.
M.WANTED = "wanted"

--- The record of a scope's topology, or nil.
function M.record(state, scope)
  local collection = state:known(scope, "topology")
  return collection and collection.records[M.WANTED]
end

local function join(peers, a, b)
  peers[a] = peers[a] or {}
  peers[a][b] = true
end

--- The graph of such a record: { value, edges, peers (sets, by name) }.
function M.of(record)
  if record.graph then return record.graph end
  local value = json.decode(record.text .. "}") or {}
  local graph = { value = value, edges = topologies.edges(value), peers = {} }
  for _, edge in ipairs(graph.edges) do
    join(graph.peers, edge[1], edge[2])
    join(graph.peers, edge[2], edge[1])
  end
  record.graph = graph
  return graph
end

--- Adds the header for the agent of a record to those of an answer.
function M.tell(call, agent, headers)
  local record = M.record(call.state, call.scope)
  if not record or not M.of(record).peers[agent.name] then return headers end
  headers = headers or {}
  headers[#headers + 1] = "Perigee-Topology"
  headers[#headers + 1] = agent.report and "wanted" or "unreported"
  return headers
end

return M
