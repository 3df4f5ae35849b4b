-- SPDX-License-Identifier: Apache-2.0
--- Deaths of peers, for the watches of an agent. A registry with a TTL tells of
-- a holder's death when the TTL is over. An agent that has a session with the
-- holder knows more: the session ends at once. It may have ended for another
-- reason, so the holder's address is dialled (agent/probe.lua).
--
--   a name     event                                       becomes
--   there      a session with that life of its holder      doubted
--              was lost
--   doubted    nobody listens there, or another life       dead: "down" is told
--   doubted    that life answers; nobody answers, thrice   there
--   dead       the registry has it no more, or of another  over
--              life
--   dead       its entry has changed, or is there after    there: "up" is told
--              a TTL, and its address does not refuse
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local probe = require "perigee.agent.probe"
local registries = require "perigee.registry"
local tasks = require "perigee.runtime.task"

local M = {}

-- Seconds before each look. A process that dies may close the session before it
-- stops listening.
local PAUSES = { 0, 0.05, 0.5 }

local function pause(seconds)
  loop.wait(futures.new(), loop.deadline(seconds))
end

-- The entry of the life in session that a watch knows of, or nil.
local function known_of(agent, epoch)
  for watch in pairs(agent.watches) do
    for _, entry in pairs(watch.known) do
      if entry.epoch == epoch then return entry end
    end
  end
end
jit.off(known_of)

-- Calls a method of all of the agent's watches with an entry.
local function tell(agent, method, entry)
  local list = {}
  for watch in pairs(agent.watches) do list[#list + 1] = watch end
  for _, watch in ipairs(list) do watch[method](watch, entry) end
end
jit.off(tell)

local function is_dead(agent, entry)
  for _, seconds in ipairs(PAUSES) do
    if seconds > 0 then pause(seconds) end
    local dead, lives = probe.is_dead(agent, entry)
    if dead or lives or not agent.engine.handle then return dead end
  end
  return false
end

-- The entry that the registry has of the same life; nil if it has none; or nil
-- and an error if it does not answer.
local function still(agent, entry)
  local found, err = registries.lookup(agent.registry, agent.scope,
                                       entry.name):wait()
  if found and found.epoch == entry.epoch then return found end
  return nil, not found and err.kind ~= "not_found" and err or nil
end

-- Waits until the registry has no entry of that life any more, or until the
-- holder turns out to live.
local function follow(agent, entry)
  repeat
    pause(agent.registry.ttl)
    if not agent.engine.handle then return end
    local found, err = still(agent, entry)
    if not found and not err then return end
    if found and not probe.is_dead(agent, entry) then
      return tell(agent, "restore", found)
    end
  until not agent.engine.handle
end

local function doubt(agent, entry)
  if is_dead(agent, entry) then
    tell(agent, "bury", entry)
    follow(agent, entry)
  end
  agent.doubted[entry.epoch] = nil
end

--- Notes that a session of an agent was lost. Called in the loop.
function M.note(agent, session)
  if registries.has_places(agent.registry) then return end
  if type(agent.registry.ttl) ~= "number" then return end
  local epoch, generation = session.epoch, loop.state.generation
  if agent.doubted[epoch] == generation then return end
  local entry = known_of(agent, epoch)
  if not entry then return end
  agent.doubted[epoch] = generation     -- a stop drops the task
  tasks.spawn(doubt, agent, entry)
end

return M
