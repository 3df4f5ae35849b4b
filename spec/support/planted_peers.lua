-- SPDX-License-Identifier: Apache-2.0
-- The descriptions of planted.lua's peers, for compare's option --also.
local here = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
local root = io.popen "pwd":read "*l" .. "/"
if here:match "^/" then root = "" end

local list = {}
for i, fault in ipairs { "slow", "flips", "hangs", "babbles", "mute",
                         "dies" } do
  list[i] = {
    name = "planted-" .. fault, group = "planted", path = "shm",
    program = root .. here .. "planted.lua", words = { fault },
    env = { PLANTED_CLIENT = root .. here
                             .. "../../bench/peers/perigee_echo.lua" },
    modes = { "echo" }, late = fault == "hangs" and 0.5 or nil,
    starts = fault == "mute" and 0.5 or 120, -- on a busy machine
  }
end
list[#list + 1] = {
  name = "planted-absent", group = "planted", path = "shm",
  program = "/nowhere/planted", modes = { "echo" },
}
return list
