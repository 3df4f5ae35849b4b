-- SPDX-License-Identifier: Apache-2.0
--- The topology of a scope as a control server's events tell it, and reports of
-- agents to that server.
local clients = require "perigee.registry.http.client"
local feeds = require "perigee.registry.http.feed"
local topologies = require "perigee.registry.topology"

local M = {}

local WANTED = "wanted"                 -- the name of the one record
local PATH = "/v1/scopes/%s/topology/%s?epoch=%s"

-- A value that the server sent, checked; nil if it is no topology.
local function trusted(value, scope, name)
  if type(value) ~= "table" or name ~= WANTED or topologies.wrong(value) then
    return nil
  end
  return { name = WANTED, scope = scope, edges = value.edges,
           mesh = value.mesh }
end

--- Begins to follow the topology of a scope.
function M.feed(client, scope)
  return feeds.new(client, scope, "?collection=topology&prefix=" .. WANTED,
                   trusted)
end

--- Tells the server of peers, a list of { name, state, seconds, why }. In a
-- task: true; or nil, a kind and why.
function M.report(control, held, peers)
  local text, failed = clients.encode { peers = peers }
  if not text then return nil, "protocol", failed end
  local path = PATH:format(clients.escape(held.scope),
                           clients.escape(held.name),
                           clients.escape(held.epoch))
  local fine, kind, why = control.client:ask("PATCH", path, text)
  if fine then return true end
  return nil, kind, why
end

return M
