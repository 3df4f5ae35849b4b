-- SPDX-License-Identifier: Apache-2.0
--- Topologies: which agents of a scope are to be connected.
--
--   { edges = { { "a", "b" }, ... }, mesh = { "x", "y", ... } }
--
-- Each pair of agents of the mesh is an edge, too. Two agents have one edge,
-- and one of them dials. That is the agent that is named first in the pair's
-- first occurrence, in the edges and then in the mesh.
local check = require "perigee.runtime.check"

local M = {}

local MOST = 10000                      -- edges

-- ---- Checks ----------------------------------------------------------------

local function are_names(list, n)
  if type(list) ~= "table" or n and #list ~= n then return false end
  for key, name in pairs(list) do
    if type(key) ~= "number" or check.name(name) then return false end
  end
  return true
end
jit.off(are_names)

local function are_edges(list)
  if type(list) ~= "table" then return false end
  for key, edge in pairs(list) do
    if type(key) ~= "number" or not are_names(edge, 2) then return false end
  end
  return true
end
jit.off(are_edges)

--- The fault of a table as a topology; nil if it has none.
function M.wrong(value)
  local edges, mesh = value.edges, value.mesh
  if edges ~= nil and not are_edges(edges) then
    return "edges must be a list of pairs of names"
  elseif mesh ~= nil and not are_names(mesh) then
    return "mesh must be a list of names"
  end
  local n = #(mesh or {})
  if #(edges or {}) + n * (n - 1) / 2 > MOST then
    return ("a topology has at most %d edges"):format(MOST)
  end
end

--- What a topology that somebody has written has beside edges and mesh; nil:
-- nothing. A misspelt key would leave out all that it stands for.
function M.unknown(value)
  for key in pairs(value) do
    if key ~= "edges" and key ~= "mesh" then
      return ("a topology has edges and mesh, and no %q"):format(
        tostring(key):sub(1, 100))
    end
  end
end
jit.off(M.unknown)

-- ---- Edges -----------------------------------------------------------------

local function add(edges, seen, a, b)
  local key = a < b and a .. " " .. b or b .. " " .. a
  if a == b or seen[key] then return end
  seen[key] = true
  edges[#edges + 1] = { a, b }
end

--- The edges of a topology, each once; the first end dials.
function M.edges(value)
  local edges, seen = {}, {}
  for _, edge in ipairs(value.edges or {}) do
    add(edges, seen, edge[1], edge[2])
  end
  local mesh = value.mesh or {}
  for i = 1, #mesh do
    for j = i + 1, #mesh do add(edges, seen, mesh[i], mesh[j]) end
  end
  return edges
end

local function join(peers, name, peer, dials)
  if peer ~= name and peers[peer] == nil then peers[peer] = dials end
end

local function join_mesh(peers, mesh, name)
  local place
  for i = #mesh, 1, -1 do place = mesh[i] == name and i or place end
  for i = 1, place and #mesh or 0 do join(peers, name, mesh[i], place < i) end
end

--- The peers of an agent, by name: true for those that it is to dial.
function M.joined(value, name)
  local peers = {}
  for _, edge in ipairs(value.edges or {}) do
    if edge[1] == name then
      join(peers, name, edge[2], true)
    elseif edge[2] == name then
      join(peers, name, edge[1], false)
    end
  end
  join_mesh(peers, value.mesh or {}, name)
  return peers
end

return M
