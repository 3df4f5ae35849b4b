-- SPDX-License-Identifier: Apache-2.0
-- perigee doctor: whether a program can listen at an address.
local case = require "spec.support.doctor_case"
local address = require "perigee.cli.doctor.address"
local perigee = require "perigee"

before_each(case.start)
after_each(case.finish)

describe("the check of addresses to listen at", function()
  local function listen(where, status, found, command)
    return case.expect("network", "listening", status, found, command,
                  case.listening(where))
  end

  before_each(function() case.fake:set("PERIGEE_SECRET", "file:/s") end)

  it("is silent without any", function()
    assert.same({}, case.said("network", "listening"))
  end)

  it("takes what is free", function()
    listen("tcp://127.0.0.1:7471", "ok", "tcp://127.0.0.1:7471: free")
    listen("tcp://[::]:7471", "ok", "free")
    listen("unix:relative.sock", "ok", "free")
    assert.equal(2, #case.said("network", "listening",
      case.listening("tcp://0.0.0.0:0", "tcp://localhost:1025")))
  end)

  it("wants a secret beyond loopback", function()
    case.fake:set("PERIGEE_SECRET", "")
    listen("tcp://0.0.0.0:7471", "warning", "no secret")
    listen("tcp://[fe80::1]:7471", "warning", "no secret")
    listen("tcp://127.9.0.1:7471", "ok", "free")
    listen("tcp://[::1]:7471", "ok", "free")
  end)

  it("knows ports that others have", function()
    case.fake:put("/proc/net/tcp", "  sl  local_address rem_address   st\n"
      .. "   0: 0100007F:1D2F 00000000:0000 0A 0 0\n"
      .. "   1: 0100007F:1D30 0100007F:1D2F 01 0 0")
    listen("tcp://127.0.0.1:7471", "problem", "somebody listens there",
           "ss -ltnp 'sport = :7471'")
    listen("tcp://0.0.0.0:7471", "problem", "somebody listens there")
    listen("tcp://127.0.0.2:7471", "ok", "free")
    listen("tcp://127.0.0.1:7472", "ok", "free")
    case.fake:put("/proc/net/tcp6", "   0: " .. ("0"):rep(32) .. ":1D30 "
             .. ("0"):rep(32) .. ":0000 0A 0 0")
    listen("tcp://[::1]:7472", "problem", "somebody listens there")
  end)

  it("knows ports that are for root", function()
    case.fake.machine.uid = 1000
    listen("tcp://127.0.0.1:80", "problem", "ports below 1024",
           "sysctl -w net.ipv4.ip_unprivileged_port_start=80")
    case.capabilities "0000000000000400"
    listen("tcp://127.0.0.1:80", "ok", "free")
  end)

  it("knows ports that pass", function()
    case.fake:put("/proc/sys/net/ipv4/ip_local_port_range", "7000\t60999")
    listen("tcp://127.0.0.1:7471", "note", "outgoing connections",
           "sysctl -w net.ipv4.ip_local_reserved_ports=7471")
    case.fake:put("/proc/sys/net/ipv4/ip_local_reserved_ports", "80,7471")
    listen("tcp://127.0.0.1:7471", "ok", "free")
  end)

  it("knows the addresses of this machine", function()
    case.fake:put("/proc/net/fib_trie", "Local:\n     |-- 10.0.0.5\n"
             .. "        /32 host LOCAL\n     |-- 10.0.0.9\n"
             .. "        /32 link BROADCAST\n")
    case.fake:put("/proc/net/if_inet6",
             "fe80000000000000000000000000000a 02 40 20 80 eth0")
    listen("tcp://10.0.0.5:7471", "ok", "free")
    listen("tcp://10.0.0.9:7471", "problem", "no interface",
      "ip -brief address")
    listen("tcp://[fe80::a]:7471", "ok", "free")
    listen("tcp://[fe80::b]:7471", "problem", "no interface")
    listen("tcp://0.0.0.0:7471", "ok", "free")
  end)

  it("takes no names, as no program listens at one", function()
    case.fake:put("/proc/net/tcp", "   0: 00000000:1D2F 00000000:0000 0A 0 0")
    listen("tcp://worker.example:7471", "problem", "a name",
           "ip -brief address")
    local engine = assert(perigee.engine { secret = "a secret of this spec" })
    local fine, message = pcall(engine.listen, engine,
                                "tcp://worker.example:7471")
    engine:close()
    assert.is_false(fine)
    assert.matches("by its number, or 0.0.0.0 or [::]", message, 1, true)
  end)

  it("knows localhost, which is of IPv4", function()
    case.fake:put("/proc/net/tcp", "   0: 0100007F:1D2F 00000000:0000 0A 0 0")
    listen("tcp://localhost:7471", "problem", "somebody listens there")
    listen("tcp://localhost:7472", "ok", "free")
  end)

  it("tells IPv4 from IPv6", function()
    case.fake:put("/proc/net/tcp", "   0: 00000000:1D2F 00000000:0000 0A 0 0\n")
    listen("tcp://[::1]:7471", "ok", "free")
    listen("tcp://[::]:7471", "ok", "free")
    listen("tcp://127.0.0.1:7471", "problem", "somebody listens there")
    case.fake:put("/proc/net/tcp", "")
    local none = ("0"):rep(32)
    case.fake:put("/proc/net/tcp6", "   0: " .. none:sub(1, 24) .. "01000000"
             .. ":1D2F " .. none .. ":0000 0A 0 0\n   1: " .. none .. ":1D30 "
             .. none .. ":0000 0A 0 0")
    listen("tcp://0.0.0.0:7471", "ok", "free")
    listen("tcp://[::]:7471", "problem", "somebody listens there")
    listen("tcp://0.0.0.0:7472", "problem", "somebody listens there")
  end)

  it("knows what is wrong with paths", function()
    case.fake:put "/run/mine/"
    listen("unix:/run/mine/a.sock", "ok", "free")
    listen("unix:/run/yours/a.sock", "problem", "its folder is not there",
           "mkdir -p -m 700 /run/yours")
    listen("unix:/" .. ("x"):rep(107), "problem", "108 bytes, more than 107")
    case.fake:put("/run/mine/a.sock", "")
    listen("unix:/run/mine/a.sock", "problem", "there is a file of that name",
           "rm /run/mine/a.sock")
    case.fake:put("/proc/net/unix",
      "Num RefCount Protocol Flags Type St Inode Path"
      .. "\n0000: 00000002 00000000 00010000 0001 01 7 /run/mine/a.sock")
    listen("unix:/run/mine/a.sock", "problem", "somebody listens there")
  end)

  it("refuses what is no address", function()
    for _, wrong in ipairs { "", "tcp:", "tcp://host", "tcp://:1", "unix:",
      "tcp://1.2.3.4:65536", "tcp://1.2.3:1", "tcp://::1:1", "tcp://[x]:1",
      "udp://1.2.3.4:1", "tcp://a b:1" } do
      local found, message = address.parse(wrong)
      assert.is_nil(found, wrong)
      assert.matches("is no address", message)
    end
  end)
end)
