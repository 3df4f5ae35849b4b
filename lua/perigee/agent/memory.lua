-- SPDX-License-Identifier: Apache-2.0
-- Agent:read and Agent:write: memory of other agents by their names. The table
-- agent.reached keeps what was found of each peer, by name:
--
--   epoch      of the life in which its regions were found
--   regions    by name: the region (Remote) and the last operation's future
--
--   what is kept       event                            becomes
--   nothing            an operation                     found, by a task
--   a region           its session has ended            found again: the same
--                                                       memory, or the
--                                                       operation is stale
--   any                an operation ended in stale      nothing
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local links = require "perigee.link"
local loop = require "perigee.runtime.loop"
local peers = require "perigee.agent.peers"
local regions = require "perigee.memory.region"
local slices = require "perigee.memory.slice"
local tasks = require "perigee.runtime.task"

local M = {}

local TIMEOUT, RECONNECT = 30, 3        -- seconds, the latter for a lost peer

-- ---- What is asked for -----------------------------------------------------

local SPECS = {
  read = { from = regions.check_name, at = check.count, to = slices.check,
           timeout = check.seconds },
  write = { to = regions.check_name, at = check.count, from = slices.check,
            timeout = check.seconds },
}

local DOING = { read = "agent:read", write = "agent:write" }

-- Returns the region's name and the own slice of a spec. Raises misuse.
local function asked(agent, kind, spec)
  check.options(spec, SPECS[kind], "agent:" .. kind, 4)
  local region, own
  if spec then region, own = spec.from, spec.to end
  if kind == "write" then region, own = own, region end
  if not (region and own) then
    error(("agent:%s needs from and to, one the name of a region, the other a "
      .. "slice"):format(kind), 4)
  end
  local place, why = slices.place(own)
  if not place then error(("agent:%s: %s"):format(kind, why), 4) end
  if agent.engine.handle then
    slices.check_own(place, DOING[kind], 4, agent.engine)
  end
  return region, place
end

-- ---- Transfers -------------------------------------------------------------

local function outside(name, remote, at, own)
  return futures.done(nil, errors.new("range", ("%d bytes at %d lie outside of "
    .. "region %q of %s with %d bytes"):format(own.length, at, remote.name,
                                               name, remote.length), false))
end

-- Begins a transfer with a region that was found.
local function begin(kind, name, place, at, own, timeout)
  local remote = place.remote
  if at + own.length > remote.length then
    return outside(name, remote, at, own)
  end
  local theirs, session = remote:slice(at, own.length), remote.session
  local future
  if kind == "read" then
    future = session:read { from = theirs, to = own, timeout = timeout }
  else
    future = session:write { from = own, to = theirs, timeout = timeout }
  end
  place.last = future
  return future
end

local function is_stale(future)
  local err = future and future.ended == 2 and future.value[2]
  return err and errors.is_error(err) and err.kind == "stale"
end

-- ---- Finding ---------------------------------------------------------------

local function stale(name, what)
  return errors.new("stale", ("using memory of %s: %s"):format(name, what),
                    false)
end

-- The session with an agent. One that was reached before is waited for.
local function session_with(agent, name, deadline, future)
  if not agent.engine.handle then
    return nil, errors.new("closed", ("connecting to %s: the agent was closed")
      :format(name), false)
  end
  local link = peers.link(agent, name, 2)
  if link:live() then loop.refresh(agent.engine) end
  local session = link:live()
  if session then return session end
  if not agent.reached[name] then return link:open(loop.left(deadline)) end
  local patience = math.min(deadline, loop.deadline(RECONNECT))
  local err
  session, err = link:reach(patience, deadline, future)
  if session then return session end
  local kind = err and err.kind or "timeout"
  if links.PASSING[kind] and kind ~= "closed" then
    kind = loop.now() < deadline and "peer_lost" or "timeout"
  end
  return nil, errors.new(kind, err and err.message or "connecting to " .. name
    .. ": no answer in time", false)
end

