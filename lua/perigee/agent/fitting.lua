-- SPDX-License-Identifier: Apache-2.0
-- Checks that an agent's entry still fits into its registry with one more
-- region or service, before that is added. Otherwise only the registry would
-- refuse the entry, the entry before would stay, and nobody would find what is
-- new.
local entries = require "perigee.registry.entry"
local errors = require "perigee.runtime.errors"
local leases = require "perigee.agent.lease"
local registries = require "perigee.registry"

local M = {}

local SPARE = 1024                      -- bytes for what changes by itself

--- The counts of an agent's entry: nothing yet.
function M.new() return { base = false, sum = 0 } end

-- All but the services and regions, which is the same once it listens.
local function base_of(agent)
  local fitted = agent.fitted
  if not agent.address then return 0 end
  if not fitted.base then
    local entry = leases.entry(agent, agent.name)
    entry.services, entry.regions = {}, {}
    fitted.base = entries.size(entry) + SPARE
  end
  return fitted.base
end

-- Bytes that the registry takes, as far as it has said.
local function most_of(registry)
  local most = registry.entry_limit
  return type(most) == "number" and math.min(most, entries.MOST)
    or entries.MOST
end

--- Counts what name and value add to the entry; or, with a sign of -1, what
-- they added.
function M.count(agent, sign, name, value)
  local fitted = agent.fitted
  fitted.sum = fitted.sum + sign * (entries.size(name) + entries.size(value))
end

local function refusal(agent, doing, more)
  local size = base_of(agent) + agent.fitted.sum + more
  local most = most_of(agent.registry)
  if size <= most then return nil end
  return errors.new("too_large", ("%s: the entry of %s would have up to %d "
    .. "bytes, and %s takes %d; give no name to regions that nobody finds by "
    .. "theirs, give shorter names, or have another agent have some")
    :format(doing, agent.name, size,
            registries.shown(agent.registry, agent.scope), most), false)
end

--- Does a registry have an entry of the agent, or will one?
function M.is_told(agent)
  return agent.named ~= false or agent.lease ~= false
end

--- Nil if name and value may be added; or the error of doing that.
function M.refusal(agent, doing, name, value)
  if not M.is_told(agent) then return nil end
  return refusal(agent, doing, entries.size(name) + entries.size(value))
end

--- Nil if what there is may be told; or the error of taking the name.
function M.whole(agent)
  return refusal(agent, ("taking the name %s in scope %s"):format(agent.name,
    agent.scope), 0)
end

return M
