-- SPDX-License-Identifier: Apache-2.0
-- Agent:mesh and Agent:rendezvous: agents that wait for each other.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local links = require "perigee.link"
local loop = require "perigee.runtime.loop"
local peers = require "perigee.agent.peers"
local rendezvous = require "perigee.agent.rendezvous"
local tasks = require "perigee.runtime.task"

local M = {}

local TIMEOUT = 30                      -- seconds, where none is given
local MOST = 4                          -- reasons that a message tells

local function names_of(value)
  if type(value) ~= "table" then return "a list of agents' names" end
  for i = 1, #value do
    local wrong = peers.check(value[i])
    if wrong then return "a list of agents' names, each " .. wrong end
  end
end

local function count(value)
  if not check.is_count(value) or value < 1 or value > 65536 then
    return "an integer of 1 to 65536"
  end
end

-- ---- Mesh ------------------------------------------------------------------

-- Dials each; futures by place in the list.
local function all_dialled(agent, names, deadline)
  local asked = {}
  for i, name in ipairs(names) do
    local link = peers.link(agent, name, 3)
    asked[i] = tasks.spawn(function()
      local session, err = link:reach(deadline, deadline)
      return session or nil, err
    end)
  end
  return asked
end

-- Does an error say that the peer will not come?
local function is_final(err)
  return err and (not links.PASSING[err.kind] or err.kind == "closed")
end

-- The error of those who did not come in time: { name, error or nil }.
local function missing(names, late)
  local parts, some = {}, {}
  for i, each in ipairs(late) do
    some[i] = each[1]
    if i <= MOST then
      parts[i] = each[2] and each[2].message
        or ("connecting to %s: no answer in time"):format(each[1])
    end
  end
  return errors.new("timeout", ("meshing %d agents: %d of %d came in time, "
    .. "without %s (%s)"):format(#names, #names - #late, #names,
      table.concat(some, ", "), table.concat(parts, "; ")), false)
end

-- ---- Both ------------------------------------------------------------------

--- Adds these methods to the class of agents.
function M.add(Agent)

--- Connects to several agents, and waits for those that are not there yet. All
-- are dialled at once; where there is a session, that one is used.
-- @function Agent:mesh
-- @tparam table names a list of names or addresses, as for `Agent:session`; it
-- may have this agent's own
-- @tparam[opt=30] number timeout seconds for all
-- @treturn table the sessions, by place in the list and by name; or nil and an
--   error
-- @errors `timeout`: an agent was not there in time; those of `Agent:session`,
--   but `not_found`
-- @waits yes
-- @usage
-- local all = assert(agent:mesh({ "worker:0", agent.name }, 5))
-- print(all[1] == all["worker:0"], all[1].peer)           --> true worker:0
-- print(select(2, agent:mesh({ "nobody" }, 0.01)).kind)        --> timeout
function Agent:mesh(names, timeout)
  check.value(names, names_of, "mesh's names")
  if timeout ~= nil then
    check.value(timeout, check.seconds, "mesh's timeout")
  end
  loop.check_wait(2)
  local gone = self.engine:gone "meshing"
  if gone then return nil, gone end
  local deadline = loop.deadline(timeout or TIMEOUT)
  local all, late = {}, {}
  for i, future in ipairs(all_dialled(self, names, deadline)) do
    loop.wait(future, math.huge)
    if not future.ended then return futures.unfinished("meshing") end
    local session, err = futures.results(future)
    if is_final(err) then return nil, err end
    if not session then late[#late + 1] = { names[i], err } end
    all[i], all[names[i]] = session, session
  end
  if late[1] then return nil, missing(names, late) end
  return all
end

--- Meets other agents: waits until n agents of this scope have called it with
-- the same key and n, and returns the same names to all of them. An agent that
-- dies before all are there does not count: another can take its place. (Where
-- the registry has a TTL, a dead agent is noticed when all places are taken, if
-- its address refuses, or else after the TTL.)
--
-- The key is free again afterwards: those who call it once more meet once more.
-- More than n agents meet in groups, in no certain order. It returns when all
-- others know the result or are gone, so each can end at once.
-- @function Agent:rendezvous
-- @tparam string key at most 40 letters, digits and `. _ : -`
-- @tparam number n how many agents meet, this one included
-- @tparam[opt=30] number timeout seconds
-- @treturn number this agent's rank, from 0 to n - 1; or nil and an error
-- @treturn table the names of all in the order of their ranks, which is that of
--   the names: this agent's is `names[rank + 1]`
-- @errors `timeout`: fewer came; `unsupported`: the registry cannot list or
--   renew names; `name_taken`: the registry has given this agent's place to
--   another, for it was not heard of; those of the registry
-- @waits yes
-- @usage
-- local other = assert(perigee.agent {})
-- local meeting = perigee.spawn(other.rendezvous, other, "start", 2, 10)
-- local rank, names = agent:rendezvous("start", 2, 10)
-- print(#names, names[rank + 1] == agent.name)                 --> 2 true
-- print((meeting:wait(10)) == 1 - rank)                        --> true
-- other:close()
function Agent:rendezvous(key, n, timeout)
  check.value(key, check.key, "rendezvous' key")
  check.value(n, count, "rendezvous' n")
  if timeout ~= nil then
    check.value(timeout, check.seconds, "rendezvous' timeout")
  end
  loop.check_wait(2)
  local gone = self.engine:gone("meeting at " .. key)
  if gone then return nil, gone end
  local rank, names = rendezvous.new(self, key, n,
    loop.deadline(timeout or TIMEOUT)):meet()
  return rank, names
end

end

return M
