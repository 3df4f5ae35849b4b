-- SPDX-License-Identifier: Apache-2.0
--- The limits of the control groups that this process is in, of either version.
local M = {}

local MOUNTS = { memory = "/sys/fs/cgroup/memory", cpu = "/sys/fs/cgroup/cpu" }

-- A limit of version 1 above this means that there is none.
local NONE = 2 ^ 60

-- Returns where this process's group of a controller is: mount, path in it,
-- version.
local function groups(machine, controller)
  local found = {}
  local text = machine:read "/proc/self/cgroup" or ""
  for names, path in text:gmatch "%d+:([^:\n]*):([^\n]*)" do
    if names == "" then
      found[#found + 1] = { "/sys/fs/cgroup", path, 2 }
    elseif ("," .. names .. ","):find("," .. controller .. ",", 1, true) then
      found[#found + 1] = { MOUNTS[controller], path, 1 }
    end
  end
  return found
end

-- Calls look(folder) for a group and its ancestors. In a container the path
-- may be the host's; then only the mount itself exists.
local function upwards(group, look)
  local mount, path = group[1], group[2]
  while path ~= "" and path ~= "/" do
    look(mount .. path)
    path = path:match "^(.*)/[^/]*$"
  end
  look(mount)
end

local FILES = {
  { "memory.limit_in_bytes", "memory.usage_in_bytes" },
  { "memory.max", "memory.current" },
}

--- Returns the least limit of memory in bytes and what is used of it; nil if
-- there is none.
function M.memory(machine)
  local limit, used
  for _, group in ipairs(groups(machine, "memory")) do
    local files = FILES[group[3]]
    upwards(group, function(folder)
      local bytes = machine:number(folder .. "/" .. files[1])
      if bytes and bytes < (limit or NONE) then
        limit, used = bytes, machine:number(folder .. "/" .. files[2]) or 0
      end
    end)
  end
  return limit, used
end

local function quota_of(machine, folder, version)
  if version == 2 then
    local text = machine:read(folder .. "/cpu.max") or ""
    local quota, period = text:match "^(%d+)%s+(%d+)"
    return quota and tonumber(quota) / tonumber(period)
  end
  local quota = machine:number(folder .. "/cpu.cfs_quota_us")
  local period = machine:number(folder .. "/cpu.cfs_period_us")
  return quota and quota > 0 and period and quota / period or nil
end

--- Returns how many processors' worth of time this process may use; nil if
-- all.
function M.processors(machine)
  local least
  for _, group in ipairs(groups(machine, "cpu")) do
    upwards(group, function(folder)
      local quota = quota_of(machine, folder, group[3])
      if quota then least = math.min(least or quota, quota) end
    end)
  end
  return least
end

return M
