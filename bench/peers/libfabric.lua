-- SPDX-License-Identifier: Apache-2.0
local function peer(way)
  return { name = "libfabric-" .. way, group = "libfabric", path = way,
           waits = "polls",
           program = "libfabric", words = { way }, fetches = "3 MB",
           debian = { "libfabric-dev" }, modes = { "echo", "pipelined" } }
end

return { peer "shm", peer "tcp" }
