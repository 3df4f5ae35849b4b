-- SPDX-License-Identifier: Apache-2.0
--- Takes an agent's name and has the agent listen. Each agent has a place on
-- its host, a socket in the folder, and listens at the addresses of its options
-- as well. The place has the agent's name if the agent's registry is the
-- folder. It has a generated name if the registry is another one. Then the
-- agent takes its own name last, when it listens. No request is read until the
-- agent has the name, so no call is served before; callers wait.
local fitting = require "perigee.agent.fitting"
local folder = require "perigee.registry.folder"
local leases = require "perigee.agent.lease"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local probe = require "perigee.agent.probe"
local registries = require "perigee.registry"
local tenures = require "perigee.agent.tenure"
local topologies = require "perigee.agent.topology"

local C = native.C

local M = {}

-- ---- Names -----------------------------------------------------------------

local made = 0

-- The number of names that are tried before the agent gives up.
local ATTEMPTS = 10

local function epoch(engine) return C.perigee_epoch(engine.handle) end

--- Returns a name that no other agent has.
function M.unique_name(engine)
  made = made + 1
  return ("%s%d-%d-%08x"):format(folder.ANONYMOUS, native.pid(), made,
    tonumber(epoch(engine) % 2 ^ 32))
end

-- May the name of a holder be taken?
local function gives_way(agent, holder)
  return holder.epoch and holder.state == "draining"
    or probe.is_dead(agent, holder)
end

-- Holds a name. A live holder keeps its name, unless it drains. A dead holder's
-- name is taken, if that holder still has it. Returns what is held, a folder's
-- address and when it was asked for; or nil and an error.
local function hold_from_other(agent, registry, entry)
  local asked = native.uptime()
  local held, err = registries.hold(registry, entry)
  local holder = not held and err.holder
  if holder and err.kind == "name_taken" and agent.address
    and gives_way(agent, holder) then
    asked = native.uptime()
    held, err = registries.hold(registry, entry, holder.epoch)
  end
  return held, err, asked
end

