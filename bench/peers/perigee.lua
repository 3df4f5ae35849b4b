-- SPDX-License-Identifier: Apache-2.0
-- Perigee itself: from Lua, which is what the ratios are of, and from C; over
-- shared memory, over TCP with a secret, without encryption, and over RDMA.

local SECRET = ("compare-%d-%.0f-%.17g"):format(os.time(), os.clock() * 1e9,
                                                math.random())

local function peer(name, program, path)
  return {
    name = name, group = "perigee", program = program, words = { path },
    path = path, modes = { "echo", "pipelined", "paced" },
    env = path == "tcp" and { PERIGEE_SECRET = SECRET } or nil,
    fetches = "nothing", starts = path == "verbs" and 60 or nil,
  }
end

return {
  peer("perigee", "perigee_echo.lua", "shm"),
  peer("perigee-c", "perigee", "shm"),
  peer("perigee-tcp", "perigee_echo.lua", "tcp"),
  peer("perigee-c-tcp", "perigee", "tcp"),
  peer("perigee-verbs", "perigee_echo.lua", "verbs"),
  peer("perigee-c-verbs", "perigee", "verbs"),
}
