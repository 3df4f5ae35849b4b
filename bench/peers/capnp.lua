-- SPDX-License-Identifier: Apache-2.0
-- A list of bytes has less than 2^29 of them.

-- Both sides keep what they free (mallopt(3)): messages of a MiB are otherwise
-- mapped and faulted in again for each call: 2.3 ms of 1 MiB, not 0.8.
local KEEP = { MALLOC_MMAP_THRESHOLD_ = "1073741824",
               MALLOC_TRIM_THRESHOLD_ = "4294967296",
               MALLOC_TOP_PAD_ = "67108864" }

local function peer(way, path)
  return { name = "capnp-" .. way, group = "capnp", program = "capnp",
           words = { way }, path = path, env = KEEP,
           debian = { "libcapnp-dev", "capnproto" }, fetches = "2 MB",
           modes = { "echo", "pipelined", "paced" }, largest = 2 ^ 28 }
end

return { peer("unix", "unix"), peer("tcp", "tcp") }
