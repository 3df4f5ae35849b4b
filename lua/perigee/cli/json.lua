-- SPDX-License-Identifier: Apache-2.0
--- Values as JSON, on one line, with sorted keys. Beside what lua-cjson can:
-- numbers keep all their digits; 64-bit integers are numbers up to 2^53 and
-- strings beyond; NaN and infinities, which JSON has not, are strings; lists
-- may have holes, which are null; bytes that are no UTF-8 become U+FFFD.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local ffi = require "ffi"

local printable = require "perigee.cli.printable"

local M = {}

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n",
                  ["\r"] = "\\r", ["\t"] = "\\t" }

--- In place of a list that may be empty, for an empty table is an object.
local List = {}
function M.list(values) return setmetatable(values, List) end

local function quoted(text)
  return '"' .. printable.utf8(text):gsub('[%z\1-\31"\\\127]', function(c)
    return ESCAPES[c] or ("\\u%04x"):format(c:byte())
  end) .. '"'
end

local function number(value)
  if value ~= value or value == math.huge or value == -math.huge then
    return quoted(tostring(value))
  elseif value % 1 == 0 and math.abs(value) <= 2 ^ 53 then
    return ("%.0f"):format(value)
  end
  local short = ("%.15g"):format(value)
  return tonumber(short) == value and short or ("%.17g"):format(value)
end

local int64, uint64 = ffi.typeof "int64_t", ffi.typeof "uint64_t"

local function integer(value)
  local text = tostring(value):gsub("U?LL$", "")
  return math.abs(tonumber(value)) <= 2 ^ 53 and text or quoted(text)
end

-- The length of a list; nil for a table with other keys, or mostly holes.
local function length(value)
  local longest, count = 0, 0
  for key in pairs(value) do
    if type(key) ~= "number" or key < 1 or key % 1 ~= 0 then return nil end
    longest, count = math.max(longest, key), count + 1
  end
  if longest > 2 * count + 8 then return nil end
  return (count > 0 or getmetatable(value) == List) and longest or nil
end

local encode

local function list(value, n)
  local parts = {}
  for i = 1, n do parts[i] = encode(value[i]) end
  return "[" .. table.concat(parts, ",") .. "]"
end

local function object(value)
  local keys, by_text, parts = {}, {}, {}
  for key in pairs(value) do
    local text = tostring(key)
    keys[#keys + 1], by_text[text] = text, key
  end
  table.sort(keys)
  for i, text in ipairs(keys) do
    parts[i] = quoted(text) .. ":" .. encode(value[by_text[text]])
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

function encode(value)
  local kind = type(value)
  if kind == "nil" then return "null" end
  if kind == "boolean" then return tostring(value) end
  if kind == "number" then return number(value) end
  if kind == "table" then
    local n = length(value)
    return n and list(value, n) or object(value)
  elseif kind == "cdata"
    and (ffi.istype(int64, value) or ffi.istype(uint64, value)) then
    return integer(value)
  end
  return quoted(tostring(value))
end

--- The text of a value.
M.encode = encode

local function plain(value, null)
  if value == null then return nil end
  if type(value) ~= "table" then return value end
  local copy = {}
  for key, each in pairs(value) do copy[key] = plain(each, null) end
  return copy
end

--- True and the value of a text, with nil for null; or false and why there is
-- none.
function M.decode(text)
  local there, cjson = pcall(require, "cjson.safe")
  if not there then
    return false, "this needs lua-cjson: apt-get install lua-cjson, or "
      .. "luarocks --lua-version=5.1 install lua-cjson"
  end
  local value, why = cjson.decode(text)
  if value == nil then return false, why end
  return true, plain(value, cjson.null)
end

return M
