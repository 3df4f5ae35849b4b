-- SPDX-License-Identifier: Apache-2.0
-- The wheel asks for torch (800 MB), which moving memory does not need.
local function peer(way)
  return { name = "nixl-" .. way, group = "nixl", program = "nixl_move.py",
           words = { way }, path = "shm", waits = "polls",
           prepared = way == "prepared",
           modes = { "put", "get", "put-pieces", "get-pieces" },
           wheels = { "nixl-cu12==1.5.1", "numpy==2.4.6" }, alone = true,
           fetches = "86 MB", starts = 60 }
end

return { peer "prepared", peer "fresh" }
