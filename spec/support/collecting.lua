-- SPDX-License-Identifier: Apache-2.0
-- What happens where the collector's steps are owed: while values are decoded.
local M = {}

--- Has f called there, each time before a step is done.
function M.before(f)
  local owe, collect = require "perigee.runtime.collector".owe, collectgarbage
  for i = 1, debug.getinfo(owe, "u").nups do
    if debug.getupvalue(owe, i) == "collect" then
      debug.setupvalue(owe, i, function(...)
        f()
        return collect(...)
      end)
    end
  end
end

return M
