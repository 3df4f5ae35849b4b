-- SPDX-License-Identifier: Apache-2.0
--- perigee.launch: what a launcher has told this process by its environment.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"

local M = {}

-- The variables of each launcher, the innermost first: Open MPI and torchrun
-- run below Slurm and Kubernetes. The first of several variables that is set
-- counts. rank and size must be there, and what it `needs`. MPICH's mpiexec
-- tells the local rank; `srun --mpi=pmi2` tells the rank and size as MPICH
-- does, and the rest as ever.
local LAUNCHERS = {
  { name = "perigee run", rank = { "PERIGEE_RANK" }, size = { "PERIGEE_SIZE" },
    local_rank = { "PERIGEE_LOCAL_RANK" },
    local_size = { "PERIGEE_LOCAL_SIZE" }, job = { "PERIGEE_JOB" } },
  { name = "torchrun", rank = { "RANK" }, size = { "WORLD_SIZE" },
    local_rank = { "LOCAL_RANK" }, local_size = { "LOCAL_WORLD_SIZE" },
    job = { "TORCHELASTIC_RUN_ID" }, needs = function(get)
      return get "WORLD_SIZE"
    end },
  { name = "Open MPI", rank = { "OMPI_COMM_WORLD_RANK" },
    size = { "OMPI_COMM_WORLD_SIZE" },
    local_rank = { "OMPI_COMM_WORLD_LOCAL_RANK" },
    local_size = { "OMPI_COMM_WORLD_LOCAL_SIZE" },
    job = { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" } },
  { name = "MPICH", rank = { "PMI_RANK" }, size = { "PMI_SIZE" },
    local_rank = { "MPI_LOCALRANKID" }, local_size = { "MPI_LOCALNRANKS" },
    job = { "PMI_JOBID" }, needs = function(get)
      return get "MPI_LOCALRANKID" or not get "SLURM_STEP_ID"
        and not get "SLURM_STEPID"
    end },
  { name = "Slurm", rank = { "PMI_RANK", "SLURM_PROCID" },
    size = { "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
             "SLURM_NPROCS" },
    local_rank = { "SLURM_LOCALID" }, needs = function(get)
      return get "SLURM_PROCID"
    end },
  { name = "Kubernetes", rank = { "JOB_COMPLETION_INDEX" },
    size = { "PERIGEE_SIZE", "WORLD_SIZE" }, job = { "PERIGEE_JOB" } },
}

local function get(name)
  local value = os.getenv(name)
  if value ~= "" then return value end
end

-- The value of the first variable that is set, and its name.
local function first(names)
  for _, name in ipairs(names or {}) do
    local value = get(name)
    if value then return value, name end
  end
end

local function fail(kind, ...)
  return nil, errors.new(kind, "asking for this process's rank: "
    .. (...):format(select(2, ...)), false)
end

-- ---- What Slurm and Kubernetes say otherwise -------------------------------

-- The first host of "node[07-09,12],other", or of "rack[1-2]node[3-4]".
local function first_host(list)
  return list:gsub("%[(%d+)[^%]]*%]", "%1"):match "^[^,]+"
end

-- The number of tasks on a node, of "2(x3),1": two on each of three nodes, one
-- on the fourth.
local function tasks_on(list, node)
  local before = 0
  for count, times in list:gmatch "(%d+)%(?x?(%d*)%)?" do
    before = before + (tonumber(times) or 1)
    if node < before then return tonumber(count) end
  end
end

local function slurm(told)
  local tasks = first { "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE" }
  local node = tonumber(get "SLURM_NODEID" or "")
  local nodes = first { "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                        "SLURM_NODELIST" }
  local id = first { "SLURM_JOB_ID", "SLURM_JOBID" }
  local step = first { "SLURM_STEP_ID", "SLURM_STEPID" }
  told.local_size = tasks and node and tasks_on(tasks, node)
  told.job = id and step and id .. "." .. step or id
  told.address = nodes and first_host(nodes)
    or first { "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST" }
end

-- A pod of an indexed job has the job's name and its index as its host's name.
local function kubernetes(told)
  local host = get "HOSTNAME" or ""
  told.job = told.job or host:match("^(.*)%-" .. told.rank .. "$")
  told.local_rank, told.local_size = 0, 1
end

local MORE = { Slurm = slurm, Kubernetes = kubernetes }

-- ---- Reading ---------------------------------------------------------------

-- FNV-1a, as 16 digits.
local function hash(text)
  local sum = 0xcbf29ce484222325ULL
  for i = 1, #text do
    sum = bit.bxor(sum, text:byte(i)) * 0x100000001b3ULL
  end
  return bit.tohex(sum, 16)
end
jit.off(hash)

-- A launcher's text as a key. A text that is a valid key stays as it is. Any
-- other becomes its readable characters and a hash, so that two texts do not
-- become one key.
local function key_of(text)
  if not text or not check.key(text) then return text end
  local most = check.KEY - 1 - 16
  local readable = text:gsub("[^%w._:-]", "-"):gsub("^%.", "-")
  return readable:sub(1, most) .. "-" .. hash(text)
end

-- The number of a variable; nil where it is not set, and an error where it is
-- no number of at least `least`.
local function number(launcher, names, least)
  local text, name = first(names)
  if not text then return nil end
  local value = text:match "^%d+$" and tonumber(text)
  if value and value >= least and value < 2 ^ 31 then return value end
  return fail("protocol", "%s is %q, and %s sets it to a number from %d on",
              name, text, launcher.name, least)
end

local function read(launcher)
  local told, err = { launcher = launcher.name }
  for field, least in pairs { rank = 0, size = 1, local_rank = 0,
                              local_size = 1 } do
    told[field], err = number(launcher, launcher[field], least)
    if err then return nil, err end
  end
  if not told.size then
    return fail("not_found", "%s has set %s, and not %s", launcher.name,
                launcher.rank[1], table.concat(launcher.size, " or "))
  elseif told.rank >= told.size then
    return fail("protocol", "%s says rank %d of %d", launcher.name, told.rank,
                told.size)
  end
  told.job = first(launcher.job)
  if MORE[launcher.name] then MORE[launcher.name](told) end
  told.job = key_of(told.job)
  local host, port = get "MASTER_ADDR", get "MASTER_PORT"
  told.address = host and (port and host .. ":" .. port or host)
    or told.address or nil
  told.local_size = told.local_size or nil
  return told
end
jit.off(read)

--- Tells which of a job's processes this one is, by what its launcher has set
-- in its environment: `perigee run`, torchrun, Open MPI's mpirun, MPICH's (also
-- Intel MPI's) mpiexec, Slurm's srun (also with `--mpi=pmi2`), or an indexed
-- Job of Kubernetes. The first of these that has set something counts.
-- Kubernetes does not tell the size: set PERIGEE_SIZE (or WORLD_SIZE) in the
-- pod to the Job's `completions`. In a batch script of Slurm's that is not run
-- by srun the process is rank 0 of all.
--
-- The table has `launcher` (a name: "perigee run", "torchrun", "Open MPI",
-- "MPICH", "Slurm", "Kubernetes"), `rank` (from 0) and `size`, and where it is
-- known
--
-- * `local_rank` (from 0) and `local_size`: among the processes of this host
-- * `job`: a text that is the same in all processes of the job, and a valid key
--   of `Agent:rendezvous`. It is what the launcher says, if that is one; else
--   (it has other characters, or more than 40) the beginning of that with "-"
--   for other characters, "-" and a hash of it
-- * `address`: where the processes can meet, "HOST:PORT" or "HOST": that of
--   MASTER_ADDR and MASTER_PORT; by Slurm the first host of the job
-- @function perigee.launch
-- @treturn table plain values; or nil and an error
-- @errors `not_found`: no launcher has started this process; `protocol`: what
--   it has set makes no sense
-- @waits no
-- @usage
-- local me, err = perigee.launch()
-- if me then
--   print(("rank %d of %d by %s"):format(me.rank, me.size, me.launcher))
-- else
--   print(err.kind)                                            --> not_found
-- end
function M.launch()
  for _, launcher in ipairs(LAUNCHERS) do
    if first(launcher.rank)
      and (not launcher.needs or launcher.needs(get)) then
      return read(launcher)
    end
  end
  return fail("not_found", "no launcher has started this process: neither "
    .. "perigee run, torchrun, mpirun, srun nor an indexed Job of Kubernetes")
end

return M
