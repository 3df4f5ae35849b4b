-- SPDX-License-Identifier: Apache-2.0
-- UCX 1.22 from PyPI's wheel, and Debian's.

local WAYS = {
  { "posix", "posix,self", "shm" },
  { "sysv", "sysv,cma,self", "shm" },
  { "tcp", "tcp,self", "tcp" },
}

local list = {}

local function add(version, program, needs)
  for _, way in ipairs(WAYS) do
    for _, words in ipairs { {}, { "am" } } do
      local name = ("ucx%s-%s%s"):format(version, way[1],
                                         words[1] and "-am" or "")
      local one = {
        name = name, group = needs.group, program = program, words = words,
        path = way[3], modes = { "echo", "pipelined" },
        env = { UCX_TLS = way[2], UCX_WARN_UNUSED_ENV_VARS = "n",
                UCX_NET_DEVICES = way[3] == "tcp" and "lo" or nil },
      }
      for key, value in pairs(needs) do one[key] = value end
      list[#list + 1] = one
    end
  end
end

add("", "ucx", { group = "ucx", target = { "libucx-cu12", "libucx-cu12" },
                 fetches = "43 MB" })
add("1.13", "ucx-debian", { group = "ucx-debian", debian = { "libucx-dev" },
                            fetches = "2 MB" })
return list
