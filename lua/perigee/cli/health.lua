-- SPDX-License-Identifier: Apache-2.0
--- `perigee health NAME`: does an agent of this host live and poll? For probes,
-- as those of Kubernetes. The answer is in its stats file, and the agent is not
-- asked, so a probe costs it nothing, and has an answer if the agent has none.
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"
local units = require "perigee.runtime.units"

local M = {
  name = "health",
  summary = "Tell by the exit status whether an agent of this host lives.",
  description = "Ends with 0 if an agent of this host lives and polls, which "
    .. "is read from its stats file: it waits for events, or has polled "
    .. "lately. Ends with 1 and one sentence if it is stopped or dead, has not "
    .. "polled for too long, or has no such file.",
}

function M.configure(parser)
  parser:argument("name", "The agent's name."):argname "NAME"
  parser:option("--busy", "How long it may go without a poll, as in 500ms or "
    .. "1m; default: 10 s."):argname "TIME":convert(options.positive)
    :default(10)
  options.json(parser)
  options.place(parser)
end

-- Seconds since it last polled; 0 while it waits for events.
local function unpolled(told)
  if told.asleep then return 0 end
  return math.max(told.now - told.looked, 0) / 1e9
end

-- What is wrong, after its name; nil if nothing is.
local function wrong(told, busy, limit)
  if told.state == "dead" then
    return ("is dead: process %d has ended"):format(told.pid)
  elseif told.state == "stopped" then
    return ("is stopped, by a signal or a debugger (process %d)"):format(
      told.pid)
  elseif busy > limit then
    return ("has not polled for %s, and may take %s (process %d)"):format(
      units.format_time(busy), units.format_time(limit), told.pid)
  end
end

local STATES = { asleep = "waits for events", busy = "has been busy for %s",
                 running = "runs" }

local function healthy(given, told, busy)
  return ("%s %s (process %d)"):format(given.name, STATES[told.state]:format(
    units.format_time(busy)), told.pid)
end

function M.run(given)
  local out = require "perigee.cli.out"
  local told, why = require "perigee.cli.stats".find(given,
    require "perigee.stats".head)
  local busy = told and unpolled(told)
  if told then why = wrong(told, busy, given.busy) end
  if why and told then why = ("%s %s"):format(given.name, why) end
  if given.json then
    out.json { name = given.name, healthy = not why, why = why,
               state = told and told.state, pid = told and told.pid,
               busy = busy }
  elseif not why then
    out.line("%s", healthy(given, told, busy))
  end
  out.finish()
  if why then failure.failed("%s", why) end
end

return M
