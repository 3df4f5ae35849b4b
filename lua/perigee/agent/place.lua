-- SPDX-License-Identifier: Apache-2.0
--- An agent's name, and where it listens. It has a place on its host, a socket
-- in the folder, and listens at the addresses of its options besides. In the
-- folder its place is its name; where its name is in another registry, its
-- place has a name of its own, and its name is held last, when it listens.
local folder = require "perigee.registry.folder"
local leases = require "perigee.agent.lease"
local native = require "perigee.native"
local registries = require "perigee.registry"

local C = native.C

local M = {}

-- ---- Names -----------------------------------------------------------------

local made = 0

-- For what nobody has to find by name.
local ATTEMPTS = 10

local function epoch(engine) return C.perigee_epoch(engine.handle) end

--- A name that no other agent has.
function M.unique_name(engine)
  made = made + 1
  return ("%s%d-%d-%08x"):format(folder.ANONYMOUS, native.pid(), made,
    tonumber(epoch(engine) % 2 ^ 32))
end

-- Another agent that looks whether a new name is a dead one's holds it for a
-- moment; then it is another. Gives the name, and what the folder says of where
-- to listen.
local function hold(agent, registry, name, given)
  local held, address
  for _ = 1, ATTEMPTS do
    held, address = registries.hold(registry, leases.entry(agent, name))
    if held or given or address.kind ~= "name_taken" then break end
    name = M.unique_name(agent.engine)
  end
  if not held then return nil, address end
  agent.held[#agent.held + 1] = { registry = registry, held = held }
  return name, address, held
end

-- ---- Listening -------------------------------------------------------------

-- Listens at one address more. What the caller did wrong is returned as text.
local function listen_at(agent, address)
  local fine, listener, err = pcall(agent.engine.listen, agent.engine, address)
  if not fine then return nil, nil, listener end
  if not listener then return nil, err end
  listener.agent = agent                -- keeps what comes by it to itself
  return listener.address
end

local function listen_everywhere(agent, address, list)
  local err, misuse
  agent.address, err, misuse = listen_at(agent, address)
  if not agent.address then return nil, err, misuse end
  for i, each in ipairs(type(list) == "table" and list or { list }) do
    agent.addresses[i], err, misuse = listen_at(agent, each)
    if not agent.addresses[i] then return nil, err, misuse end
  end
  return true
end

-- ---- Both ------------------------------------------------------------------

local function go_by(agent, name)
  agent.name = name
  C.perigee_go_by(agent.engine.handle, name)
end

-- Takes a place of agent's own, which is its name where that is held in a
-- folder, and listens: the name and what is held.
local function settle_in(agent, list, elsewhere)
  local places = elsewhere and folder or agent.registry
  local wanted = elsewhere and M.unique_name(agent.engine) or agent.name
  local name, err, held = hold(agent, places, wanted,
                               not elsewhere and agent.named)
  if not name then return nil, err end
  go_by(agent, elsewhere and agent.name or name)
  local fine, misuse
  fine, err, misuse = listen_everywhere(agent, err, list)
  if not fine then return nil, err, misuse end
  return name, held
end

-- Where it listens is told as soon as it does.
local function told_at_once(agent, held)
  agent.lease = leases.new(agent, agent.registry, held)
  return agent.lease:now()
end

--- Takes agent's name and has it listen in its place and at the addresses of a
-- list: true, or nil, an error, and text of what the caller did wrong. Waits if
-- the registry is not a folder.
function M.take(agent, list)
  local elsewhere = not registries.has_places(agent.registry)
  local name, held, misuse = settle_in(agent, list, elsewhere)
  if not name then return nil, held, misuse end
  if not elsewhere then return told_at_once(agent, held) end
  local err
  name, err, held = hold(agent, agent.registry, agent.name, agent.named)
  if not name then return nil, err end
  if name ~= agent.name then go_by(agent, name) end
  agent.lease = leases.new(agent, agent.registry, held)
  return true
end

--- Gives back what was held, the last first.
function M.leave(agent)
  local held = agent.held
  agent.held = {}
  for i = #held, 1, -1 do registries.release(held[i].registry, held[i].held) end
end

return M
