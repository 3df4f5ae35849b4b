-- SPDX-License-Identifier: Apache-2.0
-- Perigee itself: from Lua, which is what the ratios are of, and from C; over
-- shared memory, over TCP with a secret, without encryption, and over RDMA.

local SECRET = ("compare-%d-%.0f-%.17g"):format(os.time(), os.clock() * 1e9,
                                                math.random())

-- It polls for 20 ms where each waits for the other all the time, else as long
-- as by default.
local WAITS = { "polls", paced = "both", fanout = "both" }

-- Over RDMA a fan-out was not tried.
local function peer(name, program, path)
  local modes = { "echo", "pipelined", "paced" }
  if path ~= "verbs" then modes[#modes + 1] = "fanout" end
  return {
    name = name, group = "perigee", program = program, words = { path },
    path = path, modes = modes, waits = WAITS,
    env = path == "tcp" and { PERIGEE_SECRET = SECRET } or nil,
    fetches = "nothing", starts = path == "verbs" and 60 or nil,
  }
end

local ours = peer("perigee", "perigee_echo.lua", "shm")
table.insert(ours.modes, "loan")

local function in_place(name, path)
  local one = peer(name, "perigee_echo.lua", path)
  one.words, one.modes = { path .. "-inplace" }, { "echo" }
  return one
end

-- how: posted or batched.
local function together(name, path, how)
  local one = peer(name, "perigee_echo.lua", path)
  one.words, one.modes = { path .. "-" .. how }, { "pipelined" }
  return one
end

local function batched_c(name, path)
  local one = peer(name, "perigee", path)
  one.words, one.modes = { path, "batched" }, { "pipelined" }
  return one
end

local function mover(name, kind, path)
  local one = peer(name, "perigee_move.lua", path)
  one.words, one.prepared = { path, kind }, kind == "prepared"
  one.modes = { "put", "get", "put-pieces", "get-pieces" }
  return one
end

return {
  ours,
  in_place("perigee-inplace", "shm"),
  together("perigee-posted", "shm", "posted"),
  together("perigee-batched", "shm", "batched"),
  peer("perigee-c", "perigee", "shm"),
  batched_c("perigee-c-batched", "shm"),
  peer("perigee-tcp", "perigee_echo.lua", "tcp"),
  in_place("perigee-inplace-tcp", "tcp"),
  peer("perigee-c-tcp", "perigee", "tcp"),
  peer("perigee-verbs", "perigee_echo.lua", "verbs"),
  peer("perigee-c-verbs", "perigee", "verbs"),
  mover("perigee-prepared", "prepared", "shm"),
  mover("perigee-fresh", "fresh", "shm"),
  mover("perigee-prepared-tcp", "prepared", "tcp"),
  mover("perigee-fresh-tcp", "fresh", "tcp"),
}
