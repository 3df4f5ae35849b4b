-- SPDX-License-Identifier: Apache-2.0
--- Memory: how much there is, how much may be locked, and its pages.
local cgroup = require "perigee.cli.doctor.cgroup"
local units = require "perigee.runtime.units"
local verdict = require "perigee.cli.doctor.verdict"

local ok, note, warning, problem =
  verdict.ok, verdict.note, verdict.warning, verdict.problem

local MEBIBYTE, GIBIBYTE = 2 ^ 20, 2 ^ 30
local CAP_IPC_LOCK = 14
local HUGE = "/sys/kernel/mm/transparent_hugepage/"

local size = units.format_size

-- ---- Locked memory --------------------------------------------------------

local function lock_more(machine)
  if machine:contained() then
    return "start the container with docker's --ulimit memlock=-1, or what is "
      .. "as much elsewhere"
  end
  return "lift the limit, and log in again (of a systemd unit: "
    .. "LimitMEMLOCK=infinity)",
    "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf"
end

local function locked(machine)
  local limit = machine:limit "Max locked memory"
  if not limit then return verdict.unknown "/proc/self/limits is not there" end
  if limit == math.huge then return ok "unlimited" end
  if machine:capable(CAP_IPC_LOCK) then
    return ok(size(limit) .. ", and this process may exceed it (CAP_IPC_LOCK)")
  end
  if #machine:glob "/sys/class/infiniband/*" == 0 then
    return ok(size(limit) .. "; matters to RDMA only, and there is no device")
  end
  local judge = limit < GIBIBYTE and warning or note
  return judge(size(limit), lock_more(machine))
end

-- ---- How much there is ----------------------------------------------------

local function available(machine)
  local meminfo = machine:read "/proc/meminfo" or ""
  local kib = meminfo:match "MemAvailable:%s*(%d+)"
  local free = kib and tonumber(kib) * 1024
  local limit, used = cgroup.memory(machine)
  local left = limit and limit - used
  if not free and not left then
    return verdict.unknown "neither /proc/meminfo nor a control group tells"
  end
  local text = free and size(free) .. " available" or "machine's is unknown"
  if limit then
    text = text .. ("; control group: %s used of %s"):format(size(used),
                                                             size(limit))
  end
  if math.min(free or math.huge, left or math.huge) < 256 * MEBIBYTE then
    return warning(text, "free memory, or raise the control group's "
      .. "memory.max (docker: --memory)")
  end
  return ok(text)
end

-- With strict overcommit all mapped memory has to exist, used or not.
local function overcommit(machine)
  local mode = machine:number "/proc/sys/vm/overcommit_memory"
  if not mode then
    return verdict.unknown "/proc/sys/vm/overcommit_memory is not there"
  end
  if mode == 2 then
    return warning("strict (vm.overcommit_memory = 2)",
      "let memory be mapped before it is used",
      "sudo sysctl -w vm.overcommit_memory=0")
  end
  return ok("vm.overcommit_memory = " .. mode)
end

-- ---- Shared memory --------------------------------------------------------

local function memfd(machine)
  if machine:number "/proc/sys/vm/memfd_noexec" == 2 then
    return problem("vm.memfd_noexec = 2 refuses them", "allow them",
      "sudo sysctl -w vm.memfd_noexec=1")
  end
  return ok "memfds, bounded by memory alone"
end

local function shm(machine)
  local all, free = machine:space "/dev/shm"
  if not all then
    return note("/dev/shm is not there", "mount it",
      "sudo mkdir -p /dev/shm && sudo mount -t tmpfs tmpfs /dev/shm")
  end
  local text = ("/dev/shm: %s free of %s"):format(size(free), size(all))
  if all > 64 * MEBIBYTE and free >= 64 * MEBIBYTE then return ok(text) end
  if machine:contained() then
    return note(text, "if such libraries are used beside Perigee, start the "
      .. "container with docker's --shm-size=8g, or what is as much elsewhere")
  end
  return note(text, "if such libraries are used beside Perigee, enlarge it or "
    .. "remove what is left in it",
    "sudo mount -o remount,size=50% /dev/shm; ls -l /dev/shm")
end

-- ---- Pages ----------------------------------------------------------------

local ADVISED = { always = true, advise = true, madvise = true,
                  within_size = true, force = true }

local function huge_setting(machine, file, what, value)
  local chosen = machine:chosen(HUGE .. file)
  if not chosen then return note(what .. ": unknown") end
  local text = ("%s: %s"):format(what, chosen)
  if ADVISED[chosen] then return ok(text) end
  return note(text, "let regions of 2 MiB and more have huge pages",
    ("echo %s | sudo tee %s%s"):format(value, HUGE, file))
end

local function huge(machine)
  return {
    huge_setting(machine, "shmem_enabled", "of memory that peers map",
                 "advise"),
    huge_setting(machine, "enabled", "of other memory", "madvise"),
  }
end

-- Perigee never uses memory in reserved huge pages.
local function reserved(machine)
  local meminfo = machine:read "/proc/meminfo" or ""
  local total = tonumber(meminfo:match "HugePages_Total:%s*(%d+)")
  if not total then return verdict.unknown "/proc/meminfo does not tell" end
  if total == 0 then return ok "none" end
  local free = tonumber(meminfo:match "HugePages_Free:%s*(%d+)" or 0)
  local kib = tonumber(meminfo:match "Hugepagesize:%s*(%d+)" or 2048)
  local text = ("%d of %s, %d free"):format(total, size(kib * 1024), free)
  if free == 0 then return ok(text) end
  return note(text, "give back what no other program uses",
    "sudo sysctl -w vm.nr_hugepages=" .. total - free)
end

return {
  { name = "memory", look = available,
    why = "Regions, rings and pooled blocks are counted to the control group "
      .. "of who touches them first; beyond its limit the process is killed" },
  { name = "locked memory", look = locked,
    why = "RDMA locks every region and ring that a NIC may reach; beyond the "
      .. "limit registering fails" },
  { name = "overcommit", look = overcommit,
    why = "Regions are mapped whole before they are used; strict accounting "
      .. "refuses them early" },
  { name = "shared memory", look = memfd,
    why = "Memory that peers map is a memfd" },
  { name = "/dev/shm", look = shm,
    why = "Perigee does not use it, but MPI, NCCL and UCX do, and 64 MiB, the "
      .. "default of containers, is too little for them" },
  { name = "huge pages", look = huge,
    why = "In pages of 4 KiB large copies miss the TLB, and RDMA NICs their "
      .. "own table" },
  { name = "reserved pages", look = reserved,
    why = "Perigee asks for transparent huge pages; reserved ones are lost to "
      .. "it" },
}
