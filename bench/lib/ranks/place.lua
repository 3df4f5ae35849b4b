-- SPDX-License-Identifier: Apache-2.0
-- Which of the job's processes this one is, and where they meet. With --ranks N
-- and no launcher the bench starts its ranks itself, on this host.
--
-- The ranks meet by name, in a scope of the job, if all are on this host. Else
-- rank 0 listens at MASTER_ADDR (of Slurm the first host), one port above
-- MASTER_PORT, which torchrun itself may use.

local perigee = require "perigee"
local process = require "bench.lib.process"

local M = {}

local PORT = 29471

local function fail(...) error((...):format(select(2, ...)), 0) end

-- The ranks that --ranks N starts are told as `perigee run` tells its own.
local function environment(rank, size)
  for name, value in pairs { RANK = rank, SIZE = size, LOCAL_RANK = rank,
                             LOCAL_SIZE = size, JOB = process.pid() } do
    process.setenv("PERIGEE_" .. name, tostring(value))
  end
end

--- Starts N ranks, passes on what rank 0 prints, and ends with the status of
-- the worst of them.
function M.start(size)
  local children, worst = {}, 0
  for rank = 0, size - 1 do
    environment(rank, size)
    local words = process.interpreter()
    for i = 0, #arg do words[#words + 1] = arg[i] end
    words[#words + 1], words[#words + 2] = "--parent", process.pid()
    children[rank] = assert(process.spawn(words))
  end
  for line in children[0]:lines() do
    print(line)
    io.flush()
  end
  for rank = 0, size - 1 do
    worst = math.max(worst, children[rank]:wait())
  end
  os.exit(worst)
end

-- The job's name as part of a scope's.
local function scope_of(told)
  local job = (told.job or "none") .. "-" .. (os.getenv "MASTER_PORT" or "0")
  return "ranks-" .. job:gsub("[^%w._-]", "-"):sub(-50)
end

local function master_of(told, port)
  local host = told.address:match "^%[(.*)%]" or told.address:match "^[^:]+"
  local given = told.address:match ":(%d+)$"
  port = port or given and tonumber(given) + 1 or PORT
  return host, ("tcp://%s:%d"):format(host:find ":" and "[" .. host .. "]"
                                      or host, port)
end

--- Returns this rank's place: rank, size, scope, and of several hosts host
-- (rank 0's) and master (its address); or nil: there is no launcher.
function M.of(given)
  local told, err = perigee.launch()
  if not told then
    if err.kind ~= "not_found" then error(err.message, 0) end
    return nil
  end
  if given.ranks and given.ranks ~= told.size then
    fail("--ranks is %d, and %s says that there are %d", given.ranks,
         told.launcher, told.size)
  end
  local place = { rank = told.rank, size = told.size, scope = scope_of(told) }
  if told.local_size == told.size then return place end
  if told.address then
    place.host, place.master = master_of(told, given.port)
  elseif told.local_size then
    fail("%s has started ranks on several hosts: set MASTER_ADDR to an address "
      .. "of rank 0's", told.launcher)
  end
  return place
end

return M
