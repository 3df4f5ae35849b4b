-- SPDX-License-Identifier: Apache-2.0
-- The attacks by name: the file of attacks/ (the name itself, if not given),
-- the transports, how long a short run takes, and the judge's settings.
local M = {}

local function any(name, about, options)
  local one = { name = name, about = about, seconds = 0.6,
                on = { shm = true, tcp = true } }
  for key, value in pairs(options or {}) do one[key] = value end
  one.file = one.file or name
  M[#M + 1] = one
end

local function only(transport, name, about, options)
  any(name, about, options)
  M[#M].on = { [transport] = true }
end

-- Also over an emulated RDMA device, in a guest: attacks that do not depend on
-- time or memory.
local function everywhere(...)
  any(...)
  M[#M].on.verbs = true
end

everywhere("bombs", "calls with more values than a function takes")
everywhere("liars", "a server that lies to whoever calls",
           { judge = { serves = true } })
everywhere("capacities", "replies that ask for less than they get")
everywhere("records", "records at random that the scanner lets pass")
any("floods", "tables whose keys all have one hash", { seconds = 0.3 })
any("tables", "bytes that become as many tables", { seconds = 0.5 })
any("operations", "messages that nobody receives")
any("operations of many", "messages of many peers that nobody receives",
    { file = "operations", seconds = 1, judge = { more = "each=peer",
      crowd = 4 } })
any("storms", "peers that are stopped and killed in the midst of calls",
    { seconds = 1 })
any("pools", "slices that are announced and never come")
any("readers", "peers that read no reply")
any("churn", "a peer that comes and goes without end")
any("idlers", "sessions that do nothing", { seconds = 3 })
only("shm", "outboxes", "sparse memory, as long as it may be announced",
     { seconds = 1, judge = { crowd = 3 } })
only("shm", "holes", "loans of memory that has no page", { seconds = 1,
     judge = { holds = true, more = "by=loans" } })
only("shm", "holes in rings", "replies that fill rings that have no page",
     { file = "holes", seconds = 1, judge = { holds = true, more = "by=rings",
       preload = "spec/hostile/sparse.so" } })
only("shm", "scribbles", "random bytes over all shared memory",
     { judge = { mortal = true } })
only("shm", "forks", "a death that a child hides")
for _, lie in ipairs { "scribble", "records", "replies", "words" } do
  only("shm", "lies of " .. lie, "a peer that breaks every rule that memory "
       .. "lets it break: " .. lie, { file = "lies",
       judge = { mortal = true, more = "lie=" .. lie } })
end
only("tcp", "strangers", "4,000 strangers a second from another address",
     { file = "strangers", seconds = 1, judge = { more = "from=2" } })
only("tcp", "strangers from here", "4,000 strangers a second from the "
     .. "clients' own address", { file = "strangers", seconds = 1,
     judge = { more = "from=" } })
only("tcp", "flips", "turned bits of a handshake in plain",
     { file = "flips", seconds = 1 })
only("tcp", "flips, authenticated", "turned bits of what is authenticated",
     { file = "flips", seconds = 1, encrypt = "auth",
       judge = { more = "encrypt=auth" } })
only("tcp", "flips, encrypted", "turned bits of what is encrypted",
     { file = "flips", seconds = 1, encrypt = true,
       judge = { more = "encrypt=true" } })

return M
