-- SPDX-License-Identifier: Apache-2.0
--- Has an agent follow the topology of its scope, if its registry has one: it
-- connects to the agents that it is joined with, and reports its connections.
--
-- An agent that no topology names costs nothing: the registry's answers to its
-- renewals tell it when one does. From then on the agent watches the topology,
-- until the topology does not name it any more.
--
--   state       event                              becomes
--   idle        an answer says that it is named    following
--   following   the topology has changed           following, of other peers
--   following   it names the agent no more         idle
--   following   a stop                             idle; sessions stay
--   any         the agent's close                  over
--
-- A report has the peers whose state has changed since the last one. An answer
-- by which the registry has no report has all of them reported.
local asks = require "perigee.registry.ask"
local futures = require "perigee.runtime.future"
local joints = require "perigee.agent.joint"
local loop = require "perigee.runtime.loop"
local tasks = require "perigee.runtime.task"
local topologies = require "perigee.registry.topology"
local watches = require "perigee.registry.watch"

local M = {}

local GATHER = 0.05                     -- seconds in which changes are gathered
local AGAIN, LONGEST = 1, 30            -- seconds after a failure, doubling
local MOST = 100                        -- peers of a report

local Topology = {}
Topology.__index = Topology

local all = setmetatable({}, { __mode = "k" })

-- ---- Reporting -------------------------------------------------------------

-- Takes some of the peers that are to be reported: a list of their reports.
local function take_some(topology)
  local some = {}
  for peer in pairs(topology.dirty) do
    if #some == MOST then break end
    local joint = topology.joints[peer]
    topology.dirty[peer] = nil
    if joint then some[#some + 1] = joint:report() end
  end
  return some
end
jit.off(take_some)

local function mark(topology, reports)
  for _, each in ipairs(reports) do topology.dirty[each.name] = true end
end

-- Errors after which the agent's lease hears what has to be reported.
local LOST = { not_found = true, name_taken = true }

local function report(topology)
  local pause = AGAIN
  tasks.sleep(GATHER)
  while topology:is_live() do
    local some = take_some(topology)
    if not some[1] then break end
    local future = topology.registry:report(topology.claim.held, some)
    loop.wait(future, math.huge)
    local fine, kind = futures.results(future)
    if not fine then
      if LOST[kind] then break end
      mark(topology, some)
      tasks.sleep(pause)
      pause = math.min(pause * 2, LONGEST)
    end
  end
  topology.reporting = false
end

--- Has the state of a peer reported soon.
function Topology:changed(peer)
  self.dirty[peer] = true
  if self.reporting or not self:is_live() then return end
  self.reporting = true
  tasks.spawn(report, self)
end

-- ---- Peers -----------------------------------------------------------------

--- May tasks go on?
function Topology:is_live()
  return not self.over and self.agent.engine.handle
end

--- Has a watch told that somebody has this name?
function Topology:knows(peer)
  return self.watch and self.watch.known[peer] ~= nil
end

-- Watches the names of the scope, as long as there is somebody to dial.
local function watch(topology)
  if topology.watch then return end
  local agent = topology.agent
  topology.watch = watches.new(topology.registry, agent.scope, {},
    function(change)
      local joint = topology.joints[change.entry.name]
      if joint and joint.dials then joint:heard(change.kind == "down") end
    end) or false
  if topology.watch then agent.watches[topology.watch] = true end
end

local function unwatch(topology)
  if topology.watch then topology.watch:close() end
  topology.watch = false
end

local function drop(topology, peer, stays)
  local joint = topology.joints[peer]
  topology.joints[peer], topology.dirty[peer] = nil, nil
  joint:close(stays)
end

-- Notes the sessions that agents had opened before they were to.
local function note_arrived(topology)
  for _, session in pairs(topology.agent.engine.sessions) do
    topology:named(session)
  end
end
jit.off(note_arrived)

-- Joins the agent with exactly those peers.
local function join(topology, wanted)
  local dials = false
  for peer, joint in pairs(topology.joints) do
    if wanted[peer] ~= joint.dials then drop(topology, peer) end
  end
  for peer, first in pairs(wanted) do
    dials = dials or first
    if first then watch(topology) end
    topology.joints[peer] = topology.joints[peer]
      or joints.new(topology, peer, first)
  end
  if not dials then unwatch(topology) end
  note_arrived(topology)
end
jit.off(join)

--- Notes a session by which a peer has told its name.
function Topology:named(session)
  local joint = session.accepted and session.peer
    and self.joints[session.peer]
  if joint and not joint.dials then joint:add(session) end
end

-- ---- Following -------------------------------------------------------------

local function newest(answer)
  local list = answer.entries or answer.changes
  local last = list[#list]
  if answer.changes then last = last and last.entry end
  return last
end

local function follow(topology)
  local from
  repeat
    local future = asks.ask(topology.registry, "topology",
                            topology.agent.scope, from)
    topology.asked = future
    loop.wait(future, math.huge)
    if not topology:is_live() then return end
    local answer = futures.results(future)
    if answer then
      from = answer.revision
      local value = newest(answer)
      join(topology, value
           and topologies.joined(value, topology.agent.name) or {})
    else
      tasks.sleep(AGAIN)
    end
  until from and not next(topology.joints) or not topology:is_live()
  topology.following = false
end

local function told(topology, word)
  if not topology:is_live() then return end
  if word == "unreported" then
    for peer in pairs(topology.joints) do topology:changed(peer) end
  end
  if topology.following then return end
  topology.following = true
  tasks.spawn(follow, topology)
end
jit.off(told)

--- Has agent follow what its registry says, in which it has its name by claim
-- (agent/lease).
function M.begin(agent, claim)
  local registry = claim.registry
  if registry.follows ~= true or agent.follows == false then return end
  local topology = setmetatable({
    agent = agent, registry = registry, claim = claim, joints = {}, dirty = {},
    following = false, reporting = false, watch = false, asked = false,
    over = false }, Topology)
  all[topology], agent.topology = true, topology
  topology:hear()
end

--- Hears what is told beside the answers to what holds the name now.
function Topology:hear()
  local held = self.claim.held
  held.told = function(word) told(self, word) end
  if held.topology then told(self, held.topology) end
end

-- Forgets all, sessions excepted.
local function rewind(topology)
  for peer in pairs(topology.joints) do drop(topology, peer, true) end
  unwatch(topology)
  topology.dirty = {}
  topology.following, topology.reporting = false, false
end
jit.off(rewind)

--- Ends it, with its agent.
function Topology:close()
  self.over, self.claim.held.told = true, false
  rewind(self)
  if self.asked and not self.asked.ended then self.asked:cancel() end
end

-- Tasks are not resumed after a stop; the next answer begins anew.
loop.dropped[#loop.dropped + 1] = function()
  for topology in pairs(all) do rewind(topology) end
end

return M
