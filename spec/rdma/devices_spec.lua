-- SPDX-License-Identifier: Apache-2.0
-- perigee.devices: on a made-up /sys, and on this machine's devices if it has
-- any.
local fake_sysfs = require "spec.rdma.fake_sysfs"
local perigee = require "perigee"

local IPV4 = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
local LOCAL = "fe80:0000:0000:0000:0077:00ff:fe00:0001"

local function names(ports)
  local list = {}
  for _, port in ipairs(ports) do
    list[#list + 1] = port.name .. "/" .. port.port
  end
  return table.concat(list, " ")
end

describe("perigee.devices", function()
  local sys

  before_each(function()
    sys = fake_sysfs()
    sys:port("mlx5_0", 1)
    sys:gid("mlx5_0", 1, 0, LOCAL, "IB/RoCE v1")
    sys:gid("mlx5_0", 1, 1, LOCAL, "RoCE v2")
    sys:gid("mlx5_0", 1, 3, IPV4, "RoCE v2")
    sys:port("mlx5_0", 2, { state = "1: DOWN" })
    sys:port("ib0", 1, { link = "InfiniBand", lid = "0x2f",
                         rate = "200 Gb/sec (4X HDR)" })
  end)
  after_each(function() sys:remove() end)

  local function devices(options)
    options = options or {}
    options.sysfs = sys.root
    return assert(perigee.devices(options))
  end

  it("is empty where there are none", function()
    assert.same({}, perigee.devices { sysfs = "/nowhere" })
  end)

  it("lists ports by name and number", function()
    assert.equal("ib0/1 mlx5_0/1 mlx5_0/2", names(devices()))
  end)

  it("tells what a port is", function()
    local port = devices { name = "mlx5_0", port = 1 }[1]
    assert.same({
      name = "mlx5_0", port = 1, state = "active", physical = "linkup",
      link = "ethernet", rate = 100, lid = 0, mtu = 0, max_mtu = 0, gid = 3,
      netdev = "eth7", pci = "", numa = -1, driver = "", firmware = "",
      gids = {
        { index = 0, address = "fe80::77:ff:fe00:1", type = "RoCE v1",
          netdev = "eth7" },
        { index = 1, address = "fe80::77:ff:fe00:1", type = "RoCE v2",
          netdev = "eth7" },
        { index = 3, address = "::ffff:10.77.0.1", type = "RoCE v2",
          netdev = "eth7" },
      },
    }, port)
    local ib = devices { link = "infiniband" }[1]
    assert.same({ 0x2f, 200, -1 }, { ib.lid, ib.rate, ib.gid })
  end)

  it("filters", function()
    assert.equal("mlx5_0/1 mlx5_0/2", names(devices { name = "mlx5_0" }))
    assert.equal("ib0/1 mlx5_0/1", names(devices { state = "active" }))
    assert.equal("mlx5_0/1",
                 names(devices { state = "active", link = "ethernet" }))
    assert.equal("mlx5_0/2", names(devices { port = 2 }))
    assert.equal("", names(devices { name = "none" }))
  end)

  it("lists more ports than it first has room for", function()
    for i = 1, 40 do sys:port("many_" .. i, 1) end
    assert.equal(43, #devices())
  end)

  it("raises for what is no filter", function()
    assert.error_matches(function() perigee.devices { nmae = "x" } end,
                         'no option "nmae"')
    assert.error_matches(function() perigee.devices { state = "up" } end,
                         '"active", "down"')
    assert.error_matches(function() perigee.devices { link = 1 } end,
                         '"ethernet" or "infiniband"')
    assert.error_matches(function() perigee.devices { port = "1" } end,
                         "an integer")
  end)
end)

describe("the devices of this machine", function()
  it("are as rxe makes them", function()
    local ports = assert(perigee.devices { state = "active" })
    if #ports == 0 then return pending("there is no RDMA device") end
    for _, port in ipairs(ports) do
      assert.is_true(port.rate > 0, port.name)
      assert.is_true(port.mtu >= 256 and port.mtu <= port.max_mtu, port.name)
      assert.not_equal("", port.netdev)
      local used
      for _, gid in ipairs(port.gids) do
        used = gid.index == port.gid and gid or used
      end
      assert.equal("RoCE v2", used.type)
      assert.matches("^::ffff:", used.address)
    end
  end)
end)
