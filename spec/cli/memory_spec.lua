-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: amount of memory, limit of locked memory, page sizes.
local case = require "spec.support.doctor_case"

before_each(case.start)
after_each(case.finish)

describe("the check of locked memory", function()
  it("is content without a limit, or without RDMA", function()
    case.limits "Max locked memory   unlimited   unlimited   bytes"
    case.expect("memory", "locked memory", "ok", "unlimited")
    case.limits "Max locked memory   8388608   8388608   bytes"
    case.expect("memory", "locked memory", "ok", "8 MiB; matters to RDMA only")
  end)

  it("wants more where there is a device", function()
    case.rdma "mlx5_0"
    case.limits "Max locked memory   8388608   8388608   bytes"
    case.expect("memory", "locked memory", "warning", "8 MiB",
      "echo '* - memlock unlimited' | tee /etc/security/limits.d/rdma.conf")
    case.limits "Max locked memory   8589934592   8589934592   bytes"
    case.expect("memory", "locked memory", "note", "8 GiB")
    case.fake:put("/.dockerenv", "")
    local found = case.expect("memory", "locked memory", "note", "8 GiB")
    assert.matches("%-%-ulimit memlock", found.fix)
  end)

  it("knows who may exceed it", function()
    case.rdma "mlx5_0"
    case.limits "Max locked memory   8388608   8388608   bytes"
    case.capabilities "0000000000004000"
    case.expect("memory", "locked memory", "ok", "CAP_IPC_LOCK")
  end)
end)

describe("the check of memory", function()
  local function meminfo(mebibytes)
    case.fake:put("/proc/meminfo", ("MemTotal: 1 kB\nMemAvailable:  %d kB\n")
             :format(mebibytes * 1024))
  end

  it("wants some", function()
    meminfo(2048)
    case.expect("memory", "memory", "ok", "2 GiB available")
    meminfo(100)
    case.expect("memory", "memory", "warning", "100 MiB available")
  end)

  it("knows the limits of control groups, the closest of those above",
    function()
    meminfo(2048)
    case.fake:put("/proc/self/cgroup", "0::/a.slice/b.scope")
    case.fake:put("/sys/fs/cgroup/a.slice/memory.max", 512 * 2 ^ 20)
    case.fake:put("/sys/fs/cgroup/a.slice/memory.current", 300 * 2 ^ 20)
    case.fake:put("/sys/fs/cgroup/a.slice/b.scope/memory.max", "max")
    case.expect("memory", "memory", "warning", "300 MiB used of 512 MiB")
    case.fake:put("/sys/fs/cgroup/a.slice/memory.current", 100 * 2 ^ 20)
    case.expect("memory", "memory", "ok", "100 MiB used of 512 MiB")
  end)

  it("knows those of version 1, from inside a container too", function()
    case.fake:put("/proc/self/cgroup", "4:cpu,memory:/docker/1234")
    case.fake:put("/sys/fs/cgroup/memory/memory.limit_in_bytes", 2 ^ 28)
    case.fake:put("/sys/fs/cgroup/memory/memory.usage_in_bytes", 2 ^ 27)
    case.expect("memory", "memory", "warning", "128 MiB used of 256 MiB")
    case.fake:put("/sys/fs/cgroup/memory/memory.limit_in_bytes",
             "9223372036854771712")
    case.expect("memory", "memory", "note", "unknown")
  end)

  it("tells strict overcommit", function()
    case.fake:put("/proc/sys/vm/overcommit_memory", 1)
    case.expect("memory", "overcommit", "ok", "= 1")
    case.fake:put("/proc/sys/vm/overcommit_memory", 2)
    case.expect("memory", "overcommit", "warning", "strict",
           "sysctl -w vm.overcommit_memory=0")
  end)

  it("tells where memfds are refused", function()
    case.fake:put("/proc/sys/vm/memfd_noexec", 1)
    case.expect("memory", "shared memory", "ok", "memfds")
    case.fake:put("/proc/sys/vm/memfd_noexec", 2)
    case.expect("memory", "shared memory", "problem", "memfd_noexec = 2",
           "sysctl -w vm.memfd_noexec=1")
  end)

  it("tells a /dev/shm that is small, full or missing", function()
    case.expect("memory", "/dev/shm", "note", "is not there")
    local all, free = 2 ^ 30, 2 ^ 29
    case.fake.machine.space = function() return all, free end
    case.expect("memory", "/dev/shm", "ok", "512 MiB free of 1 GiB")
    free = 0
    case.expect("memory", "/dev/shm", "note", "0 B free of 1 GiB",
           "mount -o remount,size=50% /dev/shm; ls -l /dev/shm")
    case.fake:put("/run/.containerenv", "")
    all, free = 2 ^ 26, 2 ^ 26
    local found = case.expect("memory", "/dev/shm", "note",
      "64 MiB free of 64 MiB")
    assert.matches("%-%-shm%-size", found.fix)
  end)

  it("tells where huge pages are off", function()
    local folder = "/sys/kernel/mm/transparent_hugepage/"
    case.fake:put(folder .. "shmem_enabled",
             "always within_size advise [never] deny force")
    case.fake:put(folder .. "enabled", "always [madvise] never")
    case.expect("memory", "huge pages", "note",
      "of memory that peers map: never",
           "echo advise | tee " .. folder .. "shmem_enabled")
    case.expect("memory", "huge pages", "ok", "of other memory: madvise")
    case.fake:put(folder .. "enabled", "always madvise [never]")
    case.expect("memory", "huge pages", "note", "of other memory: never",
           "echo madvise | tee " .. folder .. "enabled")
  end)

  it("tells pages that were reserved for nobody", function()
    local function pages(total, free)
      case.fake:put("/proc/meminfo",
        ("HugePages_Total: %d\nHugePages_Free: %d\n"
               .. "Hugepagesize: 2048 kB"):format(total, free))
    end
    pages(0, 0)
    case.expect("memory", "reserved pages", "ok", "none")
    pages(8, 0)
    case.expect("memory", "reserved pages", "ok", "8 of 2 MiB, 0 free")
    pages(8, 6)
    case.expect("memory", "reserved pages", "note", "8 of 2 MiB, 6 free",
           "sysctl -w vm.nr_hugepages=2")
  end)
end)
