-- SPDX-License-Identifier: Apache-2.0
--- `perigee devices`: the ports of this machine's RDMA devices; with --kind gpu
-- the GPUs that CUDA shows.
local client = require "perigee.cli.client"
local options = require "perigee.cli.options"
local units = require "perigee.runtime.units"

local M = {
  name = "devices",
  summary = "List the ports of this machine's RDMA devices, or its GPUs.",
}

function M.configure(parser)
  parser:option("--kind", "rdma: the ports of RDMA devices; gpu: the GPUs that "
    .. "CUDA shows.")
    :argname "KIND":choices { "rdma", "gpu" }:default "rdma"
  options.json(parser)
end

local function gpu_row(gpu)
  return { gpu.device, gpu.name, units.format_size(gpu.memory), gpu.capability,
           gpu.pci ~= "" and gpu.pci or nil,
           gpu.numa >= 0 and tostring(gpu.numa) or nil,
           gpu.nics[1] and table.concat(gpu.nics, ","),
           gpu.reaches[1] and table.concat(gpu.reaches, ",") }
end

local function port_row(port)
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

local KINDS = {
  rdma = { row = port_row, lists = { "gids" },
           none = "this machine has no RDMA device",
           headings = { "PORT", "STATE", "LINK", "RATE", "MTU", "NETDEV",
                        "NUMA", "GID", "DRIVER" } },
  gpu = { row = gpu_row, lists = { "nics", "reaches" },
          none = "CUDA shows no GPU",
          headings = { "DEVICE", "NAME", "MEMORY", "CAPABILITY", "PCI", "NUMA",
                       "NICS", "REACHES" } },
}

-- Devices as one document.
local function print_json(kind, devices)
  local json = require "perigee.cli.json"
  for _, device in ipairs(devices) do
    for _, field in ipairs(kind.lists) do json.list(device[field]) end
  end
  require "perigee.cli.out".json(json.list(devices))
end

local function print_rows(kind, devices)
  local rows = {}
  for i, device in ipairs(devices) do rows[i] = kind.row(device) end
  require "perigee.cli.out".columns(kind.headings, rows)
end

-- Where there is none, `why` is the reason, if one is known.
local function print_none(kind, why)
  io.stderr:write("perigee devices: ", kind.none, why and " (" .. why .. ")"
    or "", "; perigee doctor tells more\n")
end

function M.run(given)
  local perigee = client.library()
  local kind = KINDS[given.kind]
  local devices, why = client.used(perigee.devices, { kind = given.kind })
  client.check(devices, why)
  if given.json then
    print_json(kind, devices)
  elseif #devices == 0 then
    print_none(kind, why)
  else
    print_rows(kind, devices)
  end
  require "perigee.cli.out".finish()
end

return M
