-- SPDX-License-Identifier: Apache-2.0
-- gRPC from C++, with protobuf's messages and with byte buffers.
--
-- Both sides keep what they free (mallopt(3)): messages of a MiB are otherwise
-- mapped and faulted in again for each call.
local KEEP = { MALLOC_MMAP_THRESHOLD_ = "1073741824",
               MALLOC_TRIM_THRESHOLD_ = "4294967296",
               MALLOC_TOP_PAD_ = "67108864" }

local function peer(name, way, ...)
  return { name = name, group = "grpc", program = "grpc", words = { way, ... },
           path = way, env = KEEP,
           debian = { "libgrpc++-dev", "libprotobuf-dev",
                      "protobuf-compiler-grpc" },
           modes = { "echo", "pipelined", "paced", "fanout" },
           fetches = "30 MB",
           largest = 2 ^ 30 }
end

return { peer("grpc-unix", "unix"), peer("grpc-unix-bytes", "unix", "bytes"),
         peer("grpc-tcp", "tcp"), peer("grpc-tcp-bytes", "tcp", "bytes") }
