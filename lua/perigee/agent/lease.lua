-- SPDX-License-Identifier: Apache-2.0
--- Tells the registry about an agent, and keeps the agent's name there.
--
--   state     event                                 becomes
--   quiet     something of the agent has changed    due, at once
--   quiet     a third of the registry's ttl is over due
--   due       the loop's next turn                  asking
--   asking    the answer                            quiet, or due if more has
--                                                   changed meanwhile
--   asking    the name is renewed, the entry        as by an answer; refused:
--             refused                               the entry is sent again at
--                                                   the next renewal, or if it
--                                                   is too large when it has
--                                                   changed
--   asking    no answer in half the ttl, or 30 s    due, at once
--   asking    any error but name_taken              quiet, due after a ninth
--                                                   of the ttl, or a second;
--                                                   `timeout`: counted from
--                                                   when it was asked
--   each      the time is over                      the same, but lost
--   lost and  the registry gives the name again     quiet, and held
--   asking
--   any       another has the name                  taken
--   any       the agent's close, or its engine's    over
--
-- The time of a name in a registry with a ttl is over when KEPT of the ttl has
-- passed since the last renewal that was answered was asked for. The registry
-- counts from later on, so it gives the name to nobody before that, and the
-- rest is for saying so. A lost name is asked for anew, as at first, because
-- others may have had it since.
--
-- It runs on the loop without a task, so that a stop does not end it.
local asks = require "perigee.registry.ask"
local errors = require "perigee.runtime.errors"
local folder = require "perigee.registry.folder"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local machine = require "perigee.registry.machine"
local native = require "perigee.native"
local outside = require "perigee.agent.outside"
local regions = require "perigee.memory.region"
local registries = require "perigee.registry"
local signals = require "perigee.runtime.signal"
local timers = require "perigee.runtime.timers"

local C = native.C

local M = {}

local RETRY = 1                         -- seconds, if there is no ttl
local KEPT = 0.9                        -- of a ttl, for which a name is ours
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
    told[name] = regions.told(region)
  end
  return told
end
jit.off(regions_of)

local function addresses_of(agent)
  local list = { agent.address }
  for _, address in ipairs(agent.advertise or agent.addresses) do
    outside.append(list, address)
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
           state = agent.leaving and "draining" or "up",
           metadata = agent.metadata, weight = agent.weight,
           since = (loop.now() - agent.since) * 1e-9 }
end

-- ---- Telling ---------------------------------------------------------------

local Lease = {}
Lease.__index = Lease

local function ttl_of(lease)
  local ttl = lease.registry.ttl
  return type(ttl) == "number" and ttl or nil
end

local function after(lease, seconds)
  timers.remove(lease.timer)
  lease.timer.ended = false
  lease.timer.at = loop.now() + seconds * 1e9
  timers.add(lease.timer)
end

-- A third of the ttl, give or take a tenth, so that agents that began together
-- do not renew together. nil if there is no ttl.
local function pause(lease)
  local ttl = ttl_of(lease)
  return ttl and ttl / 3 * (0.9 + loop.now() % 1009 / 1009 * 0.2)
end

local function doing_of(lease)
  return ("keeping the name %s in scope %s"):format(lease.agent.name,
                                                    lease.agent.scope)
end

-- ---- The time of a name ----------------------------------------------------

-- Seconds for which the name is certainly ours; at most 0: it may be another's.
local function left(lease)
  return (lease.ends - native.uptime()) * 1e-9
end

-- Has the end looked for at the time it may come.
local function await_end(lease)
  timers.remove(lease.final)
  if lease.ends == math.huge then return end
  lease.final.ended = false
  lease.final.at = loop.now() + math.max(0, left(lease)) * 1e9
  timers.add(lease.final)
end

-- Counts from a renewal that was asked for at a time and is answered.
local function count_from(lease, asked)
  local ttl = ttl_of(lease)
  lease.ends = ttl and asked + KEPT * ttl * 1e9 or math.huge
  await_end(lease)
