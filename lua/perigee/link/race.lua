-- SPDX-License-Identifier: Apache-2.0
--- Dials a peer that has several addresses. They are dialled in their order,
-- each a moment after the one before it, or at once when that one has failed;
-- the first session is the one (as in RFC 8305). So an address in a network
-- that is down, where nobody answers, delays the next one by that moment.
--
--   race      event                          becomes
--   running   an attempt has made a session  won: the others are cancelled
--   running   an attempt fails               running: the next one begins
--   running   the last attempt fails         lost
--   running   the engine was closed          lost
--   any       its future was ended by others over: all are cancelled
--
-- A session that an attempt still makes after the end is closed.
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local sessions = require "perigee.engine.session"
local signals = require "perigee.runtime.signal"
local timers = require "perigee.runtime.timers"

--- stagger: nanoseconds between two dials, as RFC 8305 has it.
local M = { stagger = 250e6 }

local next_address

local function stop(race)
  timers.remove(race.timer)
  for _, attempt in pairs(race.attempts) do attempt:cancel() end
end
jit.off(stop)

local function won(race, session)
  futures.settle(race.future, session)
  stop(race)
end

-- An error after which another attempt may succeed is told before others: an
-- address may have been given to somebody else, who refuses.
local function note(race, err)
  local before = race.err
  if not before or race.passing[err.kind] and not race.passing[before.kind] then
    race.err = err
  end
end

-- Notes the end of an attempt. Returns whether the next one is to begin.
local function ended(race, address, attempt)
  race.attempts[address] = nil
  local session, err = futures.results(attempt)
  if race.future.ended then
    if session and session ~= race.session then session:close() end
    return stop(race)
  end
  if session then return won(race, session) end
  note(race, err)
  return true
end

-- Takes the place of the link for the session of one attempt.
local function entrant(race, address)
  return { arrived = function(_, session)
    if race.session or race.future.ended then return end
    race.session, race.link.address = session, address
    race.link:arrived(session)
  end }
end

local function dial(race, address)
  local link = race.link
  local fine, attempt = pcall(sessions.connect, link.engine, address, {
    timeout = loop.left(race.deadline), transport = link.agent.transport,
    peer = link.peer, expect = link.way.expect(link),
    link = entrant(race, address) })
  if fine then return attempt end
  errors.pass(attempt)
  return futures.done(nil, link.way.refused(link, attempt))
end

local function later(race)
  timers.remove(race.timer)
  race.timer = signals.new(1, function() next_address(race) end)
  race.timer.at = loop.now() + M.stagger
  timers.add(race.timer)
end

local function closed(race)
  futures.settle(race.future, nil, race.err or errors.new("closed",
    ("connecting to %s: the engine was closed"):format(race.link.peer), false))
  stop(race)
end

-- Begins the next attempt. Returns whether it has failed at once.
local function begin(race)
  if race.future.ended then return stop(race) end
  if not race.link.engine.handle then return closed(race) end
  race.place = race.place + 1
  local address = race.addresses[race.place]
  if not address then
    if next(race.attempts) then return false end
    futures.settle(race.future, nil, race.err)
    return false
  end
  local attempt = dial(race, address)
  race.attempts[address] = attempt
  if race.addresses[race.place + 1] then later(race) end
  if attempt.ended then return ended(race, address, attempt) end
  signals.attach(attempt, signals.new(1, function()
    if ended(race, address, attempt) then next_address(race) end
  end))
end

-- A loop, as any number of addresses may fail at once.
function next_address(race)
  while begin(race) do end
end

--- Dials the addresses, a list without repetitions, for link; returns the
-- future of a session. passing: the kinds of errors after which another attempt
-- may succeed.
function M.begin(link, addresses, timeout, passing)
  local race = { link = link, addresses = addresses, place = 0, attempts = {},
                 deadline = loop.deadline(timeout), timer = {}, err = false,
                 passing = passing, session = false,
                 future = futures.new(link, "connecting to " .. link.peer) }
  next_address(race)
  return race.future
end

return M
