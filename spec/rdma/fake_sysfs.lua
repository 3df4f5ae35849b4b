-- SPDX-License-Identifier: Apache-2.0
-- A made-up /sys with RDMA devices, in a folder that remove() deletes.
local ffi = require "ffi"

pcall(ffi.cdef, [[
  char *spec_mkdtemp(char *) __asm__("mkdtemp");
  int spec_make_folder(const char *, unsigned) __asm__("mkdir");
]])

local Tree = {}
Tree.__index = Tree

-- Writes one line to a file, and creates the folders above it.
function Tree:put(path, line)
  path = self.root .. "/class/infiniband/" .. path
  for slash in path:gmatch("()/") do
    if slash > #self.root then
      ffi.C.spec_make_folder(path:sub(1, slash - 1), 448)
    end
  end
  local file = assert(io.open(path, "w"))
  file:write(tostring(line), "\n")
  file:close()
end

function Tree:port(name, port, options)
  local folder = ("%s/ports/%d/"):format(name, port)
  options = options or {}
  self:put(folder .. "state", options.state or "4: ACTIVE")
  self:put(folder .. "phys_state", "5: LinkUp")
  self:put(folder .. "link_layer", options.link or "Ethernet")
  self:put(folder .. "rate", options.rate or "100 Gb/sec (4X EDR)")
  self:put(folder .. "lid", options.lid or "0x0")
end

function Tree:gid(name, port, index, gid, kind)
  local folder = ("%s/ports/%d/"):format(name, port)
  self:put(folder .. "gids/" .. index, gid)
  self:put(folder .. "gid_attrs/types/" .. index, kind)
  self:put(folder .. "gid_attrs/ndevs/" .. index, "eth7")
end

function Tree:count(name, port, counter, value)
  self:put(("%s/ports/%d/hw_counters/%s"):format(name, port, counter), value)
end

-- Removes a device, as if it had been pulled out; without a name, all.
function Tree:remove(name)
  local what = name and "/class/infiniband/" .. name or ""
  assert(os.execute(("rm -rf %q"):format(self.root .. what)))
end

return function()
  local path = ffi.new("char[64]", "/dev/shm/perigee-sysfs-XXXXXX")
  assert(ffi.C.spec_mkdtemp(path) ~= nil)
  return setmetatable({ root = ffi.string(path) }, Tree)
end
