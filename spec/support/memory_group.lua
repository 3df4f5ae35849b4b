-- SPDX-License-Identifier: Apache-2.0
-- A memory control group of a process's own, where this process may make one
-- (version 1, or 2 with the controller for children); else what the kernel says
-- of the process alone.
local ffi = require "ffi"

ffi.cdef [[
  int spec_rmdir(const char *) __asm__("rmdir");
]]
local MODE = 493

local Group = {}
Group.__index = Group
local M = {}

local function read(path)
  local file = io.open(path)
  local text = file and file:read "*a"
  if file then file:close() end
  return text
end

local function write(path, text)
  local file = io.open(path, "w")
  if not file then return false end
  local fine = file:write(tostring(text))
  return file:close() and fine
end

-- The folders in which a group could be made, and the file of its limit.
local function parents()
  local own = read "/proc/self/cgroup" or ""
  local first = own:match "%d+:[%w,]*memory[%w,]*:(/[^\n]*)"
  local second = own:match "0::(/[^\n]*)"
  return { first and { "/sys/fs/cgroup/memory" .. first,
                       "memory.limit_in_bytes" },
           second and { "/sys/fs/cgroup" .. second, "memory.max" } }
end

-- Moves the process to a group that is limited to so many bytes.
function M.of(pid, limit)
  local self = setmetatable({ pid = pid }, Group)
  for _, parent in pairs(parents()) do
    local folder = parent and ("%s/perigee-spec-%d"):format(parent[1], pid)
    if parent and ffi.C.spec_mkdir(folder, MODE) == 0 then
      if write(folder .. "/" .. parent[2], limit)
        and write(folder .. "/cgroup.procs", pid) then
        self.folder = folder
        break
      end
      ffi.C.spec_rmdir(folder)
    end
  end
  return self
end

-- Bytes of shared memory that count as the process's own: those that it was the
-- first to touch. Without a group: all that it has mapped and touched.
function Group:shared()
  local stat = self.folder and read(self.folder .. "/memory.stat")
  local bytes = stat and ("\n" .. stat):match "\nshmem (%d+)"
  if bytes then return tonumber(bytes) end
  local status = read(("/proc/%d/status"):format(self.pid)) or ""
  return tonumber(status:match "RssShmem:%s+(%d+)" or 0) * 1024
end

-- Once the process has ended.
function Group:close()
  if self.folder then ffi.C.spec_rmdir(self.folder) end
end

return M
