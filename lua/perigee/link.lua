-- SPDX-License-Identifier: Apache-2.0
--- Links: an agent's ways to its peers, by name or address. A link outlives the
-- sessions that go over it: what lost its session finds the next one here. Each
-- attempt first asks where the peer is now (agent/peers.lua).
--
--   state      event                              becomes
--   idle       a session is asked for             dialling
--   idle       a call was made (reach)            dialling
--   dialling   the attempt succeeded              open
--   dialling   it failed; nobody waits            idle
--   dialling   it failed for now; somebody waits  waiting
--   dialling   it failed for good                 idle    all who wait are told
--   waiting    the pause is over                  dialling
--   waiting    nobody waits any more              idle
--   open       the session's end                  idle
--
-- However many wait, there is one attempt at a time. The first is made at once;
-- the pauses between the next ones are 10 ms where asking costs next to nothing
-- (a Unix socket, a name in the folder). Elsewhere they grow, to twice as long
-- each time, and up to a hundredth of the time that the peer has been away,
-- within 20 ms and 1 s. All are by up to half shorter or longer, so that those
-- who lost the same peer do not come back in step. A session that ends within a
-- second of its making counts as an attempt that failed.
local dials = require "perigee.link.dial"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local signals = require "perigee.signal"
local tasks = require "perigee.task"

local min, max, huge = math.min, math.max, math.huge
local now = loop.now

local M = {}

local ATTEMPT = 3                       -- seconds for one, if others may follow
local FIRST, LEAST, LONGEST = 10e6, 20e6, 1e9
local SETTLED = 1e9                     -- a session that lived so long was one

--- Errors, by kind, of what may be otherwise a moment later.
local PASSING = { not_found = true, peer_lost = true, timeout = true,
                  closed = true, no_memory = true }

M.PASSING = PASSING

--- Called in a task when there is a session again, before those who wait are
-- told: function (link, session). The agent's.
M.joined = false

local Link = {}
Link.__index = Link

--- The link of an agent to peer (a name, or an address), which is found in that
-- way (agent/peers.lua).
function M.new(agent, peer, way)
  return setmetatable({
    agent = agent, engine = agent.engine, peer = peer, way = way, proxies = {},
    address = false, unfound = false,   -- the last one, or why there is none
    session = false, attempt = false, retrying = false,
    tries = 0, at = 0, since = 0, opened = 0, err = false, pausing = false,
  }, Link)
end

-- ---- Sessions --------------------------------------------------------------

--- The session, if there is one that has not ended.
function Link:live()
  local session = self.session
  return session and session.handle and session
end

