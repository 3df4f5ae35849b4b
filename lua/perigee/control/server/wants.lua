-- SPDX-License-Identifier: Apache-2.0
--- What a request asks of a store that servers share (Shared:begin): all that
-- its handler looks up, so that a round reads it before it handles its
-- requests; nothing of a watch, which waits for a feed. A list of
--
--   { scope, kind, name }             one record
--   { scope, kind, filter, limit, call }
--                                     those that a filter lets through, until
--                                     there are more than limit, or enough for
--                                     a page (server/records); call.cut is the
--                                     last name then, or nil
--   { scope, kind, name, more }       one record, and what more() then wants
local calls = require "perigee.control.server.call"
local graphs = require "perigee.control.server.graph"
local topologies = require "perigee.registry.topology"

local M = {}

local function one(scope, kind, name)
  return { scope = scope, kind = kind, name = name }
end

-- Agents, by name, with what they have reported.
local function add_agents(list, scope, peers)
  for name in pairs(peers) do
    list[#list + 1] = one(scope, "agents", name)
    list[#list + 1] = one(scope, "reports", name)
  end
  return list
end
jit.off(add_agents)

-- The answers to who writes or renews an agent's name have a header, which
-- tells of the topology and of the agent's report.
local function of_agent(call)
  if call.method ~= "PUT" and call.method ~= "POST" then
    return { one(call.scope, "agents", call.name) }
  end
  return add_agents({ one(call.scope, "topology", graphs.WANTED) },
                    call.scope, { [call.name] = true })
end

-- What is told of a topology tells of all agents that it names.
local function of_topology(call)
  local scope, wanted = call.scope, one(call.scope, "topology", graphs.WANTED)
  if call.name then
    return add_agents({ wanted }, scope, { [call.name] = true })
  elseif call.method == "PUT" then
    local value = calls.object(call)
    local fine = value and not topologies.wrong(value)
    return add_agents({ wanted }, scope,
                      fine and graphs.new(value).peers or {})
  end
  function wanted.more()
    local record = graphs.record(call.state, scope)
    return add_agents({}, scope,
                      record and graphs.of(call.state, record).peers or {})
  end
  return { wanted }
end

--- What a call asks for.
function M.of(call)
  local kind = call.kind
  if not call.scope or kind == "watch" then return {} end
  if kind == "topology" then return of_topology(call) end
  if kind == "regions" or kind == "services" then kind = "agents" end
  if kind == "agents" and call.name then return of_agent(call) end
  if call.name then return { one(call.scope, kind, call.name) } end
  local limit = calls.limit(call)
  if not limit then return {} end
  return { { scope = call.scope, kind = kind, filter = call.query,
             limit = limit, call = call } }
end

return M
