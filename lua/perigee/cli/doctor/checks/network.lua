-- SPDX-License-Identifier: Apache-2.0
--- The network of this machine, for sessions over TCP.
local units = require "perigee.runtime.units"
local verdict = require "perigee.cli.doctor.verdict"

local ok, note, warning, problem =
  verdict.ok, verdict.note, verdict.warning, verdict.problem

local NET, IPV4 = "/proc/sys/net/core/", "/proc/sys/net/ipv4/"
local UP = 1
local BACKLOG = 256                     -- what a listener asks for
local MEBIBYTE = 2 ^ 20

local size = units.format_size

-- ---- Interfaces -----------------------------------------------------------

local function is_up(machine, name)
  local flags = machine:number("/sys/class/net/" .. name .. "/flags")
  return flags and bit.band(flags, UP) ~= 0
end

local function loopback(machine)
  local up = is_up(machine, "lo")
  if up == nil then return verdict.unknown "/sys/class/net/lo is not there" end
  if up then return ok "up" end
  return problem("down", "bring it up", "sudo ip link set dev lo up")
end

local function ipv6(machine)
  local addresses = machine:read "/proc/net/if_inet6"
  if addresses and addresses:find "^%x+" then return ok "there" end
  local path = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
  if machine:number(path) == 1 then
    return note("disabled (net.ipv6.conf.all.disable_ipv6 = 1)",
      "enable it, if an address in brackets is to work",
      "sudo sysctl -w net.ipv6.conf.all.disable_ipv6=0")
  end
  return note(addresses and "no address" or "not in this kernel or network "
    .. "namespace", "listen at IPv4 addresses")
end

local function describe(machine, name)
  local folder = "/sys/class/net/" .. name .. "/"
  local text = ("%s: %s, MTU %s"):format(name,
    is_up(machine, name) and "up" or "down",
    machine:number(folder .. "mtu") or "unknown")
  local speed = machine:number(folder .. "speed")
  if speed and speed > 0 then text = text .. (", %d Mb/s"):format(speed) end
  return text
end

local function interfaces(machine)
  local found, up = {}, 0
  for _, path in ipairs(machine:glob "/sys/class/net/*") do
    local name = path:match "[^/]+$"
    if name ~= "lo" and machine:number(path .. "/flags") then
      found[#found + 1] = describe(machine, name)
      if is_up(machine, name) then up = up + 1 end
    end
  end
  if #found == 0 then return note "none but loopback: this host alone" end
  local text = table.concat(found, "; ")
  if up > 0 then return ok(text) end
  return note(text, "bring one up, if other hosts are to be reached",
    ("sudo ip link set dev %s up"):format(found[1]:match "^[^:]+"))
end

-- ---- Buffers --------------------------------------------------------------

-- The kernel tunes buffers up to the third number.
local function window(machine, name)
  local text = machine:read(IPV4 .. name)
  local most = text and tonumber(text:match "^%d+%s+%d+%s+(%d+)")
  if not most then return verdict.unknown(IPV4 .. name .. " is not there") end
  local found = ("%s up to %s"):format(name, size(most))
  if most >= 4 * MEBIBYTE then return ok(found) end
  return warning(found, "let the kernel give a connection more",
    ('sudo sysctl -w net.ipv4.%s="4096 131072 16777216"'):format(name))
end

local function windows(machine)
  return { window(machine, "tcp_rmem"), window(machine, "tcp_wmem") }
end

local function asked(machine, name)
  local most = machine:number(NET .. name)
  if not most then return verdict.unknown(NET .. name .. " is not there") end
  local found = ("%s %s"):format(name, size(most))
  if most >= 208 * 1024 then return ok(found) end
  return warning(found, "allow as much as kernels do by default",
    ("sudo sysctl -w net.core.%s=212992"):format(name))
end

local function buffers(machine)
  return { asked(machine, "rmem_max"), asked(machine, "wmem_max") }
end

-- ---- Behaviour ------------------------------------------------------------

local function backlog(machine)
  local most = machine:number(NET .. "somaxconn")
  if not most then
    return verdict.unknown(NET .. "somaxconn is not there")
  end
  local found = "net.core.somaxconn = " .. most
  if most >= BACKLOG then return ok(found) end
  local judge = most >= 128 and note or warning
  return judge(found, "let more connections wait",
    "sudo sysctl -w net.core.somaxconn=4096")
end

local GOOD = { cubic = true, bbr = true, bbr2 = true, bbr3 = true,
               dctcp = true, htcp = true }

local function congestion(machine)
  local chosen = machine:read(IPV4 .. "tcp_congestion_control")
  if not chosen then
    return verdict.unknown(IPV4 .. "tcp_congestion_control is not there")
  end
  if GOOD[chosen] then return ok(chosen) end
  return note(chosen, "take one that fills long and fast networks",
    "sudo sysctl -w net.ipv4.tcp_congestion_control=cubic")
end

local FEATURES = { "tcp_window_scaling", "tcp_sack", "tcp_timestamps" }

local function features(machine)
  local verdicts, known = {}, 0
  for _, name in ipairs(FEATURES) do
    local value = machine:number(IPV4 .. name)
    if value then known = known + 1 end
    if value == 0 then
      verdicts[#verdicts + 1] = warning(name .. " is off", "turn it on",
        ("sudo sysctl -w net.ipv4.%s=1"):format(name))
    end
  end
  if #verdicts > 0 then return verdicts end
  if known == 0 then return verdict.unknown(IPV4 .. " is not there") end
  return ok "window scaling, selective acknowledgement, timestamps"
end

local function descriptors(machine)
  local soft, hard = machine:limit "Max open files"
  if not soft then return verdict.unknown "/proc/self/limits is not there" end
  local found = ("%s, at most %s"):format(
    soft == math.huge and "unlimited" or soft,
    hard == math.huge and "unlimited" or hard)
  if soft >= 4096 then return ok(found) end
  local judge = soft < 256 and warning or note
  return judge(found, "raise the limit before starting a program with many "
    .. "sessions", hard >= 4096 and "ulimit -n 4096"
    or "echo '* - nofile 65536' | sudo tee /etc/security/limits.d/nofile.conf")
end

return {
  { name = "loopback", look = loopback,
    why = "Processes of one host that are told to use TCP meet there" },
  { name = "IPv6", look = ipv6, why = "tcp://[::1]:7471 needs it" },
  { name = "interfaces", look = interfaces,
    why = "Sessions with other hosts go over them" },
  { name = "TCP windows", look = windows,
    why = "A connection carries a window in each round trip: of 4 MiB, over "
      .. "20 ms, 1.6 Gb/s" },
  { name = "socket buffers", look = buffers,
    why = "Perigee leaves its own to the kernel, but soft-RoCE and other "
      .. "programs ask for theirs; these were made small" },
  { name = "backlog", look = backlog,
    why = "So many connections wait to be accepted; when a worker comes back, "
      .. "all its callers dial at once" },
  { name = "congestion", look = congestion,
    why = "How fast a connection grows again after a loss" },
  { name = "TCP features", look = features,
    why = "Without them a window is 64 KiB, and a loss costs a round trip for "
      .. "each packet" },
  { name = "open files", look = descriptors,
    why = "Each session takes a socket, and on one host one more descriptor; "
      .. "a session over TCP as many as it has streams" },
}
