-- SPDX-License-Identifier: Apache-2.0
--- Tells the registry about an agent, and keeps the agent's name there.
--
--   state     event                                 becomes
--   quiet     something of the agent has changed    due, at once
--   quiet     a third of the registry's ttl is over due
--   due       the loop's next turn                  asking
--   asking    the answer                            quiet, or due if more has
--                                                   changed meanwhile
--   asking    another has the name                  lost
--   asking    no answer in half the ttl, or 30 s    due, at once
--   asking    any other error                       quiet, due after a ninth
--                                                   of the ttl, or a second;
--                                                   `timeout`: counted from
--                                                   when it was asked
--   any       the agent's close, or its engine's    lost
--
-- It runs on the loop without a task, so that a stop does not end it.
local asks = require "perigee.registry.ask"
local errors = require "perigee.errors"
local folder = require "perigee.registry.folder"
local log = require "perigee.log"
local loop = require "perigee.loop"
local machine = require "perigee.registry.machine"
local native = require "perigee.native"
local registries = require "perigee.registry"
local signals = require "perigee.signal"
local timers = require "perigee.timers"

local C = native.C

local M = {}

local RETRY = 1                         -- seconds, if there is no ttl
local SILENT = "the registry has not answered within %g s"

-- ---- What it is ------------------------------------------------------------

local function services_of(agent)
  local versions = {}
  for name, service in pairs(agent.services) do
    versions[name] = service.version
  end
  return versions
end
jit.off(services_of)

local function regions_of(engine)
  local told = {}
  for name, region in pairs(engine.regions) do
    told[name] = { length = region.length, access = region.access }
  end
  return told
end
jit.off(regions_of)

-- Returns an address for other hosts: one that stands for all addresses of this
-- host is replaced by the host's name.
local function reachable(address)
  local port = address:match "^tcp://0%.0%.0%.0:(%d+)$"
    or address:match "^tcp://%[::%]:(%d+)$"
  return port and ("tcp://%s:%s"):format(folder.system.host(), port) or address
end

local function addresses_of(agent)
  local list = { agent.address }
  for _, address in ipairs(agent.advertise or agent.addresses) do
    list[#list + 1] = reachable(address)
  end
  return list
end

--- Returns the registry's entry of an agent under name.
function M.entry(agent, name)
  local engine = agent.engine
  return { name = name, scope = agent.scope, kind = agent.kind,
           host = folder.system.host(), pid = native.pid(),
           machine = machine.identity(),
           epoch = ("%016x"):format(C.perigee_epoch(engine.handle)),
           addresses = addresses_of(agent), services = services_of(agent),
           regions = regions_of(engine),
           state = engine.draining and "draining" or "up",
           metadata = agent.metadata, weight = agent.weight,
           since = (loop.now() - agent.since) * 1e-9 }
end

-- ---- Telling ---------------------------------------------------------------

local Lease = {}
Lease.__index = Lease

local function after(lease, seconds)
  timers.remove(lease.timer)
  lease.timer.ended = false
  lease.timer.at = loop.now() + seconds * 1e9
  timers.add(lease.timer)
end

-- A third of the ttl, give or take a tenth, so that agents that began together
-- do not renew together. nil if there is no ttl.
local function pause(lease)
  local ttl = lease.registry.ttl
  if type(ttl) ~= "number" then return nil end
  return ttl / 3 * (0.9 + loop.now() % 1009 / 1009 * 0.2)
end

-- Another agent takes the name of one that drains.
local function lost(lease, err)
  lease:close()
  if lease.agent.engine.draining then return end
  log.write("error", tostring(err) .. "; this agent goes on without it")
end

-- Seconds that the registry may take for an answer. Then enough of a ttl is
-- left to ask once more.
local function patience(lease)
  local ttl = lease.registry.ttl
  return type(ttl) == "number" and ttl / 2 or registries.patience
end

-- A registry without a ttl that cannot renew keeps what it was told at first.
local QUIET = { unsupported = true, no_method = true }

-- Seconds since the registry was asked.
local function waited(lease) return (loop.now() - lease.asked_at) * 1e-9 end

local function failed(lease, err)
  if err.kind == "name_taken" then return lost(lease, err) end
  local again = pause(lease)
  if QUIET[err.kind] and not again then return lease:close() end
  lease.dirty = true
  if not loop.state.stopping then               -- else the stop ended the task
    if not lease.err then log.write("warning", tostring(err)) end
    lease.err = err
  end
  local seconds = again and again / 3 or RETRY
  if err.kind == "timeout" then seconds = seconds - waited(lease) end
  after(lease, math.max(0, seconds))
end

local function heard(lease, future)
  if lease.asked ~= future then return end -- it was given up
  lease.asked = false
  timers.remove(lease.limit)
  if lease.over then return end
  local fine, kind, why = asks.results(future)
  if not fine then
    return failed(lease, asks.failure(("keeping the name %s in scope %s")
      :format(lease.agent.name, lease.agent.scope), kind or "not_found", why))
  end
  if lease.err then log.write("warning", "the registry has answered again") end
  lease.err = false
  local seconds = lease.dirty and 0 or pause(lease)
  if seconds then after(lease, seconds) end
end

-- Gives up an answer that does not come.
local function silent(lease)
  local future = lease.asked
  if not future or lease.over then return end
  lease.asked = false
  future:cancel()
  failed(lease, errors.new("timeout", ("keeping the name %s in scope %s: ")
    :format(lease.agent.name, lease.agent.scope)
    .. SILENT:format(patience(lease)), false))
end

local function limit(lease)
  lease.limit = signals.new(1, function() silent(lease) end)
  lease.limit.at = loop.now() + patience(lease) * 1e9
  timers.add(lease.limit)
end

-- An engine that was closed without its agent has nothing to tell any more.
local function tell(lease)
  local agent = lease.agent
  if not agent.engine.handle then return lease:close() end
  local entry = lease.dirty and lease.describe(agent) or nil
  lease.dirty = false
  local asked_at = loop.now()
  local future = registries.renew(lease.registry, lease.held, entry)
  lease.asked, lease.asked_at = future, asked_at
  if future.ended then return heard(lease, future) end
  limit(lease)
  signals.attach(future, signals.new(1, function() heard(lease, future) end))
end

local function entry_of(agent) return M.entry(agent, agent.name) end

--- Returns the lease of the name that agent holds; it is renewed from now on.
-- describe(agent) returns the entry of the name; default: that of the agent
-- under its own name.
function M.new(agent, registry, held, describe)
  local lease = setmetatable({ agent = agent, registry = registry, held = held,
                               describe = describe or entry_of,
                               asked = false, asked_at = 0, dirty = false,
                               err = false, over = false,
                               timer = false, limit = {} }, Lease)
  lease.timer = signals.new(1, function()
    if not lease.over and not lease.asked then tell(lease) end
  end)
  local seconds = pause(lease)
  if seconds then after(lease, seconds) end
  return lease
end

--- Tells the registry about the agent at once. Returns true; or nil and an
-- error. Only for registries that answer at once.
function Lease:now()
  local future = registries.renew(self.registry, self.held,
                                  M.entry(self.agent, self.agent.name))
  if not future.ended then return true end
  local fine, kind, why = asks.results(future)
  if fine then return true end
  return nil, asks.failure("telling of " .. self.agent.name, kind, why)
end

--- Has the registry told soon that something of the agent has changed.
function Lease:changed()
  if self.over then return end
  self.dirty = true
  if not self.asked then after(self, 0) end
end

function Lease:close()
  self.over = true
  timers.remove(self.timer)
  timers.remove(self.limit)
end

return M
