-- SPDX-License-Identifier: Apache-2.0
--- RDMA: the library, the devices, and the right to use them.
local verdict = require "perigee.cli.doctor.verdict"

local ok, note, warning, problem =
  verdict.ok, verdict.note, verdict.warning, verdict.problem

local MELLANOX, INFINIBAND = "0x15b3", "0x0207"
local NOTHING = "not needed: there is no RDMA device"

local function device_names(machine)
  return machine:glob "/sys/class/infiniband/*"
end

local function library(machine)
  local found, why = machine:library "libibverbs.so.1"
  if found then return ok "libibverbs.so.1" end
  if #device_names(machine) == 0 then return ok(NOTHING) end
  return problem("libibverbs.so.1 cannot be loaded: " .. why, "install it, and "
    .. "the drivers of devices", "sudo apt-get install ibverbs-providers")
end

-- Returns whether a NIC could do RDMA if its driver were loaded.
local function has_sleeping_nic(machine)
  for _, path in ipairs(machine:glob "/sys/bus/pci/devices/*") do
    local class = machine:read(path .. "/class") or ""
    if class:sub(1, 6) == INFINIBAND or class:sub(1, 4) == "0x02"
      and machine:read(path .. "/vendor") == MELLANOX then
      return path:match "[^/]+$"
    end
  end
end

local function driver(machine)
  if #device_names(machine) > 0 then return ok "loaded" end
  local nic = has_sleeping_nic(machine)
  if not nic then
    return ok "no RDMA device; sessions use shared memory and TCP"
  end
  return warning(("no RDMA device, but a NIC that could be one (%s)"):format(
    nic), "load its driver", "sudo modprobe mlx5_ib")
end

-- ---- /dev/infiniband ------------------------------------------------------

local function let_in(machine, path)
  if machine:contained() then
    return "start the container with docker's --device=/dev/infiniband, or "
      .. "what is as much elsewhere"
  end
  if not path then return "load the module", "sudo modprobe ib_uverbs" end
  return "let its user open it", "sudo chmod 666 " .. path
end

local function access(machine)
  local verdicts, names = {}, {}
  for _, path in ipairs(machine:glob "/sys/class/infiniband_verbs/uverbs*") do
    local name = path:match "[^/]+$"
    local device = "/dev/infiniband/" .. name
    local of = ("%s (%s)"):format(device,
      machine:read(path .. "/ibdev") or "unknown")
    if not machine:may(device, "") then
      verdicts[#verdicts + 1] = problem(of .. " is not there", let_in(machine))
    elseif not machine:may(device, "rw") then
      verdicts[#verdicts + 1] = problem(of .. " may not be opened",
        let_in(machine, device))
    end
    names[#names + 1] = of
  end
  if #verdicts > 0 then return verdicts end
  if #names > 0 then return ok(table.concat(names, ", ")) end
  if #device_names(machine) == 0 then return ok(NOTHING) end
  return problem("the kernel has devices, but no ib_uverbs", let_in(machine))
end

-- ---- Ports ----------------------------------------------------------------

local function gid_of(port)
  for _, gid in ipairs(port.gids) do
    if gid.index == port.gid then return gid end
  end
end

local function describe(port)
  local parts = { ("%s port %d: %s"):format(port.name, port.port, port.state),
                  port.link, ("%g Gb/s"):format(port.rate) }
  local function add(format, ...) parts[#parts + 1] = format:format(...) end
  if port.mtu > 0 then add("MTU %d of %d", port.mtu, port.max_mtu) end
  local gid = gid_of(port)
  if gid then add("GID %d (%s, %s)", gid.index, gid.type, gid.address) end
  if port.netdev ~= "" then add("%s", port.netdev) end
  if port.numa >= 0 then add("node %d", port.numa) end
  return table.concat(parts, ", ")
end

-- A port without a link does no harm while another one has a link.
local function not_active(port, found, some_active)
  local judge = some_active and note or warning
  if port.link == "infiniband" and port.state == "init" then
    return judge(found, "start a subnet manager, here or on the switch",
      "sudo systemctl start opensm")
  end
  local command = port.netdev ~= ""
    and ("sudo ip link set dev %s up"):format(port.netdev) or nil
  return judge(found, "bring its interface up, or look after the cable and the "
    .. "switch", command)
end

local function small_packets(port, found)
  if port.link == "infiniband" then
    return note(found, "raise the MTU of the partition in the subnet manager")
  end
  return note(found, "raise the interface's MTU, here and on all between",
    ("sudo ip link set dev %s mtu %d"):format(
      port.netdev ~= "" and port.netdev or "INTERFACE", port.max_mtu + 104))
end

local function port_verdict(machine, port, some_active)
  local found = describe(port)
  local ethernet = port.link == "ethernet"
  if port.state ~= "active" then
    return not_active(port, found, some_active)
  end
  if ethernet and port.gid < 0 then
    return warning(found .. ", no GID", "give its interface an address",
      ("sudo ip addr add 192.168.77.1/24 dev %s"):format(
        port.netdev ~= "" and port.netdev or "INTERFACE"))
  end
  if port.mtu == 0 and machine.root == "" then
    return warning(found .. ", cannot be opened", "install the driver of the "
      .. "device", "sudo apt-get install ibverbs-providers")
  end
  if port.mtu > 0 and port.mtu < port.max_mtu then
    return small_packets(port, found)
  end
  local gid = gid_of(port)
  if ethernet and gid and gid.type == "RoCE v1" then
    return note(found, "RoCE v1 is not routed: give the interface an address, "
      .. "and set the device to RoCE v2",
      ("echo 'RoCE v2' | sudo tee /sys/class/infiniband/%s/ports/%d/gid_attrs/"
        .. "types/%d"):format(port.name, port.port, port.gid))
  end
  return ok(found)
end

local function ports(machine)
  local list, why = machine:ports()
  if not list then return verdict.unknown(why:match "^[^\n]*") end
  local verdicts, active = {}, false
  for _, port in ipairs(list) do active = active or port.state == "active" end
  for i, port in ipairs(list) do
    verdicts[i] = port_verdict(machine, port, active)
  end
  if #verdicts > 0 then return verdicts end
  if #device_names(machine) == 0 then return ok "none" end
  return warning("PERIGEE_NICS hides all there are", "name one that is there",
    "unset PERIGEE_NICS")
end

return {
  { name = "driver", look = driver,
    why = "A NIC is used for RDMA where the kernel has its driver for that" },
  { name = "library", look = library,
    why = "libibverbs is what RDMA devices are used through" },
  { name = "access", look = access,
    why = "A process opens the files below /dev/infiniband itself" },
  { name = "ports", look = ports,
    why = "A port is used if it is active and, on Ethernet, has a GID; small "
      .. "packets cost throughput" },
}
