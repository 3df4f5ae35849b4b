-- SPDX-License-Identifier: Apache-2.0
--- Sizes and times as people write them: "64K", "1.5 GiB", "200ms". For command
-- lines and reports; the functions of Perigee take plain numbers.
local M = {}

local SIZES = { "K", "M", "G", "T" }
local TIMES = { ns = 1e-9, us = 1e-6, ms = 1e-3, s = 1, m = 60, min = 60,
                h = 3600 }

local factor = { [""] = 1, B = 1 }
for power, letter in ipairs(SIZES) do
  factor[letter] = 2 ^ (10 * power)
  factor[letter .. "B"] = 10 ^ (3 * power)
  factor[letter .. "IB"] = 2 ^ (10 * power)
end

local function parts(text)
  if type(text) == "number" then return text, "" end
  if type(text) ~= "string" then return nil end
  local number, unit = text:match("^%s*([%d.]+)%s*(%a*)%s*$")
  return tonumber(number), unit
end

--- The number of bytes that a text such as "64K" means. For command lines; the
-- functions of Perigee take plain numbers.
-- @function perigee.units.size
-- @tparam string|number text "4096", "64K", "64k", "64KiB" (all binary) or
--   "64KB" (decimal); a number stays what it is
-- @treturn number bytes; or nil and a message if it is no size
-- @waits no
-- @usage
-- print(perigee.units.size "64K", perigee.units.size "1KB")    --> 65536 1000
function M.size(text)
  local number, unit = parts(text)
  local by = number and factor[unit:upper()]
  local bytes = by and number * by
  if not bytes or bytes % 1 ~= 0 then
    return nil, ("%q is no size; write 4096, 64K, 16M, 1G"):format(
      tostring(text))
  end
  return bytes
end

--- The number of seconds that a text such as "200ms" means.
-- @function perigee.units.time
-- @tparam string|number text "0.5", "200ms", "2s", "1m", "1h"; a number stays
--   what it is
-- @treturn number seconds; or nil and a message if it is no time
-- @waits no
-- @usage
-- print(perigee.units.time "200ms", perigee.units.time "1m")   --> 0.2 60
function M.time(text)
  local number, unit = parts(text)
  local by = number and (unit == "" and 1 or TIMES[unit])
  if not by then
    return nil, ("%q is no time; write 0.5, 200ms, 2s, 1m"):format(
      tostring(text))
  end
  return number * by
end

--- A number of bytes as text with a unit.
-- @function perigee.units.format_size
-- @tparam number bytes
-- @treturn string
-- @waits no
-- @usage
-- print(perigee.units.format_size(65536))                      --> 64 KiB
function M.format_size(bytes)
  local power = 0
  while bytes >= 1024 and power < #SIZES do
    bytes, power = bytes / 1024, power + 1
  end
  local unit = power == 0 and "B" or SIZES[power] .. "iB"
  return (("%.1f"):format(bytes):gsub("%.0$", "")) .. " " .. unit
end

--- A number of seconds as text with a unit.
-- @function perigee.units.format_time
-- @tparam number seconds
-- @treturn string
-- @waits no
-- @usage
-- print(perigee.units.format_time(0.0015))                     --> 1.5 ms
function M.format_time(seconds)
  if seconds == math.huge then return "no limit" end
  if seconds >= 1000 then return ("%.0f s"):format(seconds) end
  if seconds >= 1 or seconds == 0 then return ("%.3g s"):format(seconds) end
  if seconds >= 1e-3 then return ("%.3g ms"):format(seconds * 1e3) end
  if seconds >= 1e-6 then return ("%.3g us"):format(seconds * 1e6) end
  return ("%.3g ns"):format(seconds * 1e9)
end

return M
