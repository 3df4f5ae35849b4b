-- SPDX-License-Identifier: Apache-2.0
--- What a program says of its NICs: option `rdma` of engines and agents, a
-- table or the text that the core takes and PERIGEE_RDMA may hold.
local check = require "perigee.check"

local M = {}

local KEYS = { "nics", "qps", "gid", "sl", "tc", "hop", "pkey", "mtu",
               "timeout", "retry", "rnr", "receives", "stripe", "depth",
               "inline", "windows" }

local known = {}
for _, key in ipairs(KEYS) do known[key] = true end

local function value_text(value)
  if value == true or value == false then return value and "1" or "0" end
  if type(value) == "table" then return table.concat(value, ",") end
  return tostring(value)
end

--- A check for options: a text, or a table of what native/devices/devices.h
-- lists: nics ("mlx5_0:1" or a list), qps, gid, sl, tc, hop, pkey, mtu,
-- timeout, retry, rnr, receives, stripe (bytes or "256K"), depth, inline,
-- windows.
function M.check(value)
  if type(value) == "string" then return end
  if type(value) ~= "table" then return check.table(value) end
  for key in next, value do
    if not known[key] then
      return "a text or a table of " .. table.concat(KEYS, ", ")
    end
  end
end
jit.off(M.check)

--- The core's text of such a value.
function M.text(value)
  if type(value) == "string" then return value end
  local parts = {}
  for _, key in ipairs(KEYS) do
    if value[key] ~= nil then
      parts[#parts + 1] = key .. "=" .. value_text(value[key])
    end
  end
  return table.concat(parts, " ")
end

return M
