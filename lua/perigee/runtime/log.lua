-- SPDX-License-Identifier: Apache-2.0
--- The library's log: messages that are no function's result go to perigee.log,
-- which a program may replace. The library prints nothing in any other way.
local signals = require "perigee.runtime.signal"

local state = signals.state

local M = {}

--- The table whose field `log` is called: the module perigee, once loaded.
M.target = {}

--- Receives the library's log messages; the library prints nothing in any other
-- way. A program may replace it; errors that the replacement raises are
-- ignored. It runs on the loop and must not wait: it spawns a task for what
-- waits, as a call that ships the message. By default warnings and errors go to
-- stderr. Text of peers is printable: control characters but tabs and ends of
-- lines are written as escapes.
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
  if level == "warning" or level == "error" then
    -- No line of a message can be taken for another message.
    io.stderr:write("perigee: ", level, ": ", (message:gsub("\n", "\n  ")),
                    "\n")
  end
end

--- Logs message at level. Ignores errors of the log function, and has it not
-- wait, so that logging cannot break the operation that logs.
function M.write(level, message)
  -- Loaded with the first message.
  local fine, text = pcall(require "perigee.runtime.printable".lines, message)
  if not fine then return end
  local before = state.pinned
  state.pinned = "perigee.log"
  pcall(M.target.log or M.default, level, text)
  state.pinned = before
end

return M
