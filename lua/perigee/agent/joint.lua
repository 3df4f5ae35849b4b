-- SPDX-License-Identifier: Apache-2.0
--- A peer that an agent is to be connected to, since a topology says so. One of
-- the two dials, and keeps a session by the link that all others use, too; the
-- other notes the sessions that come from an agent of that name.
--
--   who     state    event                              becomes
--   dials   down     the peer's name is there           dialling
--   dials   dialling a session                          up
--   dials   dialling it fails                           down; dialling again
--                                                       after a pause
--   waits   down     a session by which the peer has    up
--                    told its name
--   both    up       the last such session's end        down
--   both    any      the edge is gone                   over
--
-- The pause is the link's own after errors that pass; after others it is 1 s,
-- and doubles up to 30 s. News of the peer's name end it. A peer whose name is
-- not there is not dialled.
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local links = require "perigee.link"
local loop = require "perigee.runtime.loop"
local peers = require "perigee.agent.peers"
local proxies = require "perigee.call.proxy"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"

local M = {}

local PATIENCE = 3                      -- seconds of trying before it is told
local AGAIN = 0.1                       -- seconds, at least, before the next
local FIRST, LONGEST = 1, 30            -- seconds, after errors that stay
local ANSWER = 5                        -- seconds for hearing a name

local Joint = {}
Joint.__index = Joint

-- ---- What is so ------------------------------------------------------------

-- why: an error, or false.
local function set(joint, is_up, why)
  local kind = why and why.kind or false
  if joint.is_up == is_up and joint.kind == kind then return end
  if joint.is_up ~= is_up then joint.since = loop.now() end
  joint.is_up, joint.kind, joint.why = is_up, kind, why
  joint.topology:changed(joint.peer)
end

-- Wakes the task that keeps the session.
local function wake(joint)
  joint.news = true
  if joint.resting then signals.trigger(joint.resting) end
end

local function rest(joint, seconds)
  if joint.news or joint.over then return end
  joint.resting = signals.new(1)
  loop.wait_signal(joint.resting, loop.deadline(seconds))
  joint.resting = false
end

local function left(joint, session)
  joint.sessions[session] = nil
  if joint.over or next(joint.sessions) then return end
  set(joint, false, session.lost)
  wake(joint)
end

--- Notes a session with the peer.
function Joint:add(session)
  if self.over or self.sessions[session] or not session.handle then return end
  self.sessions[session] = true
  signals.attach(session:ended(), signals.new(1, function()
    left(self, session)
  end))
  set(self, true, false)
end

-- ---- Dialling --------------------------------------------------------------

-- A session, within PATIENCE, or until the peer's name is gone; or nil and an
-- error.
local function reach(joint)
  joint.news, joint.call = false, futures.new()
  local session, err = joint.link:reach(loop.deadline(PATIENCE),
                                        loop.deadline(PATIENCE), joint.call)
  return session, err or errors.new("timeout", ("connecting to %s: no answer "
    .. "within %g s"):format(joint.peer, PATIENCE), false)
end

local function failed(joint, err)
  if next(joint.sessions) then return end
  set(joint, false, err)
  if links.PASSING[err.kind] then
    joint.pause = FIRST
    return rest(joint, AGAIN)
  end
  rest(joint, joint.pause)
  joint.pause = math.min(joint.pause * 2, LONGEST)
end

-- Tells the peer this agent's name, by asking for a service that nobody has,
-- until it has answered that.
local function tell_name(joint, session)
  while session.handle and not joint.over do
    local told, err = proxies.describe(session, "", ANSWER)
    if told or err.kind == "no_service" then return end
    tasks.sleep(FIRST)
  end
end

-- Closes the session that was dialled for a joint which is over, where nobody
-- has asked for one with that peer.
local function let_go(joint)
  local link = joint.link
  local session = link and link:live()
  if session and not link.asked and not joint.topology.joints[joint.peer] then
    session:close()
  end
end

-- Lets go of what an attempt makes that is under way when the edge goes.
local function give_up(joint)
  local attempt = joint.link.attempt
  if attempt then loop.wait(attempt, math.huge) end
  let_go(joint)
end

local function connect(joint)
  local session, err = reach(joint)
  if joint.over then return give_up(joint) end
  if not session then return failed(joint, err) end
  joint.pause = FIRST
  joint:add(session)
  tasks.spawn(tell_name, joint, session)
end

local function keep(joint)
  while not joint.over and joint.topology:is_live() do
    if next(joint.sessions) or not joint.topology:knows(joint.peer) then
      joint.news = false
      rest(joint, math.huge)
    else
      connect(joint)
    end
  end
end

-- ---- Both ------------------------------------------------------------------

--- Makes the joint of topology's agent with peer; dials: does this side?
function M.new(topology, peer, dials)
  local joint = setmetatable({
    topology = topology, peer = peer, dials = dials, sessions = {},
    is_up = false, kind = false, why = false, since = loop.now(), over = false,
    link = dials and peers.kept(topology.agent, peer), pause = FIRST,
    news = false, resting = false, call = false,
  }, Joint)
  topology:changed(peer)
  if dials then tasks.spawn(keep, joint) end
  return joint
end

--- Notes that the peer's name is there (again), or is gone.
function Joint:heard(is_gone)
  if is_gone and self.call then futures.settle(self.call) end
  wake(self)
end

-- Printable, and of a length that servers take.
local function text(why)
  return why and tostring(why):gsub("[^ -~]", "?"):sub(1, 300) or nil
end

--- The report of it.
function Joint:report()
  return { name = self.peer, state = self.is_up and "up" or "down",
           why = text(self.why),
           seconds = math.max(0, loop.now() - self.since) * 1e-9 }
end

--- Ends it, and the session that it has dialled, if nobody has asked for one
-- with that peer. stays: sessions stay.
function Joint:close(stays)
  self.over = true
  if self.call then futures.settle(self.call) end
  wake(self)
  if not stays then let_go(self) end
end

return M
