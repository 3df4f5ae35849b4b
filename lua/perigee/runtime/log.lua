-- SPDX-License-Identifier: Apache-2.0
--- The library's log: messages that are no function's result go to perigee.log,
-- which a program may replace. The library prints nothing in any other way.
--
-- A message has a level, and is made if that is asked for: by another process
-- that has written it into an engine's stats file (`perigee log`), or else by
-- PERIGEE_LOG. The file is that of the engine which the message is about; one
-- about none is made if any engine's asks for it. While nobody asks, messages
-- of write go to perigee.log whatever their level, those of note to nobody, and
-- the default of perigee.log shows warnings and errors.
local ending = require "perigee.runtime.ending"
local levels = require "perigee.runtime.levels"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"
local stderr = require "perigee.runtime.stderr" -- looks at it at once

local state = signals.state
local RANKS = levels.RANKS

local M = {}

--- The table whose field `log` is called: the module perigee, once loaded.
M.target = {}

--- Returns the trace and the span, as texts, of the call that runs here, or
-- that this native trace belongs to; nothing if there is none. (Set by
-- serving/trace.lua.)
M.traced = function() end

-- What PERIGEE_LOG says; rank 0: no level.
local format, own = levels.parse(os.getenv "PERIGEE_LOG" or "")
local wrong = not format and own
if wrong then format, own = "text", 0 end

-- Where lines go, whether those of text have their time, and the rank of what
-- is shown while nobody asks for another.
local sink, stamped, shown = stderr.write, false, RANKS.warning
local lost = 0                          -- messages that the sink did not take
local current = nil                     -- the message that M.write is writing

-- ---- Levels ----------------------------------------------------------------

-- The engine that a message is about: what it was given, whose call or event is
-- handled here, or the only one.
local function engine_of(about)
  local worker = state.current
  return about and about.engine or state.telling
    or worker.served and worker.engine
    or #state.engines == 1 and state.engines[1]
end

local function asked_of(engine)
  local rank = native.C.perigee_log_level(engine.handle,
                                          own > 0 and own or shown)
  return rank > 0 and rank or own
end

local function shown_at(rank) return rank > 0 and rank or shown end

-- The rank that is asked for; 0: none is.
local function asked(engine)
  if engine and engine.handle then return asked_of(engine) end
  local most
  for _, each in ipairs(state.engines) do
    local rank = asked_of(each)
    if not most or shown_at(rank) > shown_at(most) then most = rank end
  end
  return most or own
end

--- Has others see in an engine's stats file which level it has.
M.tell_level = asked_of

-- ---- Lines -----------------------------------------------------------------

-- A sink may raise an error: a program may have put a file that is closed in
-- the place of io.stderr.
local function taken(one)
  local fine, took = pcall(sink,
    require "perigee.runtime.line"[format](one, stamped))
  return fine and took
end

-- Says how many messages were lost, once something is taken again.
local function tell_lost()
  local text = "%d messages were lost, as they could not be written"
  if lost > 0 and taken { level = "warning", message = text:format(lost) } then
    lost = 0
  end
end

local function put(one)
  tell_lost()
  if not taken(one) then lost = lost + 1 end
end

-- A message as it is told: what it is about is looked for now, as that may be
-- gone later.
local function described(level, message, about)
  local engine = engine_of(about)
  local agent = engine and engine.agent
  local trace, span = M.traced(about and about.trace)
  return { level = level, message = message, agent = agent and agent.name,
           scope = agent and agent.scope, trace = trace, span = span }
end

local SHOWN = 200                       -- bytes of a message that stands for N

local function tell_more(more, seconds, last)
  local first = last.message:match "^[^\n]*":sub(1, SHOWN)
  last.message = ("%d more like this in the last %.3g seconds: %s"):format(more,
    seconds, require "perigee.runtime.printable".lines(first)) -- cut anywhere
  put(last)
end