--- A session was made for it. (The session's.)
function Link:arrived(session)
  session.link = self
  self.session, self.opened = session, now()
  if self.pausing then signals.trigger(self.pausing) end
end

local function length_of_pause(link, time)
  local most = FIRST
  if not link.way.near then
    most = max(LEAST, min((time - link.since) / 100, LONGEST))
  end
  local length = min(FIRST * 2 ^ link.tries, most)
  return length * (0.5 + time % 1009 / 1009)
end

-- Notes an attempt that failed.
local function failed(link, err)
  local time = now()
  if link.tries == 0 then link.since = time end
  link.at = time + length_of_pause(link, time)
  link.tries, link.err = link.tries + 1, err
end

-- Tells the kept sessions that end with session, since this side closed it.
local function end_kept(agent, session)
  for kept in pairs(agent.awaited) do
    if kept.current == session then kept:over() end
  end
end
jit.off(end_kept)

--- A session of it is over. (The session's.)
function Link:left(session)
  if session.closed then end_kept(self.agent, session) end
  if self.session ~= session then return end
  self.session = false
  if now() - self.opened < SETTLED then return failed(self, session.lost) end
  self.tries, self.at, self.since = 0, 0, now()
end

-- ---- Dialling --------------------------------------------------------------

-- The attempt that is under way, or nil.
local function under_way(link)
  local attempt = link.attempt
  return attempt and not attempt.ended and attempt
end

--- The attempt that is under way, or a new one of timeout seconds: a future.
function Link:dial(timeout)
  local attempt = under_way(self)
  if attempt then return attempt end
  self.attempt = dials.begin(self, timeout)
  return self.attempt
end

-- Whose own time is over first, while an attempt of others goes on.
local function unanswered(link, timeout)
  local doing = "connecting to " .. link.peer
  if loop.state.stopping then
    return errors.new("closed", doing .. ": the loop was stopped", false)
  end
  return errors.new("timeout", ("%s: no answer within %g s"):format(doing,
    timeout), false)
end

--- The session within timeout seconds (default 30), or nil and an error. An
-- attempt that others began is waited for first; its failure counts if it began
-- later than this, and not if merely its time was shorter.
function Link:open(timeout)
  timeout = timeout or 30
  local deadline, before = loop.deadline(timeout), self.attempt
  while true do
    local attempt = under_way(self)
    local own = not attempt
    if own then attempt = self:dial(loop.left(deadline)) end
    if not loop.wait(attempt, own and huge or deadline) then
      return nil, unanswered(self, timeout)
    end
    local session, err = futures.results(attempt)
    if session or own or attempt ~= before and err.kind ~= "timeout" then
      return dials.told(self, session, err)
    end
  end
end

-- Tells those who wait, first come first.
local function ended(link, retrying, session, err)
  if link.retrying == retrying then link.retrying = false end
  futures.settle(retrying, session, err)
end

-- Waits until it is time for the next attempt, or there is a session.
local function pause(link)
  local signal = signals.new(1)
  link.pausing = signal
  loop.wait_signal(signal, link.at)
  if link.pausing == signal then link.pausing = false end
end

-- Dials until there is a session, or nobody waits for it.
local function keep_trying(retrying, link)
  local session, err = nil, link.err
  repeat
    if link.at > now() then pause(link) end
    if not (retrying.waiter and link.engine.handle) then break end
    session = link:live()               -- somebody else may have dialled
    if not session then
      session, err = dials.told(link, link:dial(ATTEMPT):wait())
    end
    if session then M.joined(link, session) else failed(link, err) end
  until session or not PASSING[err.kind]
  ended(link, retrying, session, err)
end

-- What ends when there is a session, none will be, or the loop is stopped.
local function retry(link)
  local retrying = link.retrying
  if retrying and not retrying.ended then return retrying end
  retrying = futures.new(link)
  link.retrying = retrying
  if link.at <= now() then link:dial(ATTEMPT) end
  tasks.drive(retrying, keep_trying, link)
  return retrying
end

--- Waits for future until deadline; not longer than for call, if that is given.
local function wait(future, deadline, call)
  if not call then return loop.wait(future, deadline) end
  local signal = signals.new(1)
  signals.attach(future, signal)
  signals.attach(call, signal)
  if not call.ended then loop.wait_signal(signal, deadline) end
  signals.detach(call, signal)
  signals.detach(future, signal)
  return future.ended and true or false
end
M.wait = wait

-- What is under way when patience is over may still come to a good end.
local function last_attempt(link, deadline, call)
  local attempt = under_way(link)
  if attempt then wait(attempt, deadline, call) end
  local session = link:live()
  if session then return session end
  return nil, link.err
end

--- The session, or one that is made now: tries until patience is over (in
-- nanoseconds; huge: never), and lets what is under way then go on until
-- deadline. nil and an error, or nil and false if none is known. Waits; not
-- longer than until call (a future), if that is given, has ended.
function Link:reach(patience, deadline, call)
  while true do
    local session = self:live()
    if session then return session end
    if not self.engine.handle then return nil, dials.closed(self) end
    local retrying = retry(self)
    if not wait(retrying, patience, call) then
      return last_attempt(self, deadline, call)
    end
    local made, err = futures.results(retrying)
    if not made and not PASSING[err.kind] then return nil, err end
    if now() >= patience then return self:live(), err end
  end
end

--- Tells all who wait for it that there will be none. (The agent's.)
function Link:close()
  local retrying, attempt = self.retrying, under_way(self)
  if attempt then futures.settle(attempt, nil, dials.closed(self)) end
  if not retrying then return end
  ended(self, retrying, nil, dials.closed(self))
end

return M
