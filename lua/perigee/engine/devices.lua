-- SPDX-License-Identifier: Apache-2.0
--- The RDMA devices of this machine, one entry for each port, as
-- `perigee.devices` lists them (for GPUs see `Gpu`). Texts are "" where nothing
-- is known.
--
-- * `name`: "mlx5_0"; `port`: from 1
-- * `state`: "active", "down", "init", "armed"
-- * `physical`: "linkup", "disabled", "polling" and so on
-- * `link`: "ethernet", "infiniband"; `rate`: Gb/s
-- * `mtu`: the active MTU in bytes; `max_mtu`: the largest; both 0 if the
--   device could not be asked (no libibverbs, or no access to it)
-- * `lid`: on InfiniBand; 0 on Ethernet
-- * `gids`: a list of tables with index, address, type ("RoCE v2", "RoCE v1",
--   "IB") and netdev
-- * `gid`: index of the GID that is used by default, which prefers RoCE v2 to
--   v1, and IPv4 to IPv6 to link-local; -1: there is none
-- * `netdev`: the network interface behind it
-- * `pci`: "0000:3b:00.0"; "" for a software device
-- * `numa`: node, -1 if unknown
-- * `driver`: "mlx5_core"; a software device's own name for itself
-- * `firmware`: version
-- @classmod Device
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local gpus = require "perigee.engine.gpus"
local native = require "perigee.native"

local ffi = require "ffi"
local C = native.C

local M = {}

local devices_t = ffi.typeof("struct perigee_device[?]")
local gids_t = ffi.typeof("struct perigee_gid[?]")
local DEVICE_SIZE = ffi.sizeof("struct perigee_device")
local GID_SIZE = ffi.sizeof("struct perigee_gid")

local TEXTS = { "name", "netdev", "pci", "driver", "firmware", "state",
                "physical", "link" }
local NUMBERS = { "port", "lid", "mtu", "max_mtu", "gid", "numa", "rate" }
local STATES = { active = true, down = true, init = true, armed = true }
local LINKS = { ethernet = true, infiniband = true }

local function kind(value)
  if value ~= "rdma" and value ~= "gpu" then return '"rdma" or "gpu"' end
end

local schema = {
  kind = kind,
  name = check.string,
  port = check.count,
  sysfs = check.string,
  state = function(value)
    if not STATES[value] then
      return '"active", "down", "init" or "armed"'
    end
  end,
  link = function(value)
    if not LINKS[value] then return '"ethernet" or "infiniband"' end
  end,
}

local gpu_schema = { kind = kind, sysfs = check.string }

-- Returns all entries of a list and their number, and asks again with more room
-- if they did not fit; or nil and a status.
local function all(list_t, ask)
  local room = 16
  while true do
    local list = list_t(room)
    local count = ask(list, room)
    if count < 0 then return nil, count end
    if count <= room then return list, count end
    room = count
  end
end

local function gids(sysfs, name, port)
  local list, count = all(gids_t, function(list, room)
    return C.perigee_device_gids(sysfs, name, port, list, GID_SIZE, room)
  end)
  local found = {}
  for i = 0, list and count - 1 or -1 do
    local gid = list[i]
    found[#found + 1] = { index = gid.index, address = ffi.string(gid.address),
      type = ffi.string(gid.type), netdev = ffi.string(gid.netdev) }
  end
  return found
end

local function plain(device)
  local port = {}
  for _, field in ipairs(TEXTS) do port[field] = ffi.string(device[field]) end
  for _, field in ipairs(NUMBERS) do port[field] = tonumber(device[field]) end
  return port
end

local function fits(port, options)
  return (not options.name or port.name == options.name)
    and (not options.port or port.port == options.port)
    and (not options.state or port.state == options.state)
    and (not options.link or port.link == options.link)
end

--- Lists all ports without their GIDs; opens no device if sysfs is given.
function M.ports(sysfs)
  local list, count = all(devices_t, function(list, room)
    return C.perigee_devices(sysfs, list, DEVICE_SIZE, room)
  end)
  if not list then return nil, errors.from(count, "listing RDMA devices") end
  local ports = {}
  for i = 0, count - 1 do ports[i + 1] = plain(list[i]) end
  return ports
end

--- Lists the ports of RDMA devices, except those that PERIGEE_NICS hides; or,
-- of kind "gpu", the GPUs that CUDA shows this process.
--
-- `name`, `port`, `state` and `link` choose among RDMA ports. A list of GPUs
-- takes `kind` and `sysfs` alone. It opens and initializes CUDA's driver, which
-- may take seconds at the first time in a process. Children that are forked
-- afterwards cannot use CUDA.
-- @function perigee.devices
-- @tparam[opt] table options
-- @tparam[opt] string options.kind "rdma" (default) or "gpu"
-- @tparam[opt] string options.name of a device
-- @tparam[opt] number options.port
-- @tparam[opt] string options.state "active", "down", "init" or "armed"
-- @tparam[opt] string options.link "ethernet" or "infiniband"
-- @tparam[opt] string options.sysfs the path of another /sys ("/host/sys" in a
--   container); no RDMA device is opened then, and MTUs stay 0
-- @treturn table a list of `Device`, sorted by name and port, or of `Gpu`, by
--   index; {} where there is none; or nil and an error
-- @treturn[opt] string of kind "gpu", where there is none: why
-- @errors `no_memory`; `unsupported` (CUDA's driver does not work, and says
--   why); a malformed PERIGEE_NICS is misuse
-- @waits no
-- @usage
-- for _, port in ipairs(assert(perigee.devices { state = "active" })) do
--   print(port.name, port.port, port.rate)
-- end
-- for _, gpu in ipairs(assert(perigee.devices { kind = "gpu" })) do
--   print(gpu.device, gpu.name, gpu.memory, gpu.nics[1], gpu.reaches[1])
-- end
function M.list(options)
  if type(options) == "table" and options.kind == "gpu" then
    check.options(options, gpu_schema, "perigee.devices of GPUs", 2)
    return gpus.list(options.sysfs)
  end
  options = check.options(options, schema, "perigee.devices", 2)
  local ports, err = M.ports(options.sysfs)
  if not ports then return nil, err end
  local found = {}
  for _, port in ipairs(ports) do
    if fits(port, options) then
      port.gids = gids(options.sysfs, port.name, port.port)
      found[#found + 1] = port
    end
  end
  return found
end

return M
