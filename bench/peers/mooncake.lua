-- SPDX-License-Identifier: Apache-2.0
-- The engine moves bytes in a thread of its own, while its caller polls.
return {
  { name = "mooncake", group = "mooncake", program = "mooncake_move.py",
    path = "tcp", waits = "both", spread = true,
    modes = { "put", "get", "put-pieces", "get-pieces" },
    wheels = { "mooncake-transfer-engine-non-cuda==0.3.13.post1" },
    alone = true, fetches = "46 MB" },
}
