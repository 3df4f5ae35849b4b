-- SPDX-License-Identifier: Apache-2.0
--- Links: one for each peer (a name or an address) that an agent connects to. A
-- link outlives its sessions: users that lost a session get the next one here.
-- Each attempt first looks up where the peer is now (agent/peers.lua).
--
--   state      event                              becomes
--   idle       a session is asked for             dialling
--   idle       a call was made (reach)            dialling
--   dialling   the attempt succeeded              open
--   dialling   it failed; nobody waits            idle
--   dialling   it failed for now; somebody waits  waiting
--   dialling   it failed for good                 idle    all waits end
--   waiting    the pause is over                  dialling
--   waiting    nobody waits any more              idle
--   open       the session's end                  idle
--
-- There is one attempt at a time, however many callers wait. The first attempt
-- is made at once. The pause before each later one is 10 ms for a peer that is
-- cheap to look up (a Unix socket, a name in the folder). For other peers it
-- doubles each time, up to a hundredth of the time that the peer has been away;
-- this limit is at least 20 ms and at most 1 s. Each pause is varied by up to
-- half, so that processes that lost the same peer do not retry in step. A
-- session that ends within a second counts as a failed attempt.
--
-- A link that waits watches its peer's name, if its registry is asked by
-- messages, and a change of the name's entry ends the pause: a peer that comes
-- back, wherever that is, is dialled at once.
local dials = require "perigee.link.dial"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"

local min, max, huge = math.min, math.max, math.huge
local now = loop.now

local M = {}

local ATTEMPT = 3                       -- seconds for each of several attempts
local FIRST, LEAST, LONGEST = 10e6, 20e6, 1e9
local SETTLED = 1e9                     -- a shorter session is a failed attempt
local FORMER = 8                        -- sessions that new calls use no more

local PASSING = dials.passing
M.PASSING = PASSING

--- Set by the agent: function (link, session). It is called in a task when a
-- retry has made a session, before the waiting callers go on.
M.joined = false

local Link = {}
Link.__index = Link

--- The link of an agent to peer (a name or an address); way says how the peer
-- is found (agent/peers.lua).
function M.new(agent, peer, way)
  return setmetatable({
    agent = agent, engine = agent.engine, peer = peer, way = way, proxies = {},
    address = false, unfound = false,   -- last address, or the lookup's error
    avoided = false, above = 0,         -- the epoch of a peer that drains, and
                                        -- the term from which on it serves
    former = {},                        -- sessions with such peers, and those
                                        -- in whose place there is another
    term = false,                       -- of the entry that was dialled last
    least = 0,                          -- the term that the attempt is to reach
    asked = false,                      -- has the program asked for it?
    session = false, attempt = false, retrying = false,
    tries = 0, at = 0, since = 0, opened = 0, err = false, pausing = false,
    watch = false, news = false,        -- did the watch tell of a change?
  }, Link)
end

-- ---- Sessions --------------------------------------------------------------

--- The session, if there is one that has not ended.
function Link:live()
  local session = self.session
  return session and session.handle and session
end

