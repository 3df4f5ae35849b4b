-- SPDX-License-Identifier: Apache-2.0
-- perigee.launch: what each launcher sets, as it documents it.
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

if not pcall(function() return ffi.C.spec_launch_setenv end) then
  ffi.cdef [[
    int spec_launch_setenv(const char *, const char *, int) __asm__("setenv");
    int spec_launch_unsetenv(const char *) __asm__("unsetenv");
  ]]
end

-- Whatever runs these specs may have been started by a launcher.
local VARIABLES = {
  "PERIGEE_RANK", "PERIGEE_SIZE", "PERIGEE_LOCAL_RANK", "PERIGEE_LOCAL_SIZE",
  "PERIGEE_JOB", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
  "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
  "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
  "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
  "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID",
  "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS",
  "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
  "SLURM_NODEID", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
  "SLURM_NODELIST", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID",
  "SLURM_STEPID", "SLURM_LAUNCH_NODE_IPADDR", "JOB_COMPLETION_INDEX",
  "HOSTNAME", "SLURM_SRUN_COMM_HOST", "PMI_FD", "PMIX_RANK",
}

local before = {}

local function put(name, value)
  if value then
    ffi.C.spec_launch_setenv(name, value, 1)
  else
    ffi.C.spec_launch_unsetenv(name)
  end
end

before_each(function()
  for _, name in ipairs(VARIABLES) do
    before[name] = os.getenv(name)
    put(name, nil)
  end
end)

after_each(function()
  for _, name in ipairs(VARIABLES) do put(name, before[name]) end
end)

local function launched(environment)
  for name, value in pairs(environment) do put(name, value) end
  return perigee.launch()
end

