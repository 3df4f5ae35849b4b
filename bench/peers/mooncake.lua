-- SPDX-License-Identifier: Apache-2.0
-- The engine moves bytes in a thread of its own, while its caller polls. Its
-- queue takes 1024 blocks by default, and refuses more ("queue-full").
return {
  { name = "mooncake", group = "mooncake", program = "mooncake_move.py",
    path = "tcp", waits = "both", spread = true,
    env = { MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER = "65535" },
    modes = { "put", "get", "put-pieces", "get-pieces" },
    wheels = { "mooncake-transfer-engine-non-cuda==0.3.13.post1" },
    alone = true, fetches = "46 MB" },
}