-- Notes a session that new calls use no more, and ends the first one if there
-- are too many. Returns whether it was not known yet.
local function note_former(link, session)
  local list = {}
  for _, each in ipairs(link.former) do
    if each == session then return false end
    if each.handle then list[#list + 1] = each end
  end
  list[#list + 1], link.former = session, list
  if #list > FORMER then
    table.remove(list, 1):leave("closed", "it was the oldest of "
      .. FORMER + 1 .. " that new calls use no more")
  end
  return true
end
jit.off(note_former)

local function is_drained(link, session)
  return session.epoch == link.avoided and (session.term or 0) <= link.above
end

-- The session, if it is one for calls that ask for a term, or for 0.
local function usable(link, term)
  local session = link:live()
  local fits = session and not is_drained(link, session)
    and (session.term or 0) >= term
  return fits and session
end

--- Notes a new session of the link. Called by session.lua.
function Link:arrived(session)
  session.link, session.term = self, self.term
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

--- Has calls avoid the life of the peer in session, which takes none any more.
-- Others may still use the session, which stays the link's until there is
-- another.
function Link:avoid(session)
  self.avoided, self.above = session.epoch, session.term or 0
  if note_former(self, session) and session == self.session
    and now() - self.opened < SETTLED then
    failed(self, dials.draining(self))
  end
end

-- Ends the kept sessions that use session, which this side has closed.
local function end_kept(agent, session)
  for kept in pairs(agent.awaited) do
    if kept.current == session then kept:over() end
  end
end
jit.off(end_kept)

--- Notes the end of one of the link's sessions. Called by session.lua.
function Link:left(session)
  if session.closed then end_kept(self.agent, session) end
  if self.session ~= session then return end
  self.session, self.avoided = false, false
  if now() - self.opened < SETTLED then return failed(self, session.lost) end
  self.tries, self.at, self.since = 0, 0, now()
end

-- ---- Dialling --------------------------------------------------------------

-- The attempt that is under way, or nil.
local function under_way(link)
  local attempt = link.attempt
  return attempt and not attempt.ended and attempt
end

--- The future of the attempt under way, or of a new one of timeout seconds. If
-- there is a session, no agent is dialled that took its name before a term
-- (default: 0), which is the least one that those ask for who wait.
function Link:dial(timeout, term)
  local attempt = under_way(self)
  self.least = min(term or 0, attempt and self.least or huge)
  if attempt then return attempt end
  self.attempt = dials.begin(self, timeout)
  return self.attempt
end

-- The error for a caller whose timeout ends before somebody else's attempt.
local function unanswered(link, timeout)
  local doing = "connecting to " .. link.peer
  if loop.state.stopping then
    return errors.new("closed", doing .. ": the loop was stopped", false)
  end
  return errors.new("timeout", ("%s: no answer within %g s"):format(doing,
    timeout), false)
end

--- The session within timeout seconds (default 30), or nil and an error. Waits
-- first for an attempt that somebody else began. The failure of such an attempt
-- is returned only if the attempt began after this call, and did not time out;
-- otherwise this makes its own attempt.
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

-- Has the next attempt made at once.
local function hurry(link)
  link.news = not link.pausing
  if link.pausing then signals.trigger(link.pausing) end
end

local function watch(link)
  local begin = link.way.watch
  if link.watch or not begin then return end
  link.watch = begin(link, function(change)
    if change.entry.name == link.peer and change.kind ~= "down" then
      hurry(link)
    end
  end) or false
end

local function unwatch(link)
  if link.watch then link.watch:close() end
  link.watch = false
end

-- Settles the future that the callers wait for, in the order they came.
local function ended(link, retrying, session, err)
  if link.retrying == retrying then
    link.retrying = false
    unwatch(link)
  end
  futures.settle(retrying, session, err)
end

-- Waits until it is time for the next attempt, or there is a session.
local function pause(link)
  local signal = signals.new(1)
  watch(link)
  if link.news then link.news = false return end
  link.pausing = signal
  loop.wait_signal(signal, link.at)
  if link.pausing == signal then link.pausing = false end
end

-- Of two sessions the later one is the link's. But a second one with the life
-- that is avoided is of no use; programs may have the first.
local function choose(link, before, session)
  if not is_drained(link, session) then return note_former(link, before) end
  link.session = before
  session:close()
end

-- One attempt. Returns a session for calls that ask for the term of retrying,
-- which others may make less meanwhile; or nil and an error.
local function try(link, retrying)
  local before = link:live()
  local session, err = dials.told(link, link:dial(ATTEMPT, retrying.term)
    :wait())
  if not session then return nil, err end
  local drained = is_drained(link, session)
  if before and before ~= session and before.handle then
    choose(link, before, session)
  end
  local term = retrying.term
  if usable(link, term) then return session end
  return nil, (drained or term == 0) and dials.draining(link)
    or dials.older(link, term)
end

-- Dials until there is a session, or nobody waits for it.
local function keep_trying(retrying, link)
  local session, err = nil, link.err
  repeat
    if link.at > now() then pause(link) end
    if not (retrying.waiter and link.engine.handle) then break end
    session = usable(link, retrying.term) -- another caller may have made one
    if not session then session, err = try(link, retrying) end
    if session then M.joined(link, session) else failed(link, err) end
  until session or not PASSING[err.kind]
  ended(link, retrying, session, err)
end

-- The future of the retries, which are started if there are none. It ends when
-- there is a session, when no session can be made, or when the loop is stopped.
-- The session is one for who asks for the least term; others retry.
local function retry(link, term)
  local retrying = link.retrying
  if retrying and not retrying.ended then
    retrying.term = min(retrying.term, term)
    return retrying
  end
  retrying = futures.new(link)
  link.retrying, retrying.term = retrying, term
  if link.at <= now() then link:dial(ATTEMPT, term) end
  tasks.drive(retrying, keep_trying, link)
  return retrying
end

--- Waits until future has ended, the deadline has passed, or call (a future, if
-- given) has ended. Returns whether future has ended.
local function wait(future, deadline, call)
  if not call then return loop.wait(future, deadline) end
  local signal = signals.new(1)
  signals.attach(future, signal)
  signals.attach(call, signal)
  loop.wait_signal(signal, deadline)
  signals.detach(call, signal)
  signals.detach(future, signal)
  return future.ended and true or false
end
M.wait = wait

-- Lets an attempt that is under way when patience is over finish by deadline.
local function last_attempt(link, deadline, call, term)
  local attempt = under_way(link)
  if attempt then wait(attempt, deadline, call) end
  local session = usable(link, term)
  if session then return session end
  return nil, link.err
end

--- The live session, or a new one. Begins attempts until the time patience (in
-- nanoseconds; huge: without limit), and lets the last one go on until
-- deadline. Returns nil and an error on failure; the error is false if none is
-- known. Waits, but no longer than until call (a future, if given) has ended.
-- term, if given: the session's agent has had its name since then, or for less
-- long; others go on with the session that there is meanwhile.
function Link:reach(patience, deadline, call, term)
  term = term or 0
  while true do
    local session = usable(self, term)
    if session then return session end
    if not self.engine.handle then return nil, dials.closed(self) end
    local retrying = retry(self, term)
    if not wait(retrying, patience, call) then
      return last_attempt(self, deadline, call, term)
    end
    local made, err = futures.results(retrying)
    if not made and not PASSING[err.kind] then return nil, err end
    if now() >= patience then return usable(self, term), err end
  end
end

--- Ends all waits for a session with an error. Called when the agent is closed.
function Link:close()
  local retrying, attempt = self.retrying, under_way(self)
  if attempt then futures.settle(attempt, nil, dials.closed(self)) end
  if not retrying then return end
  ended(self, retrying, nil, dials.closed(self))
end

return M
