-- SPDX-License-Identifier: Apache-2.0
-- A made-up /sys with RDMA devices, and devices of the PCI bus, in a folder
-- that remove() deletes.
local ffi = require "ffi"

pcall(ffi.cdef, [[
  char *spec_mkdtemp(char *) __asm__("mkdtemp");
  int spec_make_folder(const char *, unsigned) __asm__("mkdir");
]])
pcall(ffi.cdef, [[
  int spec_make_link(const char *, const char *) __asm__("symlink");
]])

local Tree = {}
Tree.__index = Tree

-- Creates the folders above a path, which it returns below the root.
local function place(tree, path)
  path = tree.root .. path
  for slash in path:gmatch("()/") do
    if slash > #tree.root then
      ffi.C.spec_make_folder(path:sub(1, slash - 1), 448)
    end
  end
  return path
end

-- Writes one line to a file of an RDMA device.
function Tree:put(path, line)
  local file = assert(io.open(place(self, "/class/infiniband/" .. path), "w"))
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

-- A device of the PCI bus, below these bridges ("pci0000:15/0000:15:01.0").
function Tree:pci(address, bridges, numa)
  local way = ("/devices/%s/%s"):format(bridges, address)
  local file = assert(io.open(place(self, way .. "/numa_node"), "w"))
  file:write(numa or -1, "\n")
  file:close()
  assert(ffi.C.spec_make_link("../../.." .. way,
    place(self, "/bus/pci/devices/" .. address)) == 0)
end

-- A port of an RDMA device of the PCI bus.
function Tree:nic(name, address, bridges, numa)
  self:port(name, 1)
  self:pci(address, bridges, numa)
  assert(ffi.C.spec_make_link(
    ("../../../devices/%s/%s"):format(bridges, address),
    place(self, "/class/infiniband/" .. name .. "/device")) == 0)
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
