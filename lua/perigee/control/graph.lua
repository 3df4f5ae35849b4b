-- SPDX-License-Identifier: Apache-2.0
--- The graph of a scope's topology: its edges, and who is joined with whom. It
-- is made when it is first asked for, and kept by the state until the record
-- has another text.
--
-- The state also keeps what agents report (`report`, `keep_report`,
-- `is_reported`): control/state in memory, with the record of the agent's name,
-- and control/shared in the store. The answers to what agents send about their
-- names have a header for those who are in the graph:
--
--   Perigee-Topology: wanted       the server has what the agent reported
--   Perigee-Topology: unreported   it has not, or wants it again
local topologies = require "perigee.registry.topology"

local json = require "cjson.safe"

local M = {}

--- The name of the record that a topology is.
M.WANTED = "wanted"

--- The record of a scope's topology, or nil.
function M.record(state, scope)
  return state:find(scope, "topology", M.WANTED)
end

local function join(peers, a, b)
  peers[a] = peers[a] or {}
  peers[a][b] = true
end

local function list_of_names(peers)
  local names = {}
  for name in pairs(peers) do names[#names + 1] = name end
  return names
end
jit.off(list_of_names)

--- The graph of a topology: { value, edges, peers (sets, by name), names (of
-- all who are in it) }.
function M.new(value)
  local graph = { value = value, edges = topologies.edges(value), peers = {} }
  for _, edge in ipairs(graph.edges) do
    join(graph.peers, edge[1], edge[2])
    join(graph.peers, edge[2], edge[1])
  end
  graph.names = list_of_names(graph.peers)
  return graph
end

-- Others than this server may have written what is no topology.
local function value_of(record)
  local value = json.decode(record.text .. "}")
  return type(value) == "table" and not topologies.wrong(value) and value or {}
end

--- The graph of a topology's record.
function M.of(state, record)
  local scope = record.collection.scope
  local graph = state.graphs[scope]
  if graph and graph.text == record.text then return graph end
  graph = M.new(value_of(record))
  graph.text, state.graphs[scope] = record.text, graph
  return graph
end

--- Adds the header for the agent of a record to those of an answer.
function M.tell(call, agent, headers)
  local state = call.state
  local record = M.record(state, call.scope)
  if not record or not M.of(state, record).peers[agent.name] then
    return headers
  end
  headers = headers or {}
  headers[#headers + 1] = "Perigee-Topology"
  headers[#headers + 1] = state:is_reported(agent) and "wanted" or "unreported"
  return headers
end

return M
