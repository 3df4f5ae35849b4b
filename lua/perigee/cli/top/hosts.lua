-- SPDX-License-Identifier: Apache-2.0
--- What `perigee top` shows: the agents of this host, or of one of its scopes,
-- as their stats files tell of them between two looks.
local native = require "perigee.native"
local host = require "perigee.stats.host"
local sample = require "perigee.stats.sample"

local M = {}

local Agents = {}
Agents.__index = Agents

local function look(self, path)
  local agent = self.by_path[path] or sample.new(path)
  if not agent:look() then return nil end
  local calls = agent.called + agent.served + agent.others
  agent.calls = calls
  return agent
end

-- Counts of receivers that were not ready, of all RDMA ports, a second.
local function look_at_nics(self)
  if not self.monitor then return end
  local now, delta = native.clock(), self.monitor:total_delta()
  self.rnr = delta and self.at and delta * 1e9 / (now - self.at)
  self.at = delta and self.monitor:snapshot() and now
end

--- Looks at all of them. Afterwards `list` has perigee.stats.sample's agents,
-- with `calls`, a second, and `rnr` how many receivers that were not ready the
-- RDMA ports of this host counted a second; nil: there is none, or it is the
-- first look.
function Agents:look()
  local list, by_path = {}, {}
  for _, scope in ipairs(self.scope and { self.scope }
                         or host.scopes(self.url)) do
    for _, path in ipairs(host.paths(self.url, scope)) do
      local agent = look(self, path)
      if agent then list[#list + 1], by_path[path] = agent, agent end
    end
  end
  look_at_nics(self)
  self.list, self.by_path = list, by_path
end

--- The agents of a scope, or of all if scope is nil. url: the registry's, or
-- nil.
function M.new(url, scope)
  return setmetatable({
    url = url, scope = scope, list = {}, by_path = {},
    monitor = require "perigee.engine.rnr_monitor".new(),
  }, Agents)
end

-- ---- As a document ----------------------------------------------------------

local RATES = { "calls", "called", "served", "others", "failures", "timeouts",
                "stalls", "sent", "received" }
local REST = { "name", "scope", "host", "pid", "program", "state", "memory",
               "sessions" }
local TIMES = { "p50", "p99", "called_p50", "called_p99", "served_p50",
                "served_p99" }

local function document_of(agent)
  local json = require "perigee.cli.json"
  local told = { transports = json.list(agent.transports),
                 interval = agent.seconds }
  for _, name in ipairs(REST) do told[name] = agent[name] end
  for _, name in ipairs(RATES) do
    told[name] = agent.seconds and agent[name]
  end
  for _, name in ipairs(TIMES) do
    told[name] = agent[name] and agent[name] / 1e9
  end
  return told
end

--- All that the last look found, for --json: times in seconds, numbers a
-- second.
function Agents:document()
  local list = require "perigee.cli.json".list {}
  for i, agent in ipairs(self.list) do list[i] = document_of(agent) end
  return { time = os.time(), scope = self.scope, rnr = self.rnr,
           agents = list }
end

return M