-- Holds a name. An agent that checks whether the holder of a generated name is
-- dead may hold that name for a moment; then another name is generated. Returns
-- the name, what the folder says of where to listen, the claim (agent/lease),
-- and when it was asked for; or nil and an error.
local function hold(agent, registry, name, given)
  local held, address, asked, entry
  for _ = 1, ATTEMPTS do
    entry = leases.entry(agent, name)
    held, address, asked = hold_from_other(agent, registry, entry)
    if held or given or address.kind ~= "name_taken" then break end
    name = M.unique_name(agent.engine)
  end
  if not held then return nil, address end
  local claim = { registry = registry, held = held, entry = entry }
  agent.claims[#agent.claims + 1] = claim
  return name, address, claim, asked
end

-- ---- Listening -------------------------------------------------------------

-- Listens at one more address. Returns the listener; or nil and an error; or
-- nil, nil and the text of the caller's mistake.
local function listen_at(agent, address)
  local fine, listener, err = pcall(agent.engine.listen, agent.engine, address)
  if not fine then return nil, nil, listener end
  if not listener then return nil, err end
  listener.agent = agent                -- takes the sessions that come by it
  return listener
end

local function listen_everywhere(agent, address, list)
  local listener, err, misuse = listen_at(agent, address)
  if not listener then return nil, err, misuse end
  C.perigee_listener_named(listener.handle)     -- its file goes with the name
  agent.address = listener.address
  for i, each in ipairs(type(list) == "table" and list or { list }) do
    listener, err, misuse = listen_at(agent, each)
    if not listener then return nil, err, misuse end
    agent.addresses[i] = listener.address
  end
  return true
end

-- ---- Both ------------------------------------------------------------------

local function go_by(agent, name)
  agent.name = name
  C.perigee_go_by(agent.engine.handle, name)
end

-- Takes the agent's place in the folder and listens. The place is its name if
-- that is held in a folder. Returns the name of the place and the claim; or
-- nil, an error and the text of the caller's mistake.
local function settle_in(agent, list, elsewhere)
  local places = elsewhere and folder or agent.registry
  local wanted = elsewhere and M.unique_name(agent.engine) or agent.name
  local name, err, claim = hold(agent, places, wanted,
                                not elsewhere and agent.named)
  if not name then return nil, err end
  go_by(agent, elsewhere and agent.name or name)
  local fine, misuse
  fine, err, misuse = listen_everywhere(agent, err, list)
  if not fine then return nil, err, misuse end
  return name, claim
end

-- Tells the registry at once where the agent listens.
local function told_at_once(agent, claim)
  agent.lease = leases.new(agent, claim, native.uptime(),
                           tenures.handlers)
  return agent.lease:now()
end

-- Takes the agent's name in a registry where no places are. Waits.
local function take_elsewhere(agent)
  local full = fitting.whole(agent)
  if full then return nil, full end
  local name, err, claim, asked = hold(agent, agent.registry, agent.name,
                                       agent.named)
  if not name then return nil, err end
  if name ~= agent.name then go_by(agent, name) end
  agent.lease = leases.new(agent, claim, asked, tenures.handlers)
  topologies.begin(agent, claim)
  return true
end

-- Has the agent's stats be in a file beside its socket (perigee.stats). An
-- agent whose file cannot be made goes on without, and says so once; its engine
-- has said so where files may not be that long.
local function publish(agent)
  local place = agent.address:match "^unix:(.*)%.sock$"
  if not agent.stats or not place then return end
  local handle = agent.engine.handle
  log.tell_level(agent.engine)
  local status = C.perigee_stats_publish(handle, place .. ".stats",
                                         agent.scope)
  if status < 0 and status ~= C.PERIGEE_TOO_LARGE then
    log.write("warning", ("%s goes on without a stats file: %s"):format(
      agent.name, native.detail(handle)))
  end
end

local function tell(agent)
  local addresses = { agent.address, unpack(agent.addresses) }
  log.note("info", agent, "%s has its name, and is at %s", agent,
           table.concat(addresses, " "))
end

--- Takes agent's name and has it listen in its place and at the addresses of
-- list. Returns true; or nil, an error and the text of the caller's mistake.
-- Waits if the registry is not a folder.
function M.take(agent, list)
  local elsewhere = not registries.has_places(agent.registry)
  local handle = agent.engine.handle
  C.perigee_withhold(handle, elsewhere)
  local name, claim, misuse = settle_in(agent, list, elsewhere)
  if not name then return nil, claim, misuse end
  publish(agent)
  if not elsewhere then
    tell(agent)
    return told_at_once(agent, claim)
  end
  local fine, err = true, nil
  if agent.named ~= false then fine, err = take_elsewhere(agent) end
  if not fine then
    C.perigee_drain(handle)     -- callers that wait go elsewhere without harm
    return nil, err
  end
  C.perigee_withhold(handle, false)
  tell(agent)
  return true
end

local PATIENCE = 0.2                    -- seconds

--- Releases a name that is not in a folder, before the agent ends, while it can
-- still tell the registry. Waits a moment for that, if it may wait. Nothing is
-- sent when the Lua state ends; the registry finds out by itself.
function M.resign(agent)
  local last = agent.claims[#agent.claims]
  if not last or registries.has_places(last.registry)
    or not agent.engine.handle then
    return
  end
  agent.claims[#agent.claims] = nil
  if loop.state.leaving then return end
  local future = registries.release(last.registry, last.held)
  if not future.ended and not loop.state.pinned then
    loop.wait(future, loop.deadline(PATIENCE))
  end
end

--- Releases all else that the agent holds, the last first.
function M.leave(agent)
  local claims = agent.claims
  agent.claims = {}
  for i = #claims, 1, -1 do
    registries.release(claims[i].registry, claims[i].held)
  end
end

return M
