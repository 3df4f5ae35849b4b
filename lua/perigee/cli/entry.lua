-- SPDX-License-Identifier: Apache-2.0
--- Writes an agent's entry as text: for `perigee describe` and `lookup`.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local sorted = require "perigee.runtime.sorted"
local units = require "perigee.runtime.units"

local M = {}

--- Writes who the agent is, and where. A name is held before its entry is
-- published, and others may leave out what they like.
function M.head(entry, out)
  local kind = entry.kind or "agent"
  out.line("%s, a%s %s, %s", entry.name, kind:find "^[aeiou]" and "n" or "",
           kind, entry.state or "which has told the registry nothing of itself")
  if entry.pid or entry.host then
    out.line("  process %s on %s%s", tostring(entry.pid or "?"),
             entry.host or "?",
             entry.since and (", for %.0f s"):format(entry.since) or "")
  end
  for _, address in ipairs(entry.addresses) do out.line("  at %s", address) end
end

--- Writes the services: versions by name, or tables with a version, for which
-- f(service, out) writes the rest.
function M.services(services, out, f)
  for _, name in ipairs(sorted(services)) do
    local each = services[name]
    local version = type(each) == "table" and each.version or each
    out.line("  service %s, version %s", name, tostring(version))
    if f then f(each, out) end
  end
end

--- Writes the regions and the metadata.
function M.tail(entry, out)
  for _, name in ipairs(sorted(entry.regions)) do
    local region = entry.regions[name]
    region = type(region) == "table" and region or {}
    local length = tonumber(region.length)
    out.line("  region %-20s %s, access %s", name,
             length and units.format_size(length) or "?",
             region.access ~= "" and tostring(region.access or "?") or "none")
  end
  if next(entry.metadata or {}) then
    out.line("  metadata %s",
             require "perigee.cli.json".encode(entry.metadata))
  end
end

return M
