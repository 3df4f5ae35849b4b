-- SPDX-License-Identifier: Apache-2.0
--- Entries as JSON, for backends in servers that keep texts. A control server
-- that keeps its entries there adds `lease`, the milliseconds of their leases.
local entries = require "perigee.registry.entry"

local json = require "perigee.net.json"

local M = {}

--- Encodes an entry as text; nil and why if that fails. `since` is replaced by
-- the server's time at which it began. now: the server's time in milliseconds.
function M.encode(entry, now)
  local since = entry.since
  local copy = {}
  for field, value in pairs(entry) do copy[field] = value end
  copy.since, copy.began = nil, now - (since or 0) * 1000
  return json.encode(copy)
end
jit.off(M.encode)

--- Decodes a text as the entry of name in scope; nil if it is not that entry.
-- In a task: waits if the text is long.
function M.decode(text, scope, name, now)
  local value = type(text) == "string" and json.decode_long(text)
  local entry = entries.trusted(value, scope, name)
  if not entry then return nil end
  local began = tonumber(entry.began)
  entry.began, entry.since, entry.lease = nil, nil, nil
  if began then entry.since = math.max(0, (now - began) / 1000) end
  return entry
end

return M
