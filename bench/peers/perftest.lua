-- SPDX-License-Identifier: Apache-2.0
-- The programs of the package perftest, which measure the device alone.
return {
  {
    name = "perftest", group = "perftest", program = "perftest_echo.lua",
    path = "verbs", waits = "polls", modes = { "echo" },
    debian = { "perftest" },
    fetches = "1 MB", floor = true, starts = 60, late = 120,
  },
}
