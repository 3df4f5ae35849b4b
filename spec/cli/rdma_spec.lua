-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: RDMA devices, and the right to use them.
local case = require "spec.support.doctor_case"

before_each(case.start)
after_each(case.finish)

describe("the check of RDMA", function()
  local function port(fields)
    local one = { name = "mlx5_0", port = 1, state = "active",
      physical = "linkup", link = "ethernet", rate = 100, mtu = 4096,
      max_mtu = 4096, gid = 3, netdev = "eth7", numa = 0,
      gids = { { index = 3, type = "RoCE v2", address = "::ffff:10.0.0.1" } } }
    for name, value in pairs(fields or {}) do one[name] = value end
    return one
  end

  local function ports(...)
    local list = { ... }
    case.fake.machine.ports = function() return list end
  end

  it("needs nothing without a device", function()
    for _, name in ipairs { "driver", "library", "access", "ports" } do
      assert.equal("ok", case.said("RDMA", name)[1].status, name)
    end
  end)

  it("knows NICs whose driver sleeps", function()
    case.fake:put("/sys/bus/pci/devices/0000:3b:00.0/vendor", "0x15b3")
    case.fake:put("/sys/bus/pci/devices/0000:3b:00.0/class", "0x020000")
    case.expect("RDMA", "driver", "warning", "(0000:3b:00.0)",
      "modprobe mlx5_ib")
    case.rdma "mlx5_0"
    case.expect("RDMA", "driver", "ok", "loaded")
  end)

  it("wants libibverbs where there is a device", function()
    case.rdma "mlx5_0"
    case.expect("RDMA", "library", "problem",
      "libibverbs.so.1 cannot be loaded",
           "apt-get install ibverbs-providers")
    case.fake.machine.library = function() return {} end
    case.expect("RDMA", "library", "ok", "libibverbs.so.1")
  end)

  it("wants access to the device", function()
    case.rdma "mlx5_0"
    case.expect("RDMA", "access", "problem", "no ib_uverbs",
      "modprobe ib_uverbs")
    case.fake:put("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
    case.expect("RDMA", "access", "problem",
           "/dev/infiniband/uverbs0 (mlx5_0) is not there")
    case.fake:put("/dev/infiniband/uverbs0", "")
    case.expect("RDMA", "access", "ok", "/dev/infiniband/uverbs0 (mlx5_0)")
    case.fake.forbidden["/dev/infiniband/uverbs0"] = "w"
    case.expect("RDMA", "access", "problem", "may not be opened",
           "chmod 666 /dev/infiniband/uverbs0")
    case.fake:put("/.dockerenv", "")
    local found = case.expect("RDMA", "access", "problem", "may not be opened")
    assert.matches("%-%-device=/dev/infiniband", found.fix)
  end)

  it("describes ports, as the core sees them", function()
    case.rdma "mlx5_0"
    case.expect("RDMA", "ports", "warning", "mlx5_0 port 1: active, ethernet")
    ports(port())
    case.expect("RDMA", "ports", "ok", "mlx5_0 port 1: active, ethernet, "
      .. "100 Gb/s, MTU 4096 of 4096, GID 3 (RoCE v2, ::ffff:10.0.0.1), "
      .. "eth7, node 0")
    ports()
    case.expect("RDMA", "ports", "warning", "PERIGEE_NICS hides all",
           "unset PERIGEE_NICS")
  end)

  it("wants a port that is active", function()
    ports(port { state = "down" })
    case.expect("RDMA", "ports", "warning", "port 1: down",
           "ip link set dev eth7 up")
    ports(port { state = "down", netdev = "" }, port { port = 2 })
    case.expect("RDMA", "ports", "note", "port 1: down")
    ports(port { state = "init", link = "infiniband" })
    case.expect("RDMA", "ports", "warning", "port 1: init",
           "systemctl start opensm")
  end)

  it("wants a GID of the routed kind on Ethernet", function()
    ports(port { gid = -1 })
    case.expect("RDMA", "ports", "warning", "no GID",
           "ip addr add 192.168.77.1/24 dev eth7")
    ports(port { gids = { { index = 3, type = "RoCE v1", address = "x" } } })
    case.expect("RDMA", "ports", "note", "RoCE v1")
    ports(port { gid = -1, link = "infiniband", gids = {} })
    case.expect("RDMA", "ports", "ok", "infiniband")
  end)

  it("wants large packets", function()
    ports(port { mtu = 1024 })
    case.expect("RDMA", "ports", "note", "MTU 1024 of 4096",
           "ip link set dev eth7 mtu 4200")
    ports(port { mtu = 2048, link = "infiniband" })
    case.expect("RDMA", "ports", "note", "MTU 2048 of 4096")
  end)

  it("tells a device that cannot be opened", function()
    ports(port { mtu = 0, max_mtu = 0 })
    case.expect("RDMA", "ports", "ok", "active")
    case.fake.machine.root = ""
    case.expect("RDMA", "ports", "warning", "cannot be opened",
           "apt-get install ibverbs-providers")
    case.fake.machine.root = case.fake.root
  end)
end)
