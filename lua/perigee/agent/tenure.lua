-- SPDX-License-Identifier: Apache-2.0 What an agent does when the time of its
-- name is over, and when it has the name again (agent/lease.lua); and what it
-- tells the program of that.
--
-- An agent whose name may be another's serves no calls: their callers look the
-- name up, and wait for its next holder. It never serves again, and
-- perigee.serve ends, once another agent has the name.
local check = require "perigee.runtime.check"
local drains = require "perigee.agent.drain"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local tasks = require "perigee.runtime.task"

local M = {}

local function tell(agent, f, err)
  local fine, failure = xpcall(f, errors.traced, err)
  if fine then return end
  errors.pass(failure)
  log.write("error", ("telling %s that its name is lost failed: %s")
    :format(tostring(agent), tostring(failure)))
end

-- Tells the program once for each time that the name ends.
local function tell_all(agent, err)
  if agent.lost then return end
  agent.lost = err
  for _, f in ipairs(agent.on_lost_list) do
    tasks.spawn(tell, agent, f, err)
  end
end

local function ended(agent, err, taken)
  if agent.leaving then return end      -- the name was for others to take
  log.write("error", tostring(err) .. (taken
    and "; this agent serves nobody any more" or "; it is asked for again"))
  drains.suspend(agent)
  tell_all(agent, err)
  if taken then futures.settle(agent.taken, nil, err) end
end

local function regained(agent)
  log.write("warning", ("%s has its name again"):format(tostring(agent)))
  agent.lost = false
  if agent.topology then agent.topology:hear() end
  drains.resume(agent)
end

--- For agent/lease.lua.
M.handlers = { ended = ended, regained = regained }

--- Does an agent have its name now? One that drains has offered it to others,
-- which take it without a word to this one.
function M.is_held(agent)
  local lease = agent.engine.handle and not agent.leaving and agent.lease
  return lease and lease:is_held() or false
end

--- Adds these methods to the class of agents.
function M.add(Agent)

--- Has f called when the agent's name may be another's: its registry has
-- answered no renewal for nine tenths of its `ttl`, or says that another agent
-- has the name. Registries without a ttl, as folders, end no name. f is called
-- in a task with the error, once for each end; at once if the name is lost now.
-- Errors that it raises are logged.
--
-- From then on `held` is false, and the agent serves no calls: their callers
-- wait for the next holder of the name within the calls' timeout. If nobody has
-- taken the name when the registry answers again, this agent takes it anew:
-- `held` is true, its entry has a new `term`, it serves in new sessions, and
-- those of before end when their calls have ended. This one stays as it is if
-- another agent has the name; close it. `perigee.serve` does so.
--
-- Nothing is told after `Agent:drain`, which leaves the name for others to
-- take: `held` is false from then on, as it is once the agent is closed. A
-- program whose loop stood still past the end of the name (a stopped
-- process) may serve calls that have waited before it looks at the clock.
--
-- The program itself has to end what the agent does elsewhere in the name's
-- right (writes to a disk, calls of others). The peers that it calls can tell
-- it from a later holder by the term (`Proxy:with`, option term).
-- @function Agent:on_lost
-- @tparam function f is given the `Error`: `name_taken`: another agent has the
--   name; else the failure to renew it
-- @waits no
-- @usage
-- agent:on_lost(function(err) print("stepping down: " .. tostring(err)) end)
-- print(agent.held)                                            --> true
function Agent:on_lost(f)
  check.value(f, check.callable, "what on_lost tells")
  self.on_lost_list[#self.on_lost_list + 1] = f
  if self.lost then tasks.spawn(tell, self, f, self.lost) end
end

end

return M
