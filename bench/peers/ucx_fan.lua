-- SPDX-License-Identifier: Apache-2.0
-- UCX 1.22 from PyPI's wheel, to several servers.
local function peer(name, transports)
  return { name = name, group = "ucx", program = "ucx-fan", path = "shm",
           waits = "polls",
           modes = { "fanout" }, fetches = "43 MB",
           target = { "libucx-cu12", "libucx-cu12==1.22.0" },
           env = { UCX_TLS = transports, UCX_WARN_UNUSED_ENV_VARS = "n" } }
end

return { peer("ucx-posix-fan", "posix,self"),
         peer("ucx-sysv-fan", "sysv,cma,self") }
