-- SPDX-License-Identifier: Apache-2.0
-- UCX 1.22 from PyPI's wheel, and Debian's 1.13, which has RDMA, too.

local device = require "perigee.bench.perftest".device()

-- Before 1.19 UCX loses the datagrams by which its peers meet where a driver
-- leaves their service level out and the GID is of IPv4, as Linux's rxe does
-- (openucx/ucx, pull request 10209). An IPv6 one, then, the first; NICs get
-- UCX's own choice.
local function gid()
  return device and device.name:find "^rxe" and 0 or nil
end

local WAYS = {
  { "posix", "posix,self", "shm" },
  { "sysv", "sysv,cma,self", "shm" },
  { "tcp", "tcp,self", "tcp", { UCX_NET_DEVICES = "lo" } },
}
local RC = { "rc", "rc,self", "verbs", device and {
  UCX_NET_DEVICES = ("%s:%d"):format(device.name, device.port),
  UCX_IB_GID_INDEX = gid(),
} }

local list = {}

local function add_way(way, version, program, needs)
  for _, words in ipairs { {}, { "am" } } do
    local one = {
      name = ("ucx%s-%s%s"):format(version, way[1], words[1] and "-am" or ""),
      group = needs.group, program = program, words = words, path = way[3],
      modes = { "echo", "pipelined" },
      env = { UCX_TLS = way[2], UCX_WARN_UNUSED_ENV_VARS = "n" },
    }
    for name, value in pairs(way[4] or {}) do one.env[name] = value end
    for key, value in pairs(needs) do one[key] = value end
    list[#list + 1] = one
  end
end

local function add(ways, ...)
  for _, way in ipairs(ways) do add_way(way, ...) end
end

add(WAYS, "", "ucx", { group = "ucx", target = { "libucx-cu12", "libucx-cu12" },
                       fetches = "43 MB" })
WAYS[#WAYS + 1] = RC
add(WAYS, "1.13", "ucx-debian", { group = "ucx-debian", fetches = "2 MB",
                                  debian = { "libucx-dev" } })
return list
