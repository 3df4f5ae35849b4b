-- SPDX-License-Identifier: Apache-2.0
-- The floors of calls (bench/running.md), as what others take turns with: of
-- raw ones and of those in place. Each burst is a run of the floor, which has
-- both sides, checks its own bytes and takes both cores. command: one word.
local function floor(name, path, command)
  return { name = name, group = "floors", program = "floors_echo.lua",
           words = { command }, path = path, waits = "polls", spread = true,
           modes = { "echo" }, floor = true, fetches = "nothing" }
end

return {
  floor("floor-raw", "shm", "floor_pull"),
  floor("floor-inplace", "shm", "floor_echo"),
  floor("floor-raw-tcp", "tcp", "floor_tcp"),
  floor("floor-inplace-tcp", "tcp", "floor_tcp --how copy"),
}
