-- SPDX-License-Identifier: Apache-2.0
--- The topology of a scope: which agents are to be connected, beside which are.
-- What is wanted is one record, written by an admin:
--
--   {"edges":[["a","b"],...],"mesh":["x","y",...]}
--
-- Each pair of agents of the mesh is an edge, too. Agents are told by a watch
-- of the collection "topology", and report whom they are connected to in
-- records of their own, which have a lease: PUT .../topology/{agent} with
-- {"connected":["b",...]}.
local calls = require "perigee.control.server.call"
local check = require "perigee.check"
local problem = require "perigee.control.server.problem"

local json = require "cjson.safe"

local M = {}

local WANTED = "wanted"
local MOST = 10000                      -- edges

local JSON = "application/json"

-- ---- What is wanted --------------------------------------------------------

local function are_names(list, n)
  if type(list) ~= "table" or n and #list ~= n then return false end
  for key, name in pairs(list) do
    if type(key) ~= "number" or check.name(name) then return false end
  end
  return true
end
jit.off(are_names)

-- Adds the edge of a and b under the key that both of its directions have.
local function add(edges, a, b)
  if a == b then return end
  if b < a then a, b = b, a end
  local key = a .. " " .. b
  if edges.by_key[key] then return end
  edges.by_key[key] = true
  edges[#edges + 1] = { a, b }
end

--- The edges of a wanted topology, each once.
function M.edges(value)
  local edges = { by_key = {} }
  for _, edge in ipairs(value.edges or {}) do add(edges, edge[1], edge[2]) end
  local mesh = value.mesh or {}
  for i = 1, #mesh do
    for j = i + 1, #mesh do add(edges, mesh[i], mesh[j]) end
  end
  return edges
end

local function wrong(value)
  if value.edges ~= nil and type(value.edges) ~= "table" then
    return "edges must be a list of pairs of names"
  end
  for _, edge in pairs(value.edges or {}) do
    if not are_names(edge, 2) then
      return "edges must be a list of pairs of names"
    end
  end
  if value.mesh ~= nil and not are_names(value.mesh) then
    return "mesh must be a list of names"
  end
  local mesh = #(value.mesh or {})
  if #(value.edges or {}) + mesh * (mesh - 1) / 2 > MOST then
    return ("a topology has at most %d edges"):format(MOST)
  end
end
jit.off(wrong)

local function put(call)
  local value, status, body, headers = calls.object(call)
  if not value then return status, body, headers end
  local why = wrong(value)
  if why then return problem(400, "protocol", why) end
  local collection = call.state:collection(call.scope, "topology")
  local before = collection.records[WANTED]
  local allowed
  allowed, status, body, headers = calls.allowed(call, before)
  if not allowed then return status, body, headers end
  local kept = { name = WANTED, kind = WANTED, edges = value.edges,
                 mesh = value.mesh }
  local record = call.state:put(collection, WANTED,
                                calls.encode(kept):sub(1, -2), 0, kept)
  return before and 200 or 201, M.shown(call, record),
         { "Content-Type", JSON, "ETag", calls.etag(record.revision) }
end

-- ---- What there is ---------------------------------------------------------

-- Whom an agent says that it is connected to, as a set; nil if it says nothing.
local function reported(collection, name)
  local record = collection.records["by:" .. name]
  if not record then return nil end
  local set = {}
  for _, other in ipairs(json.decode(record.text .. "}").connected) do
    set[other] = true
  end
  return set
end

local function state_of(reports, edge)
  local one, two = reports[edge[1]], reports[edge[2]]
  if one and one[edge[2]] or two and two[edge[1]] then return "up" end
  return (one or two) and "down" or "unknown"
end

--- A topology's representation: what is wanted, and each edge's state: "up" if
-- one of its ends is connected, "down" if not, "unknown" if none has reported.
function M.shown(call, record)
  local collection = call.state:collection(call.scope, "topology")
  local value = record and json.decode(record.text .. "}") or {}
  local texts, reports = {}, {}
  for _, edge in ipairs(M.edges(value)) do
    for _, name in ipairs(edge) do
      reports[name] = reports[name] or reported(collection, name)
    end
    texts[#texts + 1] = ('{"ends":["%s","%s"],"state":"%s"}'):format(edge[1],
      edge[2], state_of(reports, edge))
  end
  local wanted = { edges = value.edges, mesh = value.mesh }
  return ('{"wanted":%s,"actual":[%s]}'):format(json.encode(wanted),
                                                table.concat(texts, ","))
end

local function get(call)
  local collection = call.state:known(call.scope, "topology")
  local record = collection and collection.records[WANTED]
  local headers = { "Content-Type", JSON }
  if record then
    headers[3], headers[4] = "ETag", calls.etag(record.revision)
  end
  return 200, M.shown(call, record), headers
end

-- ---- Reports ---------------------------------------------------------------

local function report(call)
  local value, status, body, headers = calls.object(call)
  if not value then return status, body, headers end
  if not are_names(value.connected) then
    return problem(400, "protocol", "connected must be a list of names")
  end
  local ttl
  ttl, status, body, headers = calls.ttl(call, 30)
  if not ttl then return status, body, headers end
  if #call.name > 61 then
    return problem(400, "protocol", "the name is too long to report")
  end
  local collection = call.state:collection(call.scope, "topology")
  local kept = { name = "by:" .. call.name, kind = "report",
                 connected = value.connected }
  local text = calls.encode(kept):sub(1, -2)
  local before = collection.records[kept.name]
  if before and before.text == text then
    call.state:renew(before)
  else
    call.state:put(collection, kept.name, text, ttl, kept)
  end
  return 204, ""
end

M.routes = {
  all = { GET = { role = "read", run = get },
          PUT = { role = "admin", run = put } },
  one = { PUT = { role = "register", run = report } },
}

return M