local function show(level, message, about, key)
  local one = described(level, message, about)
  if key then
    local often = require "perigee.runtime.often"
    if not often.may(key, one, tell_more) then return end
  end
  put(one)
end

-- ---- Messages --------------------------------------------------------------

--- Receives the library's log messages; the library prints nothing in any other
-- way. A program may replace it; errors that the replacement raises are
-- ignored. It runs on the loop and must not wait: it spawns a task for what
-- waits, as a call that ships the message. Text of peers is printable: control
-- characters but tabs and ends of lines are written as escapes.
--
-- By default warnings and errors go to stderr as lines of text. PERIGEE_LOG
-- asks for another level, for JSON, or both ("debug", "json", "json,info"), and
-- `perigee log NAME debug` asks a process that runs for another level. A
-- replacement gets everything at or above the level that was asked for, and
-- without one all but the lines that tell what goes on: of sessions, listeners,
-- names, drains and caches at level "info", and with more at "debug". There is
-- none for each call. A program may call the default with messages of its own;
-- in a handler they have the call's trace.
--
-- The default waits for nobody. What stderr does not take at once is lost, and
-- a later line says how many messages that were. Of the library's messages from
-- one place and of one level, 20 a second are told, and then how many more
-- there were.
-- @function perigee.log
-- @tparam string level "debug", "info", "warning" or "error"
-- @tparam string message
-- @waits no
-- @usage
-- local before, said = perigee.log, nil
-- perigee.log = function(level, message) said = level .. ": " .. message end
-- perigee.spawn(error, "oops")                      -- nobody waits for it
-- perigee.sleep(0.001)
-- print(said:match "^error: .-oops" ~= nil)                    --> true
-- perigee.log = before
function M.default(level, message)
  local about, key = nil, nil
  if current then about, key = current.about, current.key end
  local rank = RANKS[level]
  if not rank or rank > shown_at(asked(engine_of(about))) then return end
  if not current then
    message = require "perigee.runtime.printable".lines(message)
  end
  show(level, message, about, key)
end

-- Messages from one line of the library, of one level, are of one kind.
local function key_of(level)
  local at = debug.getinfo(3, "Sl")
  return ("%s %s:%d"):format(level, at and at.short_src or "?",
                             at and at.currentline or 0)
end

local function write(level, message, about, key)
  -- Loaded with the first message.
  local fine, text = pcall(require "perigee.runtime.printable".lines, message)
  if not fine then return end
  local before, outer = state.pinned, current
  state.pinned, current = "perigee.log", { about = about, key = key }
  pcall(M.target.log or M.default, level, text)
  state.pinned, current = before, outer
end

--- Logs message at level. about: the engine that it is about, or what has a
-- field `engine`, as an agent or a session; by default whose call or event is
-- handled. Its field `trace`, if it has one, is that of the call. Ignores
-- errors of the log function, and has it not wait, so that logging cannot break
-- the operation that logs.
function M.write(level, message, about)
  local rank = asked(engine_of(about))
  if rank > 0 and RANKS[level] > rank then return end
  write(level, message, about, key_of(level))
end

--- Logs what goes on, if somebody asks for its level: the message is
-- format:format(...), which is made only then.
function M.note(level, about, text, ...)
  if RANKS[level] > asked(engine_of(about)) then return end
  write(level, text:format(...), about, key_of(level))
end

--- Would M.note log at level? For messages that are costly to make.
function M.wants(level, about)
  return RANKS[level] <= asked(engine_of(about))
end

--- Has lines go to a function, which returns false for those that are lost, and
-- has infos among them. Nil: to stderr. For servers.
function M.to(write_line)
  sink, stamped, shown = write_line or stderr.write, true, RANKS.info
end

--- Tells at once of messages that were counted (often.lua), or lost.
function M.flush()
  local often = package.loaded["perigee.runtime.often"]
  if often then often.flush() end
  tell_lost()
end

ending.at_end(M.flush)

if wrong then
  M.write("warning", "PERIGEE_LOG is ignored: " .. wrong)
end

return M
