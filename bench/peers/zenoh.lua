-- SPDX-License-Identifier: Apache-2.0
local function peer(way)
  return { name = "zenoh-" .. way, group = "zenoh", program = "zenoh_echo.py",
           words = { way }, path = way, waits = "sleeps", keeps = true,
           modes = { "echo", "pipelined", "paced" },
           wheels = { "eclipse-zenoh==1.10.2" }, fetches = "10 MB",
           largest = 2 ^ 28 }
end

return { peer "shm", peer "tcp" }
