-- SPDX-License-Identifier: Apache-2.0
local function peer(name, way)
  return { name = name, group = "pulsing", program = "pulsing_echo.py",
           words = { way }, path = "tcp", waits = "sleeps", keeps = true,
           modes = { "echo", "pipelined", "paced" },
           wheels = { "pulsing==0.1.2" }, fetches = "15 MB",
           spread = true, starts = 60, largest = 2 ^ 28 }
end

return { peer("pulsing", "plain"), peer("pulsing-nodelay", "nodelay") }
