-- SPDX-License-Identifier: Apache-2.0
--- Texts of others on a terminal: what would move its cursor, colour it, turn
-- the direction of what follows or break a line is written as an escape.
local M = {}

local NAMES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(byte)
  return NAMES[byte] or ("\\x%02x"):format(byte:byte())
end

-- The bytes of the UTF-8 character at i, if there is one; else nil.
local function character(text, i)
  local found = text:match("^[\194-\223][\128-\191]", i)
    or text:match("^[\224-\239][\128-\191][\128-\191]", i)
    or text:match("^[\240-\244][\128-\191][\128-\191][\128-\191]", i)
  if found and not found:find "^\224[\128-\159]"
    and not found:find "^\237[\160-\191]"
    and not found:find "^\240[\128-\143]"
    and not found:find "^\244[\144-\191]" then
    return found
  end
end

-- The text with each byte beyond ASCII that is of no UTF-8 character replaced.
local function replace_others(text, by)
  if not text:find "[\128-\255]" then return text end
  local parts, i = {}, 1
  while i <= #text do
    local found = character(text, i)
    local byte = text:sub(i, i)
    parts[#parts + 1] = found or byte < "\128" and byte or by(byte)
    i = i + (found and #found or 1)
  end
  return table.concat(parts)
end

local function escape_all(bytes) return (bytes:gsub(".", escape)) end

-- Beyond ASCII: control characters (U+0080 to U+009F), those that end a line
-- or a paragraph (U+2028, U+2029), and those that change the direction of text
-- (U+202A to U+202E, U+2066 to U+2069).
local HIGH = { "\194[\128-\159]", "\226\128[\168-\174]",
               "\226\129[\166-\169]" }

local function escape_high(text)
  if not text:find "[\128-\255]" then return text end
  text = replace_others(text, escape)
  for _, pattern in ipairs(HIGH) do text = text:gsub(pattern, escape_all) end
  return text
end

--- A text on one line.
function M.line(text)
  return escape_high((tostring(text):gsub("[%z\1-\31\127]", escape)))
end

--- A text that may have several lines, and tabs.
function M.lines(text)
  return escape_high((tostring(text):gsub("[%z\1-\8\11-\31\127]", escape)))
end

--- A text with each byte that is no UTF-8 replaced, for JSON.
function M.utf8(text)
  return replace_others(text, function() return "\239\191\189" end)
end

return M
