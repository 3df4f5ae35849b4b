-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: the network.
local case = require "spec.support.doctor_case"

before_each(case.start)
after_each(case.finish)

describe("the check of the network", function()
  local ipv4, core = "/proc/sys/net/ipv4/", "/proc/sys/net/core/"

  local function interface(name, flags, mtu)
    case.fake:put("/sys/class/net/" .. name .. "/flags", flags)
    case.fake:put("/sys/class/net/" .. name .. "/mtu", mtu)
  end

  it("wants loopback up", function()
    interface("lo", "0x9", 65536)
    case.expect("network", "loopback", "ok", "up")
    interface("lo", "0x8", 65536)
    case.expect("network", "loopback", "problem", "down",
      "ip link set dev lo up")
  end)

  it("knows whether there is IPv6", function()
    case.expect("network", "IPv6", "note", "not in this kernel")
    case.fake:put("/proc/net/if_inet6", "")
    case.expect("network", "IPv6", "note", "no address")
    case.fake:put("/proc/sys/net/ipv6/conf/all/disable_ipv6", 1)
    case.expect("network", "IPv6", "note", "disabled",
           "sysctl -w net.ipv6.conf.all.disable_ipv6=0")
    case.fake:put("/proc/net/if_inet6",
      ("0"):rep(31) .. "1 01 80 10 80       lo")
    case.expect("network", "IPv6", "ok", "there")
  end)

  it("lists interfaces", function()
    case.expect("network", "interfaces", "note", "none but loopback")
    interface("eth0", "0x1002", 1500)
    case.expect("network", "interfaces", "note", "eth0: down, MTU 1500",
           "ip link set dev eth0 up")
    interface("eth0", "0x1003", 9000)
    case.fake:put("/sys/class/net/eth0/speed", 25000)
    case.expect("network", "interfaces", "ok", "eth0: up, MTU 9000, 25000 Mb/s")
  end)

  it("wants windows and buffers", function()
    case.fake:put(ipv4 .. "tcp_rmem", "4096\t131072\t6291456")
    case.fake:put(ipv4 .. "tcp_wmem", "4096\t16384\t65536")
    case.expect("network", "TCP windows", "ok", "tcp_rmem up to 6 MiB")
    case.expect("network", "TCP windows", "warning", "tcp_wmem up to 64 KiB",
           'sysctl -w net.ipv4.tcp_wmem="4096 131072 16777216"')
    case.fake:put(core .. "rmem_max", 212992):put(core .. "wmem_max", 65536)
    case.expect("network", "socket buffers", "ok", "rmem_max 208 KiB")
    case.expect("network", "socket buffers", "warning", "wmem_max 64 KiB",
           "sysctl -w net.core.wmem_max=212992")
  end)

  it("wants room for connections that wait", function()
    for most, status in pairs { [4096] = "ok", [128] = "note",
                                [16] = "warning" } do
      case.fake:put(core .. "somaxconn", most)
      case.expect("network", "backlog", status, "somaxconn = " .. most)
    end
  end)

  it("knows congestion control and features", function()
    case.fake:put(ipv4 .. "tcp_congestion_control", "bbr")
    case.expect("network", "congestion", "ok", "bbr")
    case.fake:put(ipv4 .. "tcp_congestion_control", "reno")
    case.expect("network", "congestion", "note", "reno",
           "sysctl -w net.ipv4.tcp_congestion_control=cubic")
    case.fake:put(ipv4 .. "tcp_sack", 1)
    case.expect("network", "TCP features", "ok", "selective acknowledgement")
    case.fake:put(ipv4 .. "tcp_sack", 0)
    case.expect("network", "TCP features", "warning", "tcp_sack is off",
           "sysctl -w net.ipv4.tcp_sack=1")
  end)

  it("wants open files", function()
    case.limits "Max open files   1048576   1048576   files"
    case.expect("network", "open files", "ok", "1048576, at most 1048576")
    case.limits "Max open files   1024   unlimited   files"
    case.expect("network", "open files", "note", "1024, at most unlimited",
           "ulimit -n 4096")
    case.limits "Max open files   64   128   files"
    case.expect("network", "open files", "warning", "64, at most 128",
      "echo '* - nofile 65536' | tee /etc/security/limits.d/nofile.conf")
  end)
end)