end

-- Another agent has the name: it was taken from one that drains, or that the
-- registry had not heard of.
local function taken(lease, err)
  lease:close()
  lease.lost = true
  lease.ended(lease.agent, err, true)
end

local function lose(lease)
  lease.lost = true
  local ttl, why = ttl_of(lease), lease.err
  lease.ended(lease.agent, errors.new(why and why.kind or "timeout",
    ("the name %s in scope %s is lost: no renewal of its %g s was answered "
     .. "in time%s"):format(lease.agent.name, lease.agent.scope, ttl,
                           why and " (" .. why.message .. ")" or ""), false))
end

-- The end's timer.
local function finish(lease)
  if lease.over or lease.lost then return end
  if left(lease) > 0 then return await_end(lease) end
  lose(lease)
  local future = lease.asked
  if future then                        -- a renewal, which says nothing now
    lease.asked = false
    timers.remove(lease.limit)
    future:cancel()
  end
  after(lease, 0)
end

-- ---- Answers ---------------------------------------------------------------

-- Seconds that the registry may take for an answer. Then enough of a ttl is
-- left to ask once more.
local function patience(lease)
  local ttl = ttl_of(lease)
  return ttl and ttl / 2 or registries.patience
end

-- A registry without a ttl that cannot renew keeps what it was told at first.
local QUIET = { unsupported = true, no_method = true }

-- Seconds since the registry was asked.
local function waited(lease) return (loop.now() - lease.asked_at) * 1e-9 end

local function failed(lease, err)
  if err.kind == "name_taken" then return taken(lease, err) end
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

-- Notes an answer by which the name was ours when it was asked for; held: what
-- has been given, if the name was lost. Is the name ours still?
local function confirmed(lease, held)
  if lease.lost then lease.claim.held = held end
  count_from(lease, lease.asked_since)
  if left(lease) <= 0 then return false end
  if lease.lost then
    lease.lost = false
    -- The name was asked for with an older entry.
    lease.dirty = lease.dirty or lease.refused and true or false
    lease.regained(lease.agent, held)
  end
  return true
end

-- Notes whether the registry has taken the entry that it was sent, or refused
-- it with err. The registry keeps the entry before a refused one, and the agent
-- asks for that entry if it loses the name.
local function note_entry(lease, err)
  if not lease.sent then return end
  if err and not lease.refused then log.write("error", tostring(err)) end
  lease.refused = err
  if not err then lease.accepted = lease.sent end
end

-- Is there an entry to send, beside a renewal?
local function has_news(lease)
  local err = lease.refused
  return lease.dirty or err and err.kind ~= "too_large"
end

local function succeeded(lease)
  if lease.err then log.write("warning", "the registry has answered again") end
  lease.err = false
  log.note("debug", lease.agent, "%s: it is renewed%s", doing_of(lease),
           lease.sent and ", with a new entry" or "")
  local seconds = lease.dirty and 0 or pause(lease)
  if seconds then after(lease, seconds) end
end

local function heard(lease, future)
  if lease.asked ~= future then return end -- it was given up
  lease.asked = false
  timers.remove(lease.limit)
  if lease.over then return end
  local was_lost, fine, kind, why = lease.lost, asks.results(future)
  local refused = fine == true and not was_lost and type(kind) == "string"
  if fine and confirmed(lease, fine) then
    note_entry(lease, refused and asks.failure(doing_of(lease), kind, why))
    return succeeded(lease)
  end
  if fine then
    kind, why = "timeout", "its answer came after the name's time"
  elseif kind == nil then
    kind = lease.lost and "name_taken" or "not_found"
  end
  failed(lease, asks.failure(doing_of(lease), kind, why))
end

-- Gives up an answer that does not come.
local function silent(lease)
  local future = lease.asked
  if not future or lease.over then return end
  lease.asked = false
  future:cancel()
  failed(lease, errors.new("timeout", doing_of(lease) .. ": "
    .. SILENT:format(patience(lease)), false))
