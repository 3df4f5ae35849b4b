-- SPDX-License-Identifier: Apache-2.0
--- A program's settings for its NICs: option `advanced.rdma` of engines.
-- It is a table, or the text that the core and PERIGEE_RDMA take.
local check = require "perigee.runtime.check"

local M = {}

local KEYS = { "nics", "qps", "gid", "sl", "tc", "hop", "pkey", "mtu",
               "timeout", "retry", "rnr", "stripe", "depth", "inline",
               "windows" }

local known = {}
for _, key in ipairs(KEYS) do known[key] = true end

local function value_text(value)
  if value == true or value == false then return value and "1" or "0" end
  if type(value) == "table" then return table.concat(value, ",") end
  return tostring(value)
end

--- The check of option rdma: a text, or a table with keys that
-- native/devices/devices.h describes: nics ("mlx5_0:1" or a list), qps, gid,
-- sl, tc, hop, pkey, mtu, timeout, retry, rnr, stripe (bytes or "256K"), depth,
-- inline, windows.
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

--- Such a value as the text that the core takes.
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
