-- SPDX-License-Identifier: Apache-2.0
-- Perigee itself: from Lua, which is what the ratios are of, and from C; over
-- shared memory and over TCP with a secret, without encryption.

local SECRET = ("compare-%d-%.0f-%.17g"):format(os.time(), os.clock() * 1e9,
                                                math.random())

local function peer(name, program, path)
  return {
    name = name, group = "perigee", program = program, words = { path },
    path = path, modes = { "echo", "pipelined", "paced", "fanout" },
    env = path == "tcp" and { PERIGEE_SECRET = SECRET } or nil,
    fetches = "nothing",
  }
end

local ours = peer("perigee", "perigee_echo.lua", "shm")
table.insert(ours.modes, "loan")

return {
  ours,
  peer("perigee-c", "perigee", "shm"),
  peer("perigee-tcp", "perigee_echo.lua", "tcp"),
  peer("perigee-c-tcp", "perigee", "tcp"),
}
