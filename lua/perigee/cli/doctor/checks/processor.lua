-- SPDX-License-Identifier: Apache-2.0
--- Processors, NUMA nodes, clocks.
local cgroup = require "perigee.cli.doctor.cgroup"
local verdict = require "perigee.cli.doctor.verdict"

local ok, note, warning = verdict.ok, verdict.note, verdict.warning

local CPUS, NODES = "/sys/devices/system/cpu/", "/sys/devices/system/node/"
local CLOCKS = "/sys/devices/system/clocksource/clocksource0/"

-- Returns "0-2,5" as an array and a set of numbers.
local function numbers(text)
  local list = {}
  for first, last in (text .. ","):gmatch "(%d+)%-?(%d*)[,\n]" do
    for number = tonumber(first), tonumber(last) or tonumber(first) do
      list[#list + 1] = number
      list["#" .. number] = true
    end
  end
  return list
end

local function allowed(machine)
  local text = machine:status "Cpus_allowed_list"
  return text and numbers(text), text
end

local function count(machine)
  local cpus, text = allowed(machine)
  if not cpus then return verdict.unknown "/proc/self/status is not there" end
  local quota = cgroup.processors(machine)
  local found = ("%d (%s)"):format(#cpus, text)
  if quota then
    found = found .. (", time of %.3g by the control group"):format(quota)
  end
  if #cpus > 1 and (quota or 2) >= 2 then return ok(found) end
  return note(found, "give a program that polls, and its peer on this host, "
    .. "two processors")
end

local function governors(machine)
  local list, seen = {}, {}
  for _, path in ipairs(machine:glob(CPUS .. "cpu*/cpufreq/scaling_governor"))
  do
    local governor = machine:read(path)
    if governor and not seen[governor] then
      list[#list + 1], seen[governor] = governor, true
    end
  end
  table.sort(list)
  return list
end

local function frequency(machine)
  local list = governors(machine)
  if #list == 0 then
    return verdict.unknown "no cpufreq here, as in virtual machines"
  end
  local found = "governor " .. table.concat(list, ", ")
  if #list == 1 and list[1] == "performance" then return ok(found) end
  return note(found, "keep the clock up where latency counts",
    "echo performance | sudo tee " .. CPUS .. "cpu*/cpufreq/scaling_governor")
end

local FAST_CLOCKS = { tsc = true, ["kvm-clock"] = true,
  arch_sys_counter = true, hyperv_clocksource_tsc_page = true }

local function clock(machine)
  local current = machine:read(CLOCKS .. "current_clocksource")
  if not current then
    return verdict.unknown "the kernel names no clock source"
  end
  if FAST_CLOCKS[current] then return ok(current) end
  local there = machine:read(CLOCKS .. "available_clocksource") or ""
  for name in there:gmatch "%S+" do
    if FAST_CLOCKS[name] then
      return warning(current, "take a clock that is read without a system call",
        ("echo %s | sudo tee %scurrent_clocksource"):format(name, CLOCKS))
    end
  end
  return warning(current, "find out why the kernel does not trust the faster "
    .. "ones (of a virtual machine: ask its host)",
    "sudo dmesg | grep -iE 'tsc|clocksource'")
end

-- Processor features that libsodium's AES-GCM needs.
local CIPHER = { x86 = { "aes", "pclmulqdq" }, arm = { "aes", "pmull" } }

local function cipher(machine)
  local text = machine:read "/proc/cpuinfo" or ""
  local flags = text:match "flags%s*:([^\n]*)"
  local wanted = flags and CIPHER.x86 or CIPHER.arm
  flags = flags or text:match "Features%s*:([^\n]*)"
  if not flags then return verdict.unknown "/proc/cpuinfo does not tell" end
  for _, flag in ipairs(wanted) do
    if not (flags .. " "):find(" " .. flag .. " ", 1, true) then
      return note("no AES instructions; ChaCha20 is used")
    end
  end
  return ok "AES-GCM"
end

-- ---- NUMA -----------------------------------------------------------------

-- Returns the nodes of NICs for RDMA or the network, as "name" by node.
local function devices(machine)
  local found = {}
  for _, pattern in ipairs { "/sys/class/infiniband/*", "/sys/class/net/*" } do
    for _, path in ipairs(machine:glob(pattern)) do
      local node = machine:number(path .. "/device/numa_node")
      if node and node >= 0 then
        found[#found + 1] = { name = path:match "[^/]+$", node = node }
      end
    end
  end
  return found
end

local function is_near(machine, node, cpus)
  local list = machine:read(("%snode%d/cpulist"):format(NODES, node))
  if not list or not cpus then return true end
  for _, number in ipairs(numbers(list)) do
    if cpus["#" .. number] then return true end
  end
  return false
end

local function of_device(machine, device, cpus)
  local found = ("%s is on node %d"):format(device.name, device.node)
  if is_near(machine, device.node, cpus) then
    return note(found, "run what uses it there",
      ("numactl --cpunodebind=%d --membind=%d luajit serve.lua"):format(
        device.node, device.node))
  end
  return warning(found .. ", none of whose processors this process may use",
    "allow it those processors",
    ("taskset -c %s luajit serve.lua"):format(
      machine:read(("%snode%d/cpulist"):format(NODES, device.node))))
end

local function numa(machine)
  local online = machine:read(NODES .. "online")
  if not online then
    return verdict.unknown(NODES .. "online is not there")
  end
  local nodes, cpus = numbers(online), allowed(machine)
  if #nodes == 1 then return ok "one node" end
  local verdicts = {}
  for i, device in ipairs(devices(machine)) do
    verdicts[i] = of_device(machine, device, cpus)
  end
  if #verdicts > 0 then return verdicts end
  return note(("%d nodes (%s)"):format(#nodes, online),
    "keep both processes of a pair on one node",
    "numactl --cpunodebind=0 --membind=0 luajit serve.lua")
end

local function balancing(machine)
  local path = "/proc/sys/kernel/numa_balancing"
  local mode = machine:number(path)
  if not mode then return ok "not in this kernel" end
  if mode == 0 then return ok "off" end
  return note("on", "turn it off where latency counts",
    "sudo sysctl -w kernel.numa_balancing=0")
end

return {
  { name = "processors", look = count,
    why = "Two sides that poll on one processor take turns by time slices, "
      .. "milliseconds instead of a microsecond" },
  { name = "frequency", look = frequency,
    why = "A processor that sleeps or slows down adds tens of microseconds to "
      .. "the first call after a pause" },
  { name = "clock", look = clock,
    why = "Every deadline reads the clock; one that takes a system call costs "
      .. "more than a small call itself" },
  { name = "encryption", look = cipher,
    why = "With AES instructions sealing costs a fraction of what it costs "
      .. "without; both peers need them" },
  { name = "NUMA", look = numa,
    why = "Memory and NICs of another node are slower, by up to a half" },
  { name = "NUMA balancing", look = balancing,
    why = "The kernel unmaps pages to see who uses them, which shows as "
      .. "latency of single calls" },
}
