-- SPDX-License-Identifier: Apache-2.0
--- Identifies the system that this process sees: one kernel's life, and in it
-- the process's namespaces. Paths of sockets, loopback addresses and process
-- ids mean the same to two processes only if both see the same system.
-- Containers share a host's name and its kernel easily, and never all of these.
local native = require "perigee.native"

local M = {}

local NAMESPACES = { "mnt", "net", "pid" }

local function boot()
  local file = io.open "/proc/sys/kernel/random/boot_id"
  local text = file and file:read "*l"
  if file then file:close() end
  return text
end

--- The identity, a text; nil if the system does not tell.
function M.identity()
  local parts = { boot() }
  if not parts[1] then return nil end
  for _, name in ipairs(NAMESPACES) do
    local link = native.link("/proc/self/ns/" .. name)
    if not link then return nil end
    parts[#parts + 1] = link:match "%d+"
  end
  return table.concat(parts, ".")
end

return M
