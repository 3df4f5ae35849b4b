-- SPDX-License-Identifier: Apache-2.0
local function peer(way, path)
  return { name = "zeromq-" .. way, group = "zeromq", program = "zeromq",
           words = { way }, path = path, waits = "sleeps",
           keeps = true, debian = { "libzmq3-dev" },
           modes = { "echo", "pipelined", "paced", "fanout" },
           fetches = "0.5 MB" }
end

return { peer("ipc", "unix"), peer("tcp", "tcp") }
