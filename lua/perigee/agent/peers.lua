-- SPDX-License-Identifier: Apache-2.0
--- Finds the peers of an agent's links: by an address that was given, or by a
-- name that is looked up in the agent's registry before each dial.
--
-- A way is a table: `near`, whether trying again costs next to nothing;
-- find(link) returns the future of an entry (registry/init.lua); watched(link)
-- an entry that need not be looked up, or nil; last(link) the last one known,
-- or nil; watch(link, f) begins a watch of its name (these three only where
-- names are in a registry that is no folder); expect(link), the name that the
-- other side must have, if any; explain(link, err), what the program is told of
-- an error of dialling; refused(link, raised) returns or raises the error of an
-- address that is not valid.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local known = require "perigee.agent.known"
local links = require "perigee.link"
local loop = require "perigee.runtime.loop"
local registries = require "perigee.registry"
local signals = require "perigee.runtime.signal"
local watches = require "perigee.registry.watch"

local M = {}

-- ---- By address ------------------------------------------------------------

-- Tells whether peer is an address. No name has a slash or an @ in it.
local function is_address(peer)
  return peer:find("^tcp://") or peer:find("^unix:.*[/@]")
end

local function given(link)
  return futures.done { addresses = { link.peer } }
end

local function as_it_is(_, err) return err end
local function anybody() return nil end
local function misuse(_, raised) error(raised, 0) end

local BY_PATH = { near = true, find = given, expect = anybody,
                  explain = as_it_is, refused = misuse }
local BY_HOST = { near = false, find = given, expect = anybody,
                  explain = as_it_is, refused = misuse }

-- ---- By name ---------------------------------------------------------------

local function looked_up(link)
  return registries.lookup(link.agent.registry, link.agent.scope, link.peer)
end

-- Looks up, and notes what the registry answers.
local function look_up(link)
  local found = looked_up(link)
  signals.attach(found, signals.new(1, function()
    local entry, err = futures.results(found)
    if entry or err.kind == "not_found" then
      known.note(link.agent, link.peer, entry)
    end
  end))
  return found
end

local function watched(link) return known.watched(link.agent, link.peer) end
local function last(link) return known.last(link.agent, link.peer) end

local function watch(link, f)
  local agent = link.agent
  local made = watches.new(agent.registry, agent.scope, { prefix = link.peer },
                           f)
  if made then agent.watches[made] = true end
  return made
end

local ABSENT = { peer_lost = true, not_found = true }

-- Returns the error of dialling a name in the folder. A dead agent's socket may
-- still be there, so a peer that does not answer is a name that nobody has.
local function no_such_name(link, err)
  if not ABSENT[err.kind] then return err end
  return registries.nobody(link.agent.registry, link.agent.scope,
                           link.peer)
end

local function at(link, kind, why)
  return errors.new(kind, ("connecting to %s: its registry has it at %s%s")
    :format(link.peer, link.address, why), false)
end

local function not_there(link, err)
  if not ABSENT[err.kind] then return err end
  return at(link, "not_found", ", where nobody listens")
end

local function no_address(link, raised)
  return at(link, "protocol", ": " .. raised:gsub("^[^:]*:%d+: ", ""))
end

local function name(link) return link.peer end

local IN_FOLDER = { near = true, find = looked_up, expect = name,
                    explain = no_such_name, refused = no_address }
local IN_REGISTRY = { near = false, find = look_up, watched = watched,
                      last = last, watch = watch, expect = name,
                      explain = not_there, refused = no_address }

-- ---- Both ------------------------------------------------------------------

local function way(agent, peer)
  if is_address(peer) then
    return peer:find "^unix:" and BY_PATH or BY_HOST
  end
  return registries.has_places(agent.registry) and IN_FOLDER or IN_REGISTRY
end

local function peer_name(value)
  if type(value) == "string" and is_address(value) then return end
  local wanted = check.name(value)
  if wanted then return wanted .. ", or an address (tcp://... or unix:/...)" end
end

--- The check of a peer, a name or an address.
M.check = peer_name

--- Returns the link of agent to peer for what keeps a session without a program
-- that has asked for one (agent/joint.lua).
function M.kept(agent, peer)
  local link = agent.peers[peer] or links.new(agent, peer, way(agent, peer))
  agent.peers[peer] = link
  return link
end

--- Returns the link of agent to peer, a name or an address, for the program; or
-- nil and an error if the agent was closed. Raises misuse at level.
function M.link(agent, peer, level)
  check.value(peer, peer_name, "an agent's name", level + 1)
  loop.check_wait(level + 1)
  local gone = agent.engine:gone("connecting to " .. peer)
  if gone then return nil, gone end
  local link = M.kept(agent, peer)
  link.asked = true
  return link
end

return M
