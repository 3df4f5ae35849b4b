-- SPDX-License-Identifier: Apache-2.0
--- The addresses by which other hosts reach a listener. A listener at 0.0.0.0
-- is told of by the host's name. One at [::] takes IPv6 alone, and the host's
-- name may stand for an IPv4 address, at which nobody or another listens. So it
-- is told of by the numbers of the host.
local folder = require "perigee.registry.folder"

local M = {}

--- Returns the lines of this host's IPv6 addresses; specs replace it.
function M.interfaces()
  local file = io.open "/proc/net/if_inet6"
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text
end

-- Flags of addresses that others cannot use now, or not for long: temporary,
-- failed as duplicate, deprecated, tentative.
local UNFIT = 0x01 + 0x08 + 0x20 + 0x40

-- The IPv6 addresses of this host that are valid beyond one link, as texts.
local function numbers()
  local list = {}
  for digits, range, flags in M.interfaces():gmatch
    "(%x+) %x+ %x+ (%x+) (%x+)[^\n]*" do
    if tonumber(range, 16) == 0
      and bit.band(tonumber(flags, 16), UNFIT) == 0 then
      list[#list + 1] = digits:gsub("%x%x%x%x", "%0:"):sub(1, -2)
    end
  end
  return list
end

local function append(list, hosts, port)
  for _, host in ipairs(hosts) do
    list[#list + 1] = ("tcp://%s:%s"):format(host, port)
  end
end

--- Appends to list what other hosts dial to reach a listener at address.
function M.append(list, address)
  local port = address:match "^tcp://0%.0%.0%.0:(%d+)$"
  if port then return append(list, { folder.system.host() }, port) end
  port = address:match "^tcp://%[::%]:(%d+)$"
  if not port then
    list[#list + 1] = address
    return
  end
  local hosts = numbers()
  for i, number in ipairs(hosts) do hosts[i] = "[" .. number .. "]" end
  append(list, hosts[1] and hosts or { folder.system.host() }, port)
end

return M
