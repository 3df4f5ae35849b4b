-- SPDX-License-Identifier: Apache-2.0
--- One attempt of a link (link.lua) to have a session: it finds where the peer
-- is now, and dials that.
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

--- An attempt's results, as the user is told them.
function M.told(link, session, err)
  if session then return session end
  if err == link.unfound then return nil, err end
  return nil, link.way.explain(link, err)
end

-- Ends the attempt: nobody is to be dialled, as err says.
local function not_dialled(link, err)
  link.unfound = err
  return futures.done(nil, err)
end

-- The future of a session with an entry's agent.
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

-- The session of what found, a future, gives. In a task.
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

--- The future of an attempt's session. Most peers are found at once; a task
-- waits for the others.
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
