-- SPDX-License-Identifier: Apache-2.0
--- The end of all that speaks with other servers by control.so. It comes when
-- the loop is stopped, because no task is resumed then, and when the last
-- engine is closed, because nothing can be waited for without an engine.
local loop = require "perigee.runtime.loop"

local M = {}

local all = setmetatable({}, { __mode = "k" })

--- Has one:lose("closed", why) called whenever that happens.
function M.add(one) all[one] = true end

-- One that is lost may begin another, so the list is copied first.
local function lose_all(why)
  local list = {}
  for one in pairs(all) do list[#list + 1] = one end
  for _, one in ipairs(list) do one:lose("closed", why) end
end
jit.off(lose_all)

loop.dropped[#loop.dropped + 1] = function()
  lose_all "the loop was stopped"
end
loop.emptied[#loop.emptied + 1] = function()
  lose_all "the last engine was closed"
end

return M