describe("perigee.launch", function()
  it("reads what perigee run sets", function()
    assert.same({ launcher = "perigee run", rank = 0, size = 4, local_rank = 0,
                  local_size = 4, job = "run-1" }, launched {
      PERIGEE_RANK = "0", PERIGEE_SIZE = "4", PERIGEE_LOCAL_RANK = "0",
      PERIGEE_LOCAL_SIZE = "4", PERIGEE_JOB = "run-1" })
  end)

  it("reads what torchrun sets", function()
    assert.same({ launcher = "torchrun", rank = 5, size = 8, local_rank = 1,
                  local_size = 4, job = "none", address = "10.0.0.1:29500" },
      launched { RANK = "5", WORLD_SIZE = "8", LOCAL_RANK = "1",
                 LOCAL_WORLD_SIZE = "4", GROUP_RANK = "1",
                 TORCHELASTIC_RUN_ID = "none", MASTER_ADDR = "10.0.0.1",
                 MASTER_PORT = "29500" })
  end)

  it("reads what srun sets", function()
    assert.same({ launcher = "Slurm", rank = 4, size = 7, local_rank = 0,
                  local_size = 2, job = "4711.0", address = "node007" },
      launched { SLURM_PROCID = "4", SLURM_NTASKS = "16",
                 SLURM_STEP_NUM_TASKS = "7", SLURM_LOCALID = "0",
                 SLURM_NODEID = "2", SLURM_STEP_TASKS_PER_NODE = "2(x3),1",
                 SLURM_JOB_ID = "4711", SLURM_STEP_ID = "0",
                 SLURM_STEP_NODELIST = "node[007-009,012]",
                 SLURM_LAUNCH_NODE_IPADDR = "10.0.0.9" })
  end)

  it("reads what srun sets with --mpi=pmi2, and mpiexec below Slurm", function()
    local slurm = { SLURM_PROCID = "4", SLURM_NTASKS = "7",
      SLURM_STEP_NUM_TASKS = "7", SLURM_LOCALID = "0", SLURM_NODEID = "1",
      SLURM_STEP_TASKS_PER_NODE = "4(x1),3", SLURM_JOB_ID = "4711",
      SLURM_STEP_ID = "2", SLURM_STEP_NODELIST = "node[007-008]",
      PMI_FD = "9", PMI_RANK = "4", PMI_SIZE = "7", PMI_JOBID = "4711.2" }
    local told = { launcher = "Slurm", rank = 4, size = 7, local_rank = 0,
                   local_size = 3, job = "4711.2", address = "node007" }
    assert.same(told, launched(slurm))
    put("SLURM_STEP_NODELIST", nil)
    put("SLURM_SRUN_COMM_HOST", "10.0.0.9")
    told.address = "10.0.0.9"
    assert.same(told, perigee.launch())
    for name, value in pairs { MPI_LOCALRANKID = "1", MPI_LOCALNRANKS = "2",
                               PMI_RANK = "5" } do
      put(name, value)
    end
    assert.same({ launcher = "MPICH", rank = 5, size = 7, local_rank = 1,
                  local_size = 2, job = "4711.2" }, perigee.launch())
  end)

  it("tells a job that is the key of a rendezvous, whatever its name",
     function()
    local agent = assert(perigee.agent { scope = "launch" .. process.pid() })
    local seen = {}
    for _, job in ipairs { "4711.0", "prterun-host-1234@1",
                           "prterun-host-1234/1", ".hidden", ("a"):rep(40),
                           ("a"):rep(41), ("a"):rep(42), "\195\164",
                           "a b" } do
      local told = launched { PERIGEE_RANK = "0", PERIGEE_SIZE = "1",
                              PERIGEE_JOB = job }
      assert.is_nil(seen[told.job])
      seen[told.job] = job
      assert.equal(0, (assert(agent:rendezvous(told.job, 1, 20))))
    end
    assert.is_truthy(seen["4711.0"] and seen[("a"):rep(40)])
    agent:close()
  end)

  it("understands Slurm's lists of hosts and tasks", function()
    for list, host in pairs {
      ["a"] = "a", ["a,b[1-2]"] = "a", ["tux[0-2,5],other"] = "tux0",
      ["rack[01-02]-node,x"] = "rack01-node",
      ["rack[1-2]node[3,5-7],x"] = "rack1node3",
    } do
      local told = launched { SLURM_PROCID = "0", SLURM_NTASKS = "3",
                              SLURM_NODELIST = list, SLURM_NODEID = "3",
                              SLURM_TASKS_PER_NODE = "2(x3),1" }
      assert.equal(host, told.address)
      assert.equal(1, told.local_size)
    end
  end)

  it("reads what Open MPI sets, also below Slurm", function()
    assert.same({ launcher = "Open MPI", rank = 3, size = 4, local_rank = 1,
                  local_size = 2, job = "prterun-host-1-1-58138812e4da1bd3" },
      launched {
      OMPI_COMM_WORLD_RANK = "3", OMPI_COMM_WORLD_SIZE = "4",
      OMPI_COMM_WORLD_LOCAL_RANK = "1", OMPI_COMM_WORLD_LOCAL_SIZE = "2",
      PMIX_NAMESPACE = "prterun-host-1@1", SLURM_PROCID = "1",
      SLURM_NTASKS = "2" })
  end)

  it("reads what MPICH sets", function()
    assert.same({ launcher = "MPICH", rank = 2, size = 3, local_rank = 0,
                  local_size = 1 }, launched {
      PMI_RANK = "2", PMI_SIZE = "3", MPI_LOCALRANKID = "0",
      MPI_LOCALNRANKS = "1" })
  end)

  it("reads what an indexed Job of Kubernetes sets", function()
    assert.same({ launcher = "Kubernetes", rank = 2, size = 3, local_rank = 0,
                  local_size = 1, job = "train-1",
                  address = "train-1-0.train:7471" }, launched {
      JOB_COMPLETION_INDEX = "2", PERIGEE_SIZE = "3", HOSTNAME = "train-1-2",
      MASTER_ADDR = "train-1-0.train", MASTER_PORT = "7471" })
  end)

  it("says that Kubernetes does not tell the size", function()
    local told, err = launched { JOB_COMPLETION_INDEX = "2" }
    assert.is_nil(told)
    assert.equal("not_found", err.kind)
    assert.matches("JOB_COMPLETION_INDEX, and not PERIGEE_SIZE or WORLD_SIZE",
                   err.message)
  end)

  it("says that no launcher was there", function()
    local told, err = launched { RANK = "3" }
    assert.is_nil(told)
    assert.equal("not_found", err.kind)
    assert.is_true(perigee.is_error(err))
  end)

  it("refuses ranks that make no sense", function()
    for rank, what in pairs { ["4"] = "says rank 4 of 4", x = 'PMI_RANK is "x"',
                              ["-1"] = "a number from 0 on" } do
      local told, err = launched { PMI_RANK = rank, PMI_SIZE = "4" }
      assert.is_nil(told)
      assert.equal("protocol", err.kind)
      assert.matches(what, err.message, 1, true)
    end
    local _, err = launched { PMI_RANK = "0", PMI_SIZE = "0" }
    assert.matches('PMI_SIZE is "0"', err.message, 1, true)
  end)
end)
