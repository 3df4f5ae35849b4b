-- SPDX-License-Identifier: Apache-2.0
-- DLSlime's threads poll without sleeping, three on each side: hence all cores.
local device = require "bench.lib.perftest".device()

return {
  {
    name = "dlslime", group = "dlslime", program = "dlslime_echo.py",
    path = "verbs", waits = "polls", modes = { "echo", "paced" },
    env = { COMPARE_RDMA = device and device.name },
    wheels = { "dlslime==0.1.23", "dlslime-ctrl==0.1.23" },
    debian = { "redis-server" }, fetches = "11 MB",
    spread = "all", lasting = true, starts = 240, late = 120,
  },
}
