-- SPDX-License-Identifier: Apache-2.0
--- The service that the files of this folder start: `perigee serve worker.lua`.
-- It returns the options of perigee.agent; the command line adds where it
-- listens.
local ordinal = (os.getenv "HOSTNAME" or ""):match "%-(%d+)$"

local clock = {
  name = "clock", version = 1,
  methods = {
    now = function() return os.time() end,
    echo = { raw = true, function(request) return request end },
  },
}

-- A pod or container called NAME-3 is worker:3.
return { name = ordinal and "worker:" .. ordinal, services = { clock } }
