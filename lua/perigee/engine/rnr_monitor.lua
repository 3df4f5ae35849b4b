-- SPDX-License-Identifier: Apache-2.0
--- Watches RDMA devices' counters of "receiver not ready" (RNR): a message
-- arrived and no receive was posted for it. The device retries by itself, so
-- nothing fails and no completion reports it; only the latency and these
-- counters show it. Made by `perigee.RnrMonitor`.
--
-- * `out_of_buffer`: mlx5: a message arrived and found no receive (receiver)
-- * `rnr_nak_retry_err`: mlx5: the sender gave up (sender)
-- * `send_rnr_err`: soft-RoCE: told a sender to wait (receiver)
-- * `rcvd_rnr_err`: soft-RoCE: was told to wait (sender)
-- * `retry_rnr_exceeded_err`: soft-RoCE: the sender gave up (sender)
-- * `rnr_naks_rcvd`: bnxt_re: was told to wait (sender)
--
-- Perigee always has a receive posted for what may arrive, so its own traffic
-- does not increase these counters. They count for the whole device, for all
-- its users, and a device that is both sender and receiver counts an event on
-- both sides. The kernel's values may be about 15 ms old. Values are Lua
-- numbers, exact up to 2^53. A counter that is smaller than before was reset
-- (the device was created again) and counts from 0.
-- @classmod RnrMonitor
local check = require "perigee.runtime.check"
local devices = require "perigee.engine.devices"
local errors = require "perigee.runtime.errors"

local M = {}

local Monitor = {}
Monitor.__index = Monitor

-- Those that are watched by default; `perigee nics` sums them, too.
M.COUNTERS = { "out_of_buffer", "rnr_nak_retry_err", "send_rnr_err",
               "rcvd_rnr_err", "retry_rnr_exceeded_err", "rnr_naks_rcvd" }

-- ---- Options ---------------------------------------------------------------

local function list_of(pattern, wanted)
  return function(value)
    local list = type(value) == "string" and { value } or value
    if type(list) ~= "table" or #list == 0 then return wanted end
    for _, name in ipairs(list) do
      if type(name) ~= "string" or not name:match(pattern) then
        return wanted
      end
    end
  end
end

local schema = {
  devices = list_of("^%w[%w_.-]*[:/]?%d*$",
                    'names of devices, as in { "mlx5_0", "mlx5_1:2" }'),
  counter = list_of("^%w[%w_]*$",
                    "the name of a counter, or a list of them"),
  sysfs = check.string,
}

local function listed(value)
  return type(value) == "string" and { value } or value
end

-- ---- Where counters are ----------------------------------------------------

local function read(path)
  local file = io.open(path)
  local line = file and file:read("*l")
  if file then file:close() end
  return line and tonumber(line)
end

