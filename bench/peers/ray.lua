-- SPDX-License-Identifier: Apache-2.0
-- Ray has threads and daemons of its own, with heartbeats between them.
local function peer(way)
  return { name = "ray-" .. way, group = "ray", program = "ray_echo.py",
           words = { way }, path = "tcp", waits = "sleeps",
           modes = { "echo", "pipelined", "paced" },
           wheels = { "ray==2.60.0", "numpy==2.4.6" }, fetches = "99 MB",
           spread = true, rests = true, lasting = true, starts = 120,
           largest = 2 ^ 30 }
end

return { peer "bytes", peer "numpy" }
