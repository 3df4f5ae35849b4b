-- SPDX-License-Identifier: Apache-2.0
-- UCX 1.22 from PyPI's wheel, and Debian's: messages (tag matching, active
-- messages), and put and get.
--
-- Over TCP a segment that is sent has 64 KiB in place of 8, as one that is
-- received has by default: UCX 1.22 sends large messages through buffers of its
-- own of that size, and takes three times as long with those of 8 KiB
-- (ucx_info -cf tells what each setting is).

local WAYS = {
  { "posix", "posix,self", "shm" },
  { "sysv", "sysv,cma,self", "shm" },
  { "tcp", "tcp,self", "tcp" },
}
local TCP = { UCX_NET_DEVICES = "lo", UCX_TCP_TX_SEG_SIZE = "64K",
              UCX_TCP_RX_SEG_SIZE = "64K" }

local list = {}

local function environment(way)
  local env = { UCX_TLS = way[2], UCX_WARN_UNUSED_ENV_VARS = "n" }
  for name, value in pairs(way[3] == "tcp" and TCP or {}) do
    env[name] = value
  end
  return env
end

local function add(way, name, program, modes, needs)
  local one = { name = name, program = program, path = way[3], modes = modes,
                env = environment(way) }
  for key, value in pairs(needs) do one[key] = value end
  list[#list + 1] = one
end

local function add_all(version, suffix, needs)
  for _, way in ipairs(WAYS) do
    local name = ("ucx%s-%s"):format(version, way[1])
    local echoes = { "echo", "pipelined" }
    add(way, name, "ucx" .. suffix, echoes, needs)
    add(way, name .. "-am", "ucx" .. suffix, echoes, needs)
    list[#list].words = { "am" }
    add(way, name .. "-put", "ucx-move" .. suffix,
        { "put", "get", "put-pieces", "get-pieces" }, needs)
  end
end

add_all("", "", { group = "ucx", target = { "libucx-cu12", "libucx-cu12" },
                  fetches = "43 MB" })
add_all("1.13", "-debian", { group = "ucx-debian", debian = { "libucx-dev" },
                             fetches = "2 MB" })
return list
