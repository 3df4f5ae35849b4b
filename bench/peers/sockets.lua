-- SPDX-License-Identifier: Apache-2.0
-- Bare sockets, asleep in recv and busy.

local function peer(name, path, ...)
  return { name = name, group = "sockets", program = "sockets",
           words = { path, ... }, path = path, fetches = "nothing",
           waits = (...) == "busy" and "polls" or "sleeps",
           modes = (...) == nil and { "echo", "pipelined", "paced", "fanout" }
                   or { "echo", "pipelined" } }
end

return { peer("unix", "unix"), peer("unix-busy", "unix", "busy"),
         peer("tcp", "tcp"), peer("tcp-busy", "tcp", "busy") }
