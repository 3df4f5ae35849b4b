-- SPDX-License-Identifier: Apache-2.0
-- A list of bytes has less than 2^29 of them.

local function peer(way, path)
  return { name = "capnp-" .. way, group = "capnp", program = "capnp",
           words = { way }, path = path, waits = "sleeps", keeps = true,
           debian = { "libcapnp-dev", "capnproto" }, fetches = "2 MB",
           modes = { "echo", "pipelined", "paced" }, largest = 2 ^ 28 }
end

return { peer("unix", "unix"), peer("tcp", "tcp") }