-- A folder of counters, with the names that it has and those that it lacks.
local function source(key, folder, counters)
  local found = { key = key, folder = folder, has = {}, lacks = {} }
  for _, name in ipairs(counters) do
    local list = read(folder .. name) and found.has or found.lacks
    list[#list + 1] = name
  end
  return found
end

local function is_named(name, port)
  local device, number = name:match("^(.-)[:/](%d+)$")
  return (device or name) == port.name
    and (not number or tonumber(number) == port.port)
end

local function names_of(ports)
  local names = {}
  for _, port in ipairs(ports) do
    names[#names + 1] = port.name .. "/" .. port.port
  end
  return #names > 0 and table.concat(names, ", ") or "none"
end

-- The ports to watch: all, or those of the named devices in the given order.
local function watched(self)
  local ports, err = devices.ports(self.sysfs)
  if not ports then return nil, err end
  if not self.devices then return ports end
  local found = {}
  for _, name in ipairs(self.devices) do
    local count = #found
    for _, port in ipairs(ports) do
      if is_named(name, port) then found[#found + 1] = port end
    end
    if #found == count then
      return nil, errors.new("not_found", ("watching RNR counters: there is "
        .. "no RDMA device %s; there are: %s"):format(name, names_of(ports)))
    end
  end
  return found
end

-- The folders to read. Most devices count for each port ("mlx5_0/1"); counters
-- of the whole device have its name alone as key ("mlx5_0").
local function sources(self, ports)
  local list, seen = {}, {}
  for _, port in ipairs(ports) do
    local key = port.name .. "/" .. port.port
    local folder = self.sysfs .. "/class/infiniband/" .. port.name
    if not seen[port.name] then
      local whole = source(port.name, folder .. "/hw_counters/", self.counters)
      if #whole.has > 0 then list[#list + 1] = whole end
    end
    if not seen[key] then
      list[#list + 1] = source(key, ("%s/ports/%d/hw_counters/")
        :format(folder, port.port), self.counters)
    end
    seen[port.name], seen[key] = true, true
  end
  return list
end

local function has_any(list)
  for _, from in ipairs(list) do
    if #from.has > 0 then return true end
  end
  return false
end

-- Finds the counters that there are now.
local function look(self)
  local ports, err = watched(self)
  if not ports then return nil, err end
  if #ports == 0 then
    return nil, errors.new("unsupported",
      "watching RNR counters: there is no RDMA device")
  end
  local list = sources(self, ports)
  if not has_any(list) then
    return nil, errors.new("unsupported", ("watching RNR counters: there is "
      .. "no %s on %s"):format(table.concat(self.counters, ", "),
      names_of(ports)))
  end
  return list
end

-- The present values of all counters, by key and name.
local function values(list)
  local all = {}
  for _, from in ipairs(list) do
    local of = {}
    for _, name in ipairs(from.has) do
      of[name] = read(from.folder .. name)
      if not of[name] then
        return nil, errors.new("not_found", ("watching RNR counters: %s is "
          .. "gone, or no longer tells its %s"):format(from.key, name))
      end
    end
    all[from.key] = of
  end
  return all
end

-- A new table of each counter's growth since before (nil: since 0).
local function grown(list, now, before)
  local all = {}
  for _, from in ipairs(list) do
    local of = {}
    for _, name in ipairs(from.has) do
      local value, was = now[from.key][name], before and before[from.key][name]
      of[name] = (was and value >= was) and value - was or value
    end
    all[from.key] = of
  end
  return all
end

-- ---- The monitor -----------------------------------------------------------

--- Reads all counters; later deltas are relative to this snapshot. If no
-- devices were named, it also finds new ones. If it fails, the previous
-- snapshot stays.
-- @function RnrMonitor:snapshot
-- @treturn table by key ("mlx5_0/1"; "mlx5_0" for what a device counts for all
--   its ports) a table of values by counter; or nil and an error
-- @errors `not_found`: a named device is gone; `unsupported`: nothing is left
--   to watch
-- @waits no
-- @usage
-- local monitor = perigee.RnrMonitor()              -- nil without a device
-- if monitor then assert(monitor:snapshot()) end
function Monitor:snapshot()
  local list, err = look(self)
  if not list then return nil, err end
  local now
  now, err = values(list)
  if not now then return nil, err end
  self.sources, self.before = list, now
  return grown(list, now)
end

--- The growth of each counter since the last snapshot, or since the monitor was
-- made. It takes no snapshot: a second delta includes the first.
-- @function RnrMonitor:delta
-- @treturn table in the shape of a snapshot; or nil and an error
-- @errors `not_found`: a device is gone
-- @waits no
-- @usage
-- local monitor = perigee.RnrMonitor()              -- nil without a device
-- if monitor then assert(monitor:delta()) end
function Monitor:delta()
  local now, err = values(self.sources)
  if not now then return nil, err end
  return grown(self.sources, now, self.before)
end

--- The sum of all deltas.
-- @function RnrMonitor:total_delta
-- @treturn number events; or nil and an error
-- @errors `not_found`: a device is gone
-- @waits no
-- @usage
-- local monitor = perigee.RnrMonitor()              -- nil without a device
-- if monitor then print(monitor:total_delta() >= 0) end
function Monitor:total_delta()
  local delta, err = self:delta()
  if not delta then return nil, err end
  local sum = 0
  for _, from in ipairs(self.sources) do
    for _, name in ipairs(from.has) do sum = sum + delta[from.key][name] end
  end
  return sum
end

--- The counters that devices lacked at the last snapshot. Without a counter for
-- a side (sender or receiver), a device shows nothing about RNR on that side.
-- @function RnrMonitor:missing
-- @treturn table by key a list of names, {} for a device with all of them
-- @waits no
-- @usage
-- local monitor = perigee.RnrMonitor()              -- nil without a device
-- if monitor then assert(monitor:missing()) end
function Monitor:missing()
  local missing = {}
  for _, from in ipairs(self.sources) do
    missing[from.key] = { unpack(from.lacks) }
  end
  return missing
end

--- Makes a monitor. A missing counter is never reported as 0: it fails if there
-- is no such device, or no device has any of the counters.
-- @function perigee.RnrMonitor
-- @tparam[opt] table options
-- @tparam[opt] string|table options.devices names, as in `{ "mlx5_0",
--   "mlx5_1:2" }`; default: all
-- @tparam[opt] string|table options.counter a name or a list of names; default:
--   all of them
-- @tparam[opt="/sys"] string options.sysfs the path of sysfs
-- @treturn RnrMonitor the monitor; or nil and an error
-- @errors `not_found`: no such device; `unsupported`: no device, or none that
--   counts
-- @waits no
-- @usage
-- local monitor, err = perigee.RnrMonitor()
-- print(monitor ~= nil or err.kind == "unsupported")           --> true
function M.new(options)
  options = check.options(options, schema, "perigee.RnrMonitor", 2)
  local self = setmetatable({
    devices = listed(options.devices),
    counters = listed(options.counter) or M.COUNTERS,
    sysfs = options.sysfs or "/sys",
  }, Monitor)
  local first, err = self:snapshot()
  if not first then return nil, err end
  return self
end

check.colons(Monitor, "monitor", "delta missing snapshot total_delta")

return M
