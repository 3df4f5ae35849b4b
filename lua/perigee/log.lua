-- SPDX-License-Identifier: Apache-2.0
--- Where the library says what nobody asked for: through perigee.log, which a
-- program may replace. It never prints otherwise.
local M = {}

--- The table whose field `log` is called: the module perigee, once loaded.
M.target = {}

--- The default perigee.log: warnings and errors to stderr. level is "debug",
-- "info", "warning" or "error".
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