-- Finds a region in a session; where it was known before, it has to be the same
-- memory. Returns what is kept of it, or nil and an error.
local function find(agent, session, name, region, deadline)
  local reached = agent.reached[name]
  if reached and reached.epoch ~= session.epoch then
    agent.reached[name] = nil
    return nil, stale(name, "it is in another life")
  end
  local remote, err = session:region(region, { timeout = loop.left(deadline) })
  if not remote then return nil, err end
  reached = agent.reached[name] or { epoch = session.epoch, regions = {} }
  agent.reached[name] = reached
  local before = reached.regions[region]
  if before and before.remote.identity ~= remote.identity then
    reached.regions[region] = nil
    return nil, stale(name, ("region %q is another one"):format(region))
  end
  reached.regions[region] = { remote = remote, last = false }
  return reached.regions[region]
end

-- Runs in a task: finds the region, and begins the transfer.
local function find_and_begin(future, agent, kind, name, region, at, own,
                              timeout)
  local deadline, place = loop.deadline(timeout)
  local session, err = session_with(agent, name, deadline, future)
  if session and not future.ended then
    place, err = find(agent, session, name, region, deadline)
  end
  if future.ended then return end
  if not place then return futures.settle(future, nil, err) end
  futures.follow(future, begin(kind, name, place, at, own,
                               loop.left(deadline)))
end

local function try(future, ...)
  local fine, raised = pcall(find_and_begin, future, ...)
  if fine then return end
  errors.pass(raised)
  futures.raise(future, raised)
end

local function operate(agent, kind, name, spec)
  local region, own = asked(agent, kind, spec)
  local at, reached = spec.at or 0, agent.reached[name]
  local place = reached and reached.regions[region]
  if place and is_stale(place.last) then
    reached.regions[region], place = nil, nil
  end
  if place and place.remote.handle and place.remote.session.handle then
    return begin(kind, name, place, at, own, spec.timeout)
  end
  check.value(name, peers.check, "an agent's name", 3)
  local gone = agent.engine:gone(("%s of %s"):format(kind, name))
  if gone then return futures.done(nil, gone) end
  local future = futures.new(agent, ("%s of %s"):format(kind, name))
  tasks.drive(future, try, agent, kind, name, region, at, own,
              spec.timeout or TIMEOUT)
  return future
end

--- Adds these methods to the class of agents.
function M.add(Agent)

--- Reads memory of another agent. The session and the region are found by the
-- first operation, and kept: later ones cost a table look-up more than
-- `Session:read`. An operation waits 3 s of its timeout for a peer that is
-- away.
--
-- An operation ends in `stale`, once, when the peer is in another life or has
-- closed the region; the next one finds the region anew.
-- @function Agent:read
-- @tparam string name the agent's, or an address, as for `Agent:session`
-- @tparam table spec
-- @tparam string spec.from the name of its region
-- @tparam[opt=0] number spec.at the offset in it
-- @tparam Slice spec.to own memory, or a list of slices; as many bytes are read
-- @tparam[opt=30] number spec.timeout seconds
-- @treturn Future of true
-- @errors `range`, `denied`, `stale`: as for `Session:write`; `not_found`:
--   there is no such agent or region; those of `Agent:session`
-- @waits no
-- @usage
-- local mine = region:slice(0, 64)
-- print(agent:read("worker:0", { from = "kv", at = 128,
--                                to = mine }):wait(5))         --> true
function Agent:read(name, spec)
  local future = operate(self, "read", name, spec)
  return future
end

--- Writes to memory of another agent; otherwise as `Agent:read`.
-- @function Agent:write
-- @tparam string name the agent's, or an address, as for `Agent:session`
-- @tparam table spec
-- @tparam string spec.to the name of its region
-- @tparam[opt=0] number spec.at the offset in it
-- @tparam Slice spec.from own memory, or a list of slices; all of it is written
-- @tparam[opt=30] number spec.timeout seconds
-- @treturn Future of true
-- @errors those of `Agent:read`
-- @waits no
-- @usage
-- local mine = region:slice(0, 64)
-- print(agent:write("worker:0", { to = "kv", at = 128,
--                                 from = mine }):wait(5))      --> true
function Agent:write(name, spec)
  local future = operate(self, "write", name, spec)
  return future
end

end

return M
