-- SPDX-License-Identifier: Apache-2.0
--- `perigee log NAME [LEVEL]`: how much the log of an agent of this host tells,
-- and to have it tell more or less while it runs. The level is a word of the
-- agent's stats file (native/stats.h), which the agent reads when it has a
-- message.
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.options"

local M = {
  name = "log",
  summary = "Tell or change how much the log of an agent of this host tells.",
  description = "Tells the level of an agent's log, or has it be another one "
    .. "until the agent ends: error, warning, info or debug, each with those "
    .. "before it; default: what its environment says (PERIGEE_LOG). It takes "
    .. "effect with the agent's next message.",
}

function M.configure(parser)
  parser:argument("name", "The agent's name."):argname "NAME"
  parser:argument("level", "debug, info, warning, error; default."):args "?"
    :choices { "debug", "info", "warning", "error", "default" }
    :argname "LEVEL"
  options.json(parser)
  options.place(parser)
end

-- What the file tells of the agent's log, and its path.
local function find(given)
  local told, path = require "perigee.cli.stats".find(given,
    require "perigee.stats".head)
  if not told then failure.failed("%s", path) end
  if told.state == "dead" then
    failure.failed("%s is dead: process %d has ended, and logs nothing",
                   given.name, told.pid)
  elseif not told.log.own then
    failure.failed("%s has no levels: it is an older Perigee's, or no "
      .. "LuaJIT program's", given.name)
  end
  return told, path
end

local function write(told, path, given)
  local fine, why = require "perigee.stats".ask_for_level(path,
    given.level ~= "default" and given.level or nil)
  if not fine then failure.failed("%s: %s", given.name, why) end
  told.log.asked = given.level ~= "default" and given.level or nil
end

function M.run(given)
  local out, told, path = require "perigee.cli.out", find(given)
  if given.level then write(told, path, given) end
  local level = told.log.asked or told.log.own
  if given.json then
    out.json { name = given.name, level = level, asked = told.log.asked,
               own = told.log.own }
  elseif level == told.log.own then
    out.line("%s logs at level %s", given.name, level)
  else
    out.line("%s logs at level %s; its own is %s", given.name, level,
             told.log.own)
  end
  out.finish()
end

return M
