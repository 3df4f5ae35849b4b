-- SPDX-License-Identifier: Apache-2.0
--- One attempt of a link (link) to open a session: it finds out where the
-- peer is now, and dials its addresses (link/race.lua).
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local races = require "perigee.link.race"
local registries = require "perigee.registry"
local sessions = require "perigee.engine.session"
local tasks = require "perigee.runtime.task"

--- Kinds of errors after which another attempt may succeed.
local M = { passing = { not_found = true, peer_lost = true, timeout = true,
                        closed = true, no_memory = true } }

--- The error of a link whose agent was closed.
function M.closed(link)
  return errors.new("closed", ("connecting to %s: the agent was closed")
    :format(link.peer), false)
end

--- Returns an attempt's results as the program gets them.
function M.told(link, session, err)
  if session then return session end
  if err == link.unfound then return nil, err end
  return nil, link.way.explain(link, err)
end

--- The error of a link whose peer takes no calls any more.
function M.draining(link)
  return errors.new("not_found", ("connecting to %s: it is draining, and "
    .. "nobody else has its name yet"):format(link.peer), false)
end

--- The error of a link whose peer took its name before a term that a call asks
-- for.
function M.older(link, term)
  return errors.new("not_found", ("connecting to %s: nobody is known to have "
    .. "its name since term %.0f"):format(link.peer, term), false)
end

-- Is the agent of an entry the one that takes no calls, with which the link has
-- a session already?
local function is_avoided(link, entry)
  local session = link:live()
  return session and session.epoch == link.avoided
    and (entry.epoch or link.avoided) == link.avoided
    and (entry.term or 0) <= link.above
end

-- Returns an attempt that has failed with err before anything was dialled.
local function not_dialled(link, err)
  link.unfound = err
  log.note("debug", link, "%s", err)
  return futures.done(nil, err)
end

-- Dials the agent of an entry. Returns the future of the session.
local function dial_at(link, entry, timeout)
  if not link.engine.handle then return not_dialled(link, M.closed(link)) end
  if is_avoided(link, entry) then
    return not_dialled(link, M.draining(link))
  elseif link:live() and (entry.term or 0) < link.least then
    return not_dialled(link, M.older(link, link.least))
  end
  link.term = entry.term or false
  local addresses = registries.addresses(entry)
  link.address = table.concat(addresses, ", ")
  if addresses[2] then
    return races.begin(link, addresses, timeout, M.passing)
  end
  local fine, attempt = pcall(sessions.connect, link.engine, addresses[1], {
    timeout = timeout, transport = link.agent.transport, peer = link.peer,
    expect = link.way.expect(link), link = link })
  if fine then return attempt end
  errors.pass(attempt)
  return not_dialled(link, link.way.refused(link, attempt))
end

local function no_answer(link)
  return errors.new("timeout", ("connecting to %s: its registry has not "
    .. "answered in time"):format(link.peer), false)
end

-- The last entry that is known of the peer, if the registry has not said that
-- it is gone: it can be dialled while the registry is away.
local function last_known(link, err)
  return (not err or err.kind ~= "not_found") and link.way.last
    and link.way.last(link)
end

-- Runs in a task: waits for found, the future of an entry, and dials that
-- entry's agent. Returns the session, or nil and an error. Half of the time is
-- kept for the address at which the peer was known, if there is one.
local function find_and_dial(link, found, timeout)
  local deadline = loop.deadline(timeout)
  local entry, err
  local share = last_known(link) and timeout / 2 or timeout
  if loop.wait(found, loop.deadline(share)) then
    entry, err = futures.results(found)
  else
    found:cancel()
    err = no_answer(link)
  end
  entry = entry or last_known(link, err)
  local attempt = entry and dial_at(link, entry, loop.left(deadline))
    or not_dialled(link, err)
  loop.wait(attempt, math.huge)
  return futures.results(attempt)
end

-- Errors by which an agent is not where a watch has told that it is.
local ABSENT = { not_found = true, peer_lost = true, denied = true }

-- Runs in a task: dials the agent of an entry that a watch has told of; looks
-- its name up if it is not there.
local function dial_watched(link, entry, timeout)
  local deadline = loop.deadline(timeout)
  local attempt = dial_at(link, entry, timeout)
  loop.wait(attempt, math.huge)
  local session, err = futures.results(attempt)
  if session or not ABSENT[err.kind] then return session, err end
  return find_and_dial(link, link.way.find(link), loop.left(deadline))
end

--- Begins an attempt and returns the future of its session. Most peers are
-- found at once; for the others a task waits.
function M.begin(link, timeout)
  if not link.engine.handle then return not_dialled(link, M.closed(link)) end
  local watched = link.tries == 0 and link.way.watched
    and link.way.watched(link)
  if watched then return tasks.spawn(dial_watched, link, watched, timeout) end
  local found = link.way.find(link)
  if not found.ended then
    return tasks.spawn(find_and_dial, link, found, timeout)
  end
  local entry, err = futures.results(found)
  return entry and dial_at(link, entry, timeout) or not_dialled(link, err)
end

return M
