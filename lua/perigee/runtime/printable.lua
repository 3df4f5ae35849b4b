-- SPDX-License-Identifier: Apache-2.0
--- Texts of others on a terminal: what would move its cursor, colour it, turn
-- the direction of what follows or break a line is written as an escape.
local M = {}

local byte, find, sub = string.byte, string.find, string.sub

-- For each byte its two digits, and its escape if it is not to be shown.
local DIGITS, ESCAPES, MARKS = {}, {}, {}
for i = 0, 255 do
  local each = string.char(i)
  DIGITS[each] = ("%02x"):format(i)
  ESCAPES[each] = "\\x" .. DIGITS[each]
  MARKS[each] = "\239\191\189"                 -- U+FFFD
end
ESCAPES["\n"], ESCAPES["\r"], ESCAPES["\t"] = "\\n", "\\r", "\\t"

-- ---- UTF-8 -----------------------------------------------------------------

-- The second byte of a character is from 128 to 191. It is bounded further
-- after these first bytes, so that each character has one form, is no half of
-- another code's pair, and is one that Unicode has.
local LEAST, MOST = { [224] = 160, [240] = 144 }, { [237] = 159, [244] = 143 }

-- The number of bytes of the character that begins at i of a text, or 0 if none
-- does.
local function length_at(text, i)
  local first, second, third, fourth = byte(text, i, i + 3)
  if first < 128 then return 1 end
  if first < 194 or first > 244 or not second
    or second < (LEAST[first] or 128) or second > (MOST[first] or 191) then
    return 0
  end
  if first < 224 then return 2 end
  if not third or third < 128 or third > 191 then return 0 end
  if first < 240 then return 3 end
  return fourth and fourth >= 128 and fourth <= 191 and 4 or 0
end

-- The end of the run from i on of characters, or of bytes that are of none.
local function run_end(text, i, good)
  local size = #text
  while i <= size do
    local length = length_at(text, i)
    if (length > 0) ~= good then break end
    i = i + (good and length or 1)
  end
  return i
end

-- The text with each byte beyond ASCII that is of no UTF-8 character replaced.
local function replace_others(text, by)
  if not find(text, "[\128-\255]") then return text end
  local parts, n, i, good = {}, 0, 1, true
  while i <= #text do
    local ends = run_end(text, i, good)
    local run = sub(text, i, ends - 1)
    n, i = n + 1, ends
    parts[n] = good and run or run:gsub(".", by)
    good = not good
  end
  return table.concat(parts)
end

-- ---- Characters beyond ASCII -----------------------------------------------

local function escape_all(bytes) return (bytes:gsub(".", ESCAPES)) end

-- Control characters (U+0080 to U+009F), those that end a line or a paragraph
-- (U+2028, U+2029), and those that change the direction of text (U+202A to
-- U+202E, U+2066 to U+2069): how each is found, and what stands for it.
local HIGH = {}

local function add_high(lead, from, to)
  local escapes = {}
  for i = from, to do
    local found = lead .. string.char(i)
    escapes[found] = escape_all(found)
  end
  HIGH[#HIGH + 1] = {
    pattern = ("%s[%s-%s]"):format(lead, string.char(from), string.char(to)),
    escapes = escapes }
end

add_high("\194", 128, 159)
add_high("\226\128", 168, 174)
add_high("\226\129", 166, 169)

local function escape_high(text)
  if not find(text, "[\128-\255]") then return text end
  text = replace_others(text, ESCAPES)
  for _, each in ipairs(HIGH) do
    text = text:gsub(each.pattern, each.escapes)
  end
  return text
end

--- A text on one line.
function M.line(text)
  return escape_high((tostring(text):gsub("[%z\1-\31\127]", ESCAPES)))
end

--- A text that may have several lines, and tabs.
function M.lines(text)
  return escape_high((tostring(text):gsub("[%z\1-\8\11-\31\127]", ESCAPES)))
end

--- A text with each byte that is no UTF-8 replaced, for JSON.
function M.utf8(text)
  return replace_others(text, MARKS)
end

--- Bytes in hexadecimal.
function M.hex(bytes) return (bytes:gsub(".", DIGITS)) end

return M
