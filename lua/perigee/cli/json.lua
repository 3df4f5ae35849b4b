-- SPDX-License-Identifier: Apache-2.0
--- Values as JSON, on one line, with sorted keys. Beside what lua-cjson can:
-- numbers keep all their digits; 64-bit integers are strings; NaN and
-- infinities, which JSON has not, are strings; lists may have holes, which are
-- null.
--
-- Values that JSON cannot tell are told in one of two ways. Reports (encode)
-- are for reading: bytes that are no UTF-8 become U+FFFD. Values of others
-- (exact) keep all bytes and all entries, by objects with one key, which
-- arguments may have, too:
--
--   {"$base64": "/w=="}      a string that is no UTF-8
--   {"$entries": [[k, v]]}   a table whose keys an object cannot have: one that
--                            is no UTF-8 or one of these four, or 1 beside "1"
--   {"$int64": "-1"}, {"$uint64": "1"}      in arguments only
--
-- They do not keep the type of values that are told as strings: of 64-bit
-- integers, of NaN and infinities, and of keys that are no strings. The table
-- {[100] = "x"} is {"100":"x"}, as in other JSON; given back, its key is a
-- string.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local ffi = require "ffi"

local base64 = require "perigee.cli.base64"
local printable = require "perigee.runtime.printable"

local M = {}

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n",
                  ["\r"] = "\\r", ["\t"] = "\\t" }

--- In place of a list that may be empty, for an empty table is an object.
local List = {}
function M.list(values) return setmetatable(values, List) end

local function escape(c)
  return ESCAPES[c] or ("\\u%04x"):format(c:byte(-1))
end

-- A string. Control characters are escaped, those of two bytes as well.
local function quoted(text)
  text = printable.utf8(text):gsub('[%z\1-\31"\\\127]', escape)
  return '"' .. text:gsub("\194[\128-\159]", escape) .. '"'
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

local function is_integer(value)
  return type(value) == "cdata"
    and (ffi.istype(int64, value) or ffi.istype(uint64, value))
end

local function digits(value) return (tostring(value):gsub("U?LL$", "")) end

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

local MARKED = {}                       -- by key: what reads its value; below

local encode

local function list(value, n, exact)
  local parts = {}
  for i = 1, n do parts[i] = encode(value[i], exact) end
  return "[" .. table.concat(parts, ",") .. "]"
end

local function is_text(text) return printable.utf8(text) == text end

-- A key as an object has it.
local function name_of(key)
  if type(key) == "number" and key % 1 == 0 and math.abs(key) <= 2 ^ 53 then
    return ("%.0f"):format(key)
  end
  return is_integer(key) and digits(key) or tostring(key)
end

-- The sorted names of a table's keys, and the values by them; nil if an object
-- cannot have them all.
local function members(value)
  local names, by_name, fits = {}, {}, true
  for key, each in pairs(value) do
    local name = name_of(key)
    fits = fits and by_name[name] == nil and is_text(name)
      and not MARKED[name]
    names[#names + 1], by_name[name] = name, each
  end
  table.sort(names)
  return names, by_name, fits
end

local function entries(value)
  local parts = {}
  for key, each in pairs(value) do
    parts[#parts + 1] = ("[%s,%s]"):format(encode(key, true),
                                           encode(each, true))
  end
  table.sort(parts)
  return '{"$entries":[' .. table.concat(parts, ",") .. "]}"
end

local function object(value, exact)
  local names, by_name, fits = members(value)
  if exact and not fits then return entries(value) end
  local parts = {}
  for i, name in ipairs(names) do
    parts[i] = quoted(name) .. ":" .. encode(by_name[name], exact)
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

local function string(value, exact)
  if exact and not is_text(value) then
    return '{"$base64":"' .. base64.encode(value) .. '"}'
  end
  return quoted(value)
end

function encode(value, exact)
  local kind = type(value)
  if kind == "nil" then return "null" end
  if kind == "boolean" then return tostring(value) end
  if kind == "number" then return number(value) end
  if kind == "string" then return string(value, exact) end
  if kind == "table" then
    local n = length(value)
    return n and list(value, n, exact) or object(value, exact)
  end
  return quoted(is_integer(value) and digits(value) or tostring(value))
end

--- The text of a report.
function M.encode(value) return encode(value, false) end

--- The text of a value of others.
function M.exact(value) return encode(value, true) end

-- ---- Reading ---------------------------------------------------------------

-- The value of a text that is no number's; or nil and what the text has to be.
local function int64_of(text)
  local value = 0LL
  local sign, rest = tostring(text):match "^(%-?)(%d+)$"
  for digit in (rest or ""):gmatch "%d" do
    value = value * 10 - tonumber(digit)        -- -2^63 has no positive twin
  end
  if sign == "" then value = -value end
  if rest and digits(value) == (sign .. rest) then return value end
  return nil, "an integer from -2^63 to 2^63 - 1, as a string of digits"
end

local function uint64_of(text)
  local value = 0ULL
  for digit in tostring(text):gmatch "%d" do
    value = value * 10 + tonumber(digit)
  end
  if digits(value) == text then return value end
  return nil, "an integer from 0 to 2^64 - 1, as a string of digits"
end

local function bytes_of(text)
  local bytes = type(text) == "string" and base64.decode(text)
  if bytes then return bytes end
  return nil, "a string of base64"
end

local plain

local function table_of(pairs_of, null)
  local made = {}
  for _, pair in ipairs(type(pairs_of) == "table" and pairs_of or { 0 }) do
    local key
    if type(pair) == "table" then key = plain(pair[1], null) end
    if key == nil or key ~= key then
      return nil, "a list of pairs, of a key and a value"
    end
    made[key] = plain(pair[2], null)
  end
  return made
end

MARKED["$base64"], MARKED["$entries"] = bytes_of, table_of
MARKED["$int64"], MARKED["$uint64"] = int64_of, uint64_of

-- A value that cjson gave, with nil for null. Raises what is wrong with it.
function plain(value, null)
  if value == null then return nil end
  if type(value) ~= "table" then return value end
  local name, of = next(value)
  local marked = next(value, name) == nil and MARKED[name]
  if marked then
    local made, wanted = marked(of, null)
    if made ~= nil then return made end
    error(("%s has to be %s"):format(name, wanted), 0)
  end
  local copy = {}
  for key, each in pairs(value) do copy[key] = plain(each, null) end
  return copy
end

-- The first integer of a text that a double, as which JSON is read, cannot
-- have.
local function changed_integer(text)
  text = text:gsub("\\.", ""):gsub('"[^"]*"', "")
  for each in text:gmatch "[%w.+-]+" do
    local whole = each:match "^%-?0*(%d+)$"
    if whole and ("%.0f"):format(tonumber(whole)) ~= whole then return each end
  end
end

-- The text of an integer that is not changed.
local function unchanged(text)
  for _, name in ipairs { "$int64", "$uint64" } do
    if MARKED[name](text) then return ('{"%s": "%s"}'):format(name, text) end
  end
  return ('"%s", as a string'):format(text)
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
  local changed = changed_integer(text)
  if changed then
    return false, ("%s would be changed: write %s"):format(changed,
                                                           unchanged(changed))
  end
  return pcall(plain, value, cjson.null)
end

return M
