-- SPDX-License-Identifier: Apache-2.0
--- Checks that a program can listen at the addresses given by --listen.
local addresses = require "perigee.cli.doctor.address"
local printable = require "perigee.runtime.printable"
local verdict = require "perigee.cli.doctor.verdict"

local ok, note, warning, problem =
  verdict.ok, verdict.note, verdict.warning, verdict.problem

local CAP_NET_BIND_SERVICE = 10
local IPV4 = "/proc/sys/net/ipv4/"
local LISTENING = "0A"
local LONGEST_PATH = 107

-- ---- TCP ------------------------------------------------------------------

-- Returns whether a socket of that family listens at the address's port, with
-- a host for which fits(host) is true.
local function listens(machine, family, address, fits)
  local text = machine:read("/proc/net/" .. family) or ""
  for host, port, state in text:gmatch "%d+: (%x+):(%x+) %x+:%x+ (%x+)" do
    if state == LISTENING and tonumber(port, 16) == address.port
      and fits(host) then
      return true
    end
  end
  return false
end

local function is_any(host) return not host:find "[^0]" end

-- Returns whether a socket listens where this address would. A socket for all
-- of IPv6 mostly listens for IPv4, too; those of Perigee listen for one family
-- only.
local function is_taken(machine, address)
  if not address.bytes then return false end
  local words = addresses.words(address):upper()
  local function meets(host)
    return host == words or is_any(host) or addresses.is_any(address)
  end
  local own = address.family == 4 and "tcp" or "tcp6"
  return listens(machine, own, address, meets)
    or listens(machine, "tcp6", address, is_any)
end

local function is_ipv4_here(machine, address)
  local text = machine:read "/proc/net/fib_trie"
  for host in (text or ""):gmatch "|%-%- ([%d.]+)\n%s+/32 host LOCAL" do
    if host == address.host then return true end
  end
  return text == nil
end

local function is_ipv6_here(machine, address)
  local text = machine:read "/proc/net/if_inet6"
  local line = "\n" .. printable.hex(address.bytes)
  return text == nil or ("\n" .. text):find(line, 1, true) ~= nil
end

-- Returns whether it is an address of this machine; true also if that cannot
-- be told.
local function is_here(machine, address)
  if not address.bytes or addresses.is_any(address)
    or addresses.is_local(address) then
    return true
  end
  return (address.family == 4 and is_ipv4_here or is_ipv6_here)(machine,
                                                                address)
end

local function secret(machine, address)
  local value = machine:getenv "PERIGEE_SECRET"
  if addresses.is_local(address) or value and value ~= "" then return nil end
  return warning(address.text .. ": reached from other hosts, and there is no "
    .. "secret in the environment", "make one, set PERIGEE_SECRET to "
    .. "file:PATH on both sides (or give option secret)",
    "(umask 077; head -c 32 /dev/urandom | base64 > ~/.perigee-secret)")
end

local function privilege(machine, address)
  local first = machine:number(IPV4 .. "ip_unprivileged_port_start") or 1024
  if address.port == 0 or address.port >= first or machine.uid == 0
    or machine:capable(CAP_NET_BIND_SERVICE) then
    return nil
  end
  return problem(("%s: ports below %d are not for this user"):format(
    address.text, first), "take a port above, or lower the bound",
    ("sudo sysctl -w net.ipv4.ip_unprivileged_port_start=%d"):format(
      address.port))
end

local function taken(machine, address)
  if address.port == 0 or not is_taken(machine, address) then return nil end
  return problem(address.text .. ": somebody listens there already",
    "find out who, or take another port",
    ("sudo ss -ltnp 'sport = :%d'"):format(address.port))
end

local function elsewhere(machine, address)
  if is_here(machine, address) then return nil end
  return problem(address.text .. ": no interface of this machine has that "
    .. "address", "take one of these, or 0.0.0.0 for all of IPv4",
    "ip -brief address")
end

-- The kernel may give this port to an outgoing connection, so it may be in use
-- when the program starts.
local function passing(machine, address)
  local range = machine:read(IPV4 .. "ip_local_port_range") or ""
  local first, last = range:match "^(%d+)%s+(%d+)"
  local reserved = machine:read(IPV4 .. "ip_local_reserved_ports") or ""
  if not first or address.port < tonumber(first)
    or address.port > tonumber(last)
    or ("," .. reserved .. ","):find("," .. address.port .. ",", 1, true) then
    return nil
  end
  return note(("%s: %d is among the ports that outgoing connections take (%s "
    .. "to %s)"):format(address.text, address.port, first, last),
    "reserve it, or take one outside",
    ("sudo sysctl -w net.ipv4.ip_local_reserved_ports=%d"):format(address.port))
end

local function named(_, address)
  if address.bytes then return nil end
  return problem(address.text .. ": a name, which is good for connecting only",
    "to listen, take the number of one of this machine's addresses, or 0.0.0.0 "
    .. "or [::] for all of IPv4 or of IPv6", "ip -brief address")
end

-- ---- Unix -----------------------------------------------------------------

local function in_use(machine, path)
  local text = (machine:read "/proc/net/unix" or "") .. "\n"
  return text:find(" " .. path .. "\n", 1, true) ~= nil
end

local function unix_path(machine, address)
  local path = address.path
  if #path > LONGEST_PATH then
    return problem(("%s: %d bytes, more than %d"):format(address.text, #path,
      LONGEST_PATH), "take a shorter path")
  end
  if in_use(machine, path) then
    return problem(address.text .. ": somebody listens there already",
      "find out who, or take another path", "sudo ss -lxp src " .. path)
  end
  if machine:stat(path) then
    return problem(address.text .. ": there is a file of that name", "remove "
      .. "it, if nobody needs it", "rm " .. path)
  end
  local folder = path:match "^(.*)/[^/]*$"
  if folder and path:sub(1, 1) == "/"
    and not machine:may(folder == "" and "/" or folder, "wx") then
    return problem(address.text .. ": its folder is not there, or may not be "
      .. "written to", "make it", "mkdir -p -m 700 " .. folder)
  end
end

local CHECKS = {
  tcp = { secret, privilege, taken, elsewhere, passing, named },
  unix = { unix_path },
}

local function listen(machine)
  local verdicts = {}
  for _, address in ipairs(machine.addresses) do
    local before = #verdicts
    for _, check in ipairs(CHECKS[address.kind]) do
      verdicts[#verdicts + 1] = check(machine, address)
    end
    if #verdicts == before then
      verdicts[#verdicts + 1] = ok(address.text .. ": free")
    end
  end
  return verdicts
end

return {
  { name = "listening", look = listen,
    why = "A program that cannot listen is found by nobody" },
}
