-- SPDX-License-Identifier: Apache-2.0
-- gRPC from C++, with protobuf's messages and with byte buffers.
local function peer(name, way, ...)
  return { name = name, group = "grpc", program = "grpc", words = { way, ... },
           path = way, waits = "sleeps", keeps = true,
           debian = { "libgrpc++-dev", "libprotobuf-dev",
                      "protobuf-compiler-grpc" },
           modes = { "echo", "pipelined", "paced", "fanout" },
           fetches = "30 MB",
           largest = 2 ^ 30 }
end

return { peer("grpc-unix", "unix"), peer("grpc-unix-bytes", "unix", "bytes"),
         peer("grpc-tcp", "tcp"), peer("grpc-tcp-bytes", "tcp", "bytes") }
