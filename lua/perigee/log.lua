-- SPDX-License-Identifier: Apache-2.0
--- Where the library says what nobody asked for: through perigee.log, which a
-- program may replace. It never prints otherwise.
local M = {}

--- The table whose field `log` is called: the module perigee, once loaded.
M.target = {}

--- Where the library says what nobody asked for; it never prints otherwise. A
-- program may replace it; one that raises is ignored. By default warnings and
-- errors go to stderr.
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
    io.stderr:write("perigee: ", level, ": ", message, "\n")
  end
end

--- Says message at level. A log function that raises is ignored: what is being
-- logged must not break what is being done.
function M.write(level, message)
  pcall(M.target.log or M.default, level, message)
end

return M
