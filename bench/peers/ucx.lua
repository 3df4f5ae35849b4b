-- SPDX-License-Identifier: Apache-2.0
-- UCX 1.22 from PyPI's wheel, and Debian's 1.13, which has RDMA, too: messages
-- (tag matching, active messages), and put and get, but for RDMA.
--
-- Over TCP a segment that is sent has 64 KiB in place of 8, as one that is
-- received has by default: UCX 1.22 sends large messages through buffers of its
-- own of that size, and takes three times as long with those of 8 KiB
-- (ucx_info -cf tells what each setting is).

local device = require "bench.lib.perftest".device()

-- Before 1.19 UCX loses the datagrams by which its peers meet where a driver
-- leaves their service level out and the GID is of IPv4, as Linux's rxe does
-- (openucx/ucx, pull request 10209). An IPv6 one, then, the first; NICs get
-- UCX's own choice.
local function gid()
  return device and device.name:find "^rxe" and 0 or nil
end

local TCP = { UCX_NET_DEVICES = "lo", UCX_TCP_TX_SEG_SIZE = "64K",
              UCX_TCP_RX_SEG_SIZE = "64K" }
local WAYS = {
  { "posix", "posix,self", "shm" },
  { "sysv", "sysv,cma,self", "shm" },
  { "tcp", "tcp,self", "tcp", TCP },
}
local RC = { "rc", "rc,self", "verbs", device and {
  UCX_NET_DEVICES = ("%s:%d"):format(device.name, device.port),
  UCX_IB_GID_INDEX = gid(),
} }
local ECHOES = { "echo", "pipelined" }
local MOVES = { "put", "get", "put-pieces", "get-pieces" }

local list = {}

local function environment(way)
  local env = { UCX_TLS = way[2], UCX_WARN_UNUSED_ENV_VARS = "n" }
  for name, value in pairs(way[4] or {}) do env[name] = value end
  return env
end

local function add(way, name, program, modes, needs)
  local one = { name = name, program = program, path = way[3], waits = "polls",
                modes = { unpack(modes) }, env = environment(way) }
  for key, value in pairs(needs) do one[key] = value end
  list[#list + 1] = one
end

local function add_all(ways, version, suffix, needs)
  for _, way in ipairs(ways) do
    local name = ("ucx%s-%s"):format(version, way[1])
    add(way, name, "ucx" .. suffix, ECHOES, needs)
    add(way, name .. "-am", "ucx" .. suffix, ECHOES, needs)
    list[#list].words = { "am" }
    if way ~= RC then
      add(way, name .. "-put", "ucx-move" .. suffix, MOVES, needs)
    end
  end
end

add_all(WAYS, "", "", { group = "ucx",
                        target = { "libucx-cu12", "libucx-cu12==1.22.0" },
                        fetches = "43 MB" })
WAYS[#WAYS + 1] = RC
add_all(WAYS, "1.13", "-debian", { group = "ucx-debian", fetches = "2 MB",
                                   debian = { "libucx-dev" } })
return list
