-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: processors, nodes, clocks.
local case = require "spec.support.doctor_case"

before_each(case.start)
after_each(case.finish)

describe("the check of processors", function()
  local cpu, node = "/sys/devices/system/cpu/", "/sys/devices/system/node/"

  it("wants two", function()
    case.fake:put("/proc/self/status", "Cpus_allowed_list:\t0-2,5")
    case.expect("processor", "processors", "ok", "4 (0-2,5)")
    case.fake:put("/proc/self/status", "Cpus_allowed_list:\t3")
    case.expect("processor", "processors", "note", "1 (3)")
  end)

  it("knows the time that control groups give", function()
    case.capabilities "0"
    case.fake:put("/proc/self/cgroup", "0::/")
    case.fake:put("/sys/fs/cgroup/cpu.max", "50000 100000")
    case.expect("processor", "processors", "note", "time of 0.5 by the control")
    case.fake:put("/sys/fs/cgroup/cpu.max", "max 100000")
    case.expect("processor", "processors", "ok", "4 (0-3)")
    case.fake:put("/proc/self/cgroup", "1:cpu,cpuacct:/x")
    case.fake:put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", 150000)
    case.fake:put("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", 100000)
    case.fake:put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1)
    case.expect("processor", "processors", "note", "time of 1.5")
  end)

  it("wants the clock up", function()
    case.fake:put(cpu .. "cpu0/cpufreq/scaling_governor", "performance")
    case.expect("processor", "frequency", "ok", "governor performance")
    case.fake:put(cpu .. "cpu1/cpufreq/scaling_governor", "powersave")
    case.expect("processor", "frequency", "note", "performance, powersave",
      "echo performance | tee " .. cpu .. "cpu*/cpufreq/scaling_governor")
  end)

  it("wants a clock that is read without a system call", function()
    local clocks = "/sys/devices/system/clocksource/clocksource0/"
    case.fake:put(clocks .. "current_clocksource", "tsc")
    case.expect("processor", "clock", "ok", "tsc")
    case.fake:put(clocks .. "current_clocksource", "hpet")
    case.expect("processor", "clock", "warning", "hpet",
           "dmesg | grep -iE 'tsc|clocksource'")
    case.fake:put(clocks .. "available_clocksource", "hpet tsc acpi_pm")
    case.expect("processor", "clock", "warning", "hpet",
           "echo tsc | tee " .. clocks .. "current_clocksource")
  end)

  it("knows whether it ciphers", function()
    case.fake:put("/proc/cpuinfo", "flags\t\t: fpu aes pclmulqdq avx\n\n")
    case.expect("processor", "encryption", "ok", "AES-GCM")
    case.fake:put("/proc/cpuinfo", "flags\t\t: fpu aes sse2\n\n")
    case.expect("processor", "encryption", "note", "ChaCha20")
    case.fake:put("/proc/cpuinfo", "Features\t: fp asimd aes pmull")
    case.expect("processor", "encryption", "ok", "AES-GCM")
  end)

  it("knows nodes, and which of them a NIC is on", function()
    case.fake:put(node .. "online", "0")
    case.expect("processor", "NUMA", "ok", "one node")
    case.fake:put(node .. "online", "0-1")
    case.expect("processor", "NUMA", "note", "2 nodes (0-1)")
    case.rdma "mlx5_0"
    case.fake:put("/sys/class/infiniband/mlx5_0/device/numa_node", 1)
    case.fake:put("/sys/class/net/eth0/device/numa_node", -1)
    case.fake:put(node .. "node1/cpulist", "2-3")
    case.capabilities "0"
    case.expect("processor", "NUMA", "note", "mlx5_0 is on node 1",
           "numactl --cpunodebind=1 --membind=1 luajit serve.lua")
    case.fake:put(node .. "node1/cpulist", "8-15")
    case.expect("processor", "NUMA", "warning", "none of whose processors",
           "taskset -c 8-15 luajit serve.lua")
  end)

  it("tells NUMA balancing", function()
    local file = "/proc/sys/kernel/numa_balancing"
    case.expect("processor", "NUMA balancing", "ok", "not in this kernel")
    case.fake:put(file, 0)
    case.expect("processor", "NUMA balancing", "ok", "off")
    case.fake:put(file, 1)
    case.expect("processor", "NUMA balancing", "note", "on",
           "sysctl -w kernel.numa_balancing=0")
  end)
end)
