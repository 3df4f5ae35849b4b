-- SPDX-License-Identifier: Apache-2.0
--- Failures of a command: its words on stderr, and its exit status.
local printable = require "perigee.runtime.printable"

-- BY_SIGNAL and a signal's number: as a shell tells of a command that ended by
-- it. UNREAD: nobody reads the output (SIGPIPE).
local M = { FAILED = 1, MISUSE = 2, BY_SIGNAL = 128, UNREAD = 128 + 13 }

-- The value that is raised to end a command.
local Raised = {}

--- Ends the command as misuse: what was asked for cannot be.
function M.misuse(...)
  error(setmetatable({ status = M.MISUSE, message = (...):format(
    select(2, ...)) }, Raised), 0)
end

--- Ends the command without a word.
function M.quietly(status)
  error(setmetatable({ status = status }, Raised), 0)
end

--- Ends the command: the world's doing.
function M.failed(...)
  error(setmetatable({ status = M.FAILED, message = (...):format(
    select(2, ...)) }, Raised), 0)
end

--- Ends the command: by an error of Perigee's, told by a sentence.
function M.by(err, sentence)
  error(setmetatable({ status = M.FAILED, message = sentence, err = err },
                     Raised), 0)
end

--- The handler of xpcall: what was raised here stays itself, a bug gets its
-- traceback.
function M.traced(raised)
  if getmetatable(raised) == Raised then return raised end
  return setmetatable({ status = M.FAILED, message = debug.traceback(
    "a bug in this command: " .. tostring(raised), 2) }, Raised)
end

local function told(path, status, message)
  if message then
    io.stderr:write(path, ": ", printable.lines(tostring(message)), "\n")
  end
  return status
end

--- Calls run(given) for the command at path; returns the exit status.
function M.caught(path, run, given)
  local fine, status, message = xpcall(run, M.traced, given)
  if fine and status == nil and message then
    return told(path, M.FAILED, message)
  elseif fine then
    return status or 0
  end
  return told(path, status.status, status.message)
end

return M
