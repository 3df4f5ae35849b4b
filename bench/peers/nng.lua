-- SPDX-License-Identifier: Apache-2.0
local function peer(way, path)
  return { name = "nng-" .. way, group = "nng", program = "nng",
           words = { way }, path = path, waits = "sleeps",
           keeps = true, debian = { "libnng-dev" }, fetches = "0.4 MB",
           modes = { "echo", "pipelined", "paced", "fanout" } }
end

return { peer("ipc", "unix"), peer("tcp", "tcp") }
