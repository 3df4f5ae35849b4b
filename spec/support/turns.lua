-- SPDX-License-Identifier: Apache-2.0
-- Measures how long the loop does not turn.
local native = require "perigee.native"
local perigee = require "perigee"

local M = {}

--- Runs f in a task, and the loop until it has ended. Returns the seconds of
-- the processor's time of the longest turn of the loop meanwhile, which a busy
-- machine does not make longer; and f's results.
function M.longest(f, ...)
  local over, most = false, 0
  local task = perigee.spawn(f, ...)
  perigee.spawn(function()
    local before = native.burnt()
    while not over do
      perigee.sleep(0)
      local now = native.burnt()
      most, before = math.max(most, tonumber(now - before)), now
    end
  end)
  local results = { task:wait() }
  over = true
  perigee.sleep(0.001)
  return most * 1e-9, unpack(results, 1, 8)
end

return M
