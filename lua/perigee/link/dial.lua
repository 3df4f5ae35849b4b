-- SPDX-License-Identifier: Apache-2.0
--- One attempt of a link (link.lua) to open a session: it finds out where the
-- peer is now, and dials that address.
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local registries = require "perigee.registry"
local sessions = require "perigee.session"
local tasks = require "perigee.task"

local M = {}

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

-- Returns an attempt that has failed with err before anything was dialled.
local function not_dialled(link, err)
  link.unfound = err
  return futures.done(nil, err)
end

-- Dials the agent of an entry. Returns the future of the session.
local function dial_at(link, entry, timeout)
  if not link.engine.handle then return not_dialled(link, M.closed(link)) end
  link.address = registries.address(entry, link.tries)
  local fine, attempt = pcall(sessions.connect, link.engine, link.address, {
    timeout = timeout, transport = link.agent.transport, peer = link.peer,
    expect = link.way.expect(link), link = link })
  if fine then return attempt end
  return not_dialled(link, link.way.refused(link, attempt))
end

local function no_answer(link)
  return errors.new("timeout", ("connecting to %s: its registry has not "
    .. "answered in time"):format(link.peer), false)
end

-- Runs in a task: waits for found, the future of an entry, and dials that
-- entry's agent. Returns the session, or nil and an error.
local function find_and_dial(link, found, timeout)
  local deadline = loop.deadline(timeout)
  local entry, err
  if loop.wait(found, deadline) then
    entry, err = futures.results(found)
  else
    found:cancel()
    err = no_answer(link)
  end
  local attempt = entry and dial_at(link, entry, loop.left(deadline))
    or not_dialled(link, err)
  loop.wait(attempt, math.huge)
  return futures.results(attempt)
end

--- Begins an attempt and returns the future of its session. Most peers are
-- found at once; for the others a task waits.
function M.begin(link, timeout)
  if not link.engine.handle then return not_dialled(link, M.closed(link)) end
  local found = link.way.find(link)
  if not found.ended then
    return tasks.spawn(find_and_dial, link, found, timeout)
  end
  local entry, err = futures.results(found)
  return entry and dial_at(link, entry, timeout) or not_dialled(link, err)
end

return M
