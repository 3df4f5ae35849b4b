-- SPDX-License-Identifier: Apache-2.0
--- The topology of a scope: which agents are to be connected, beside which are.
-- The wanted topology is one record, written by an admin (registry/topology).
-- Agents are told by a watch of the collection "topology", connect, and report:
--
--   PATCH .../topology/NAME?epoch=EPOCH
--   {"peers":[{"name":"b","state":"up","seconds":1.5},
--             {"name":"c","state":"down","seconds":0.2,"why":"..."}]}
--
-- A report says of some peers what has changed; seconds: for how long it has
-- been so. Peers that are not joined with the agent are passed over.
local agents = require "perigee.control.agents"
local calls = require "perigee.control.call"
local check = require "perigee.runtime.check"
local graphs = require "perigee.control.graph"
local problem = require "perigee.control.problem"
local records = require "perigee.control.records"
local topologies = require "perigee.registry.topology"

local json = require "cjson.safe"

local M = {}

local PEERS = 500                       -- of one report
local WHY = 500                         -- characters
local LONGEST = 2 ^ 31                  -- seconds

local JSON = "application/json"

-- ---- What there is ---------------------------------------------------------

-- The report of one end of an edge about the other; nil if there is none.
local function reported(state, all, name, other)
  local report = state:report(all[name])
  return report and report[other]
end

local function absent(all, edge)
  local list = {}
  for _, name in ipairs(edge) do
    if not all[name] then list[#list + 1] = name end
  end
  return list[1] and ('"absent","absent":["%s"]'):format(
    table.concat(list, '","'))
end

local function since(now, state, began, why)
  return ('"%s","since":%.3f%s'):format(state, math.max(0, now - began),
    why and ',"why":' .. json.encode(why) or "")
end

-- An edge's state, and what else is told of it. One end's news of the session's
-- end goes before the other's of the session.
local function actual(state, all, edge)
  local away = absent(all, edge)
  if away then return away end
  local one = reported(state, all, edge[1], edge[2])
  local two = reported(state, all, edge[2], edge[1])
  if not one and not two then return '"unknown"' end
  local now = state:time()
  one, two = one or two, two or one
  if one.up and two.up then
    return since(now, "up", math.max(one.began, two.began))
  end
  local first = one.up and two or one
  local other = two.up and first or two
  return since(now, "down", math.min(first.began, other.began),
               first.why or other.why)
end

-- Names need no escapes.
local function edge_text(state, all, edge)
  local a, b = edge[1], edge[2]
  return ('{"ends":["%s","%s"],"dials":"%s","state":%s}'):format(
    a < b and a or b, a < b and b or a, a, actual(state, all, edge))
end

--- A topology's representation: what is wanted; and of each edge its ends,
-- which of them dials, its state and for how many seconds it has been so:
--
--   up        all ends that have reported are connected
--   down      one is not; why: its reason, if it has one
--   absent    absent: the ends whose names nobody has
--   unknown   neither end has reported
function M.shown(call, record)
  local graph = record and graphs.of(call.state, record)
    or { value = {}, edges = {}, names = {} }
  local all = call.state:find_all(call.scope, "agents", graph.names)
  local texts = {}
  for i, edge in ipairs(graph.edges) do
    texts[i] = edge_text(call.state, all, edge)
  end
  local wanted = { edges = graph.value.edges, mesh = graph.value.mesh }
  return ('{"wanted":%s,"actual":[%s]}'):format(
    json.encode(wanted):gsub('":{}', '":[]'), table.concat(texts, ","))
end

local function get(call)
  local record = graphs.record(call.state, call.scope)
  local headers = { "Content-Type", JSON }
  if record then
    headers[3], headers[4] = "ETag", calls.etag(record.revision)
  end
  return 200, M.shown(call, record), headers
end

-- ---- What is wanted --------------------------------------------------------

local function put(call)
  local before = graphs.record(call.state, call.scope)
  local value, status, body, headers = calls.object(call)
  if not value then return status, body, headers end
  local why = topologies.unknown(value) or topologies.wrong(value)
  if why then return problem(400, "protocol", why) end
  local allowed
  allowed, status, body, headers = calls.allowed(call, before)
  if not allowed then return status, body, headers end
  local kept = { name = graphs.WANTED, kind = graphs.WANTED,
                 edges = value.edges, mesh = value.mesh }
  local record = call.state:put(call.scope, "topology", graphs.WANTED,
                                calls.encode(kept):sub(1, -2), 0, kept)
  if not record then return records.too_large() end
  return before and 200 or 201, M.shown(call, record),
         { "Content-Type", JSON, "ETag", calls.etag(record.revision) }
end

-- ---- Reports ---------------------------------------------------------------

local STATES = { up = true, down = true }

-- The characters of a text in UTF-8: its bytes that continue none.
local function characters(text)
  return #text:gsub("[\128-\191]", "")
end

local function is_peer(value)
  if type(value) ~= "table" or check.name(value.name) then return false end
  local seconds, why = value.seconds, value.why
  return STATES[value.state] ~= nil
    and (seconds == nil or type(seconds) == "number" and seconds >= 0
         and seconds <= LONGEST)
    and (why == nil or type(why) == "string" and characters(why) <= WHY)
end

local function wrong_peers(peers)
  if type(peers) ~= "table" then return "peers must be a list" end
  for key, value in pairs(peers) do
    if type(key) ~= "number" or not is_peer(value) then
      return "each of peers has a name and a state, up or down, and may have "
        .. ("seconds and why, of %d characters at most"):format(WHY)
    end
  end
  if #peers > PEERS then
    return ("a report has at most %d peers"):format(PEERS)
  end
end
jit.off(wrong_peers)

-- Adds what is new to an agent's report, of those alone whom it is joined with.
local function merge(state, agent, joined, peers)
  local before, all = state:report(agent) or {}, {}
  for name in pairs(joined) do all[name] = before[name] end
  for _, new in ipairs(peers) do
    if joined[new.name] then
      all[new.name] = { up = new.state == "up", why = new.why,
                        began = state:time() - (new.seconds or 0) }
    end
  end
  state:keep_report(agent, all)
end
jit.off(merge)

local function report(call)
  local agent = call.state:find(call.scope, "agents", call.name)
  local value, status, body, headers = calls.object(call)
  if not value then return status, body, headers end
  local why = wrong_peers(value.peers)
  if why then return problem(400, "protocol", why) end
  if not agent then
    return problem(404, "not_found", ("there is no %s in scope %s"):format(
      call.name, call.scope))
  end
  status, body, headers = agents.refuses(call, agent, call.query.epoch)
  if status then return status, body, headers end
  local record = graphs.record(call.state, call.scope)
  local joined = record and graphs.of(call.state, record).peers[call.name]
  merge(call.state, agent, joined or {}, value.peers)
  return 204, ""
end

M.routes = {
  all = { GET = { role = "read", run = get },
          PUT = { role = "admin", run = put } },
  one = { PATCH = { role = "register", run = report } },
}

return M