end

local function limit(lease)
  lease.limit = signals.new(1, function() silent(lease) end)
  lease.limit.at = loop.now() + patience(lease) * 1e9
  timers.add(lease.limit)
end

-- Asks for a name that is lost, or renews one that is held.
local function ask(lease)
  if lease.lost then
    local entry = lease.refused and lease.accepted
      or lease.describe(lease.agent)
    lease.sent = entry
    return asks.ask(lease.registry, "hold", entry, entry.epoch)
  end
  lease.sent = has_news(lease) and lease.describe(lease.agent)
  return registries.renew(lease.registry, lease.claim.held,
                          lease.sent or nil)
end

-- An engine that was closed without its agent has nothing to tell any more. A
-- name's time goes on while the host sleeps, and the end's timer does not.
local function tell(lease)
  if not lease.agent.engine.handle then return lease:close() end
  if not lease.lost and left(lease) <= 0 then lose(lease) end
  if lease.over then return end
  lease.asked_at, lease.asked_since = loop.now(), native.uptime()
  local future = ask(lease)
  lease.asked, lease.dirty = future, false
  if future.ended then return heard(lease, future) end
  limit(lease)
  signals.attach(future, signals.new(1, function() heard(lease, future) end))
end

local function entry_of(agent) return M.entry(agent, agent.name) end
local function nothing() end

--- Returns the lease of a name that agent holds; it is renewed from now on.
--
--   claim      { registry, held }: what the registry has given, and gives
--              again; `entry`: for which
--   asked      when it was asked for (native.uptime)
--   describe(agent)            the entry of the name; default: the agent's
--                              under its own name
--   ended(agent, err, taken)   is called when it is lost; taken: for good, as
--                              another agent has it
--   regained(agent, held)      is called when it is held again
--
-- These are called on the loop, and must not wait.
function M.new(agent, claim, asked, more)
  local lease = setmetatable({ agent = agent, registry = claim.registry,
                               claim = claim, ended = more.ended or nothing,
                               describe = more.describe or entry_of,
                               regained = more.regained or nothing,
                               asked = false, asked_at = 0, asked_since = 0,
                               dirty = false, err = false, over = false,
                               sent = false, refused = false,
                               accepted = claim.entry or false,
                               lost = false, ends = math.huge,
                               timer = false, final = false, limit = {} },
                             Lease)
  lease.timer = signals.new(1, function()
    if not lease.over and not lease.asked then tell(lease) end
  end)
  lease.final = signals.new(1, function() finish(lease) end)
  count_from(lease, asked)
  local seconds = pause(lease)
  if seconds then after(lease, seconds) end
  return lease
end

--- Is the name the agent's now?
function Lease:is_held() return not self.lost and left(self) > 0 end

--- Tells the registry about the agent at once. Returns true; or nil and an
-- error. Only for registries that answer at once.
function Lease:now()
  local future = registries.renew(self.registry, self.claim.held,
                                  M.entry(self.agent, self.agent.name))
  if not future.ended then return true end
  local fine, kind, why = asks.results(future)
  if fine and kind == nil then return true end
  return nil, asks.failure("telling of " .. self.agent.name, kind, why)
end

--- Has the registry told soon that something of the agent has changed.
function Lease:changed()
  if self.over then return end
  self.dirty = true
  if not self.asked then after(self, 0) end
end

-- Releases a name that a registry gives later.
local function give_back(lease)
  local future = lease.asked
  if not lease.lost or not future then return end
  signals.attach(future, signals.new(1, function()
    local held = asks.results(future)
    if held then registries.release(lease.registry, held) end
  end))
end

function Lease:close()
  if not self.over then give_back(self) end
  self.over = true
  timers.remove(self.timer)
  timers.remove(self.final)
  timers.remove(self.limit)
end

return M
