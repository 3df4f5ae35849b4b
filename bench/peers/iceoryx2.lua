-- SPDX-License-Identifier: Apache-2.0
local function peer(way, ...)
  return { name = "iceoryx2-" .. way, group = "iceoryx2",
           program = "iceoryx2_echo.py", words = { way }, path = "shm",
           waits = "polls",
           modes = { "echo", "pipelined", ... },
           wheels = { "iceoryx2==0.10.0" }, fetches = "1.7 MB" }
end

return { peer "copy", peer("loan", "loan") }
