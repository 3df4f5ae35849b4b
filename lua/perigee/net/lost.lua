-- SPDX-License-Identifier: Apache-2.0
--- What speaks with other servers by control.so. It is lost when the loop is
-- stopped, as tasks are not resumed then, and when the last engine is closed,
-- as nothing can be waited for without one.
local loop = require "perigee.runtime.loop"

local M = {}

local all = setmetatable({}, { __mode = "k" })

--- Has one:lose("closed", why) called whenever that happens.
function M.add(one) all[one] = true end

-- What is lost may begin another.
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
