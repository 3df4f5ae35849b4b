-- SPDX-License-Identifier: Apache-2.0
--- `perigee devices`: the ports of this machine's RDMA devices.
local client = require "perigee.cli.client"
local options = require "perigee.cli.options"

local M = {
  name = "devices",
  summary = "List the ports of this machine's RDMA devices.",
}

function M.configure(parser)
  options.json(parser)
end

local function row(port)
  local gid
  for _, each in ipairs(port.gids) do
    if each.index == port.gid then gid = each.address end
  end
  return { ("%s:%d"):format(port.name, port.port), port.state, port.link,
           ("%g Gb/s"):format(port.rate),
           port.mtu > 0 and tostring(port.mtu) or nil,
           port.netdev ~= "" and port.netdev or nil,
           port.numa >= 0 and tostring(port.numa) or nil, gid,
           port.driver ~= "" and port.driver or nil }
end

function M.run(given)
  local perigee = client.library()
  local json = require "perigee.cli.json"
  local out = require "perigee.cli.out"
  local fine, ports, err = pcall(perigee.devices)
  if not fine then
    require "perigee.cli.failure".misuse("%s", client.bare(ports))
  end
  client.check(ports, err)
  for _, port in ipairs(ports) do json.list(port.gids) end
  if given.json then
    out.json(json.list(ports))
  elseif #ports == 0 then
    io.stderr:write("perigee devices: this machine has no RDMA device; ",
                    "perigee doctor tells more\n")
  else
    local rows = {}
    for i, port in ipairs(ports) do rows[i] = row(port) end
    out.columns({ "PORT", "STATE", "LINK", "RATE", "MTU", "NETDEV", "NUMA",
                  "GID", "DRIVER" }, rows)
  end
  out.finish()
end

return M
