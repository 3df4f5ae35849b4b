-- SPDX-License-Identifier: Apache-2.0
local function peer(name, path, way)
  return { name = name, group = "grpc-py", program = "grpc_echo.py",
           words = { path, way }, path = path, waits = "sleeps",
           keeps = true, modes = { "echo", "pipelined", "paced" },
           wheels = { "grpcio==1.85.1" }, fetches = "7.5 MB",
           largest = 2 ^ 30 }
end

return { peer("grpc-py-unix", "unix", "threads"),
         peer("grpc-py-tcp", "tcp", "threads"),
         peer("grpc-py-aio", "unix", "aio") }
