-- SPDX-License-Identifier: Apache-2.0
--- Characters as %XX, as addresses, queries and keys in other servers have
-- them.
local M = {}

local function escape(char) return ("%%%02X"):format(char:byte()) end
local function plain(digits) return string.char(tonumber(digits, 16)) end

--- A text whose characters of a set (as in patterns, without the brackets) stay
-- as they are, and all others are written as %XX.
function M.encode(text, kept)
  return (text:gsub("[^" .. kept .. "]", escape))
end

--- The set for parts of URLs: what never means anything there.
M.UNRESERVED = "%w_.~-"

--- A text with each %XX replaced by the character that it stands for. A % that
-- is no such thing stays.
function M.decode(text)
  if not text:find("%", 1, true) then return text end
  return (text:gsub("%%(%x%x)", plain))
end

--- Does each % of a text stand before two hexadecimal digits?
function M.is_encoded(text)
  return not text:gsub("%%%x%x", ""):find("%", 1, true)
end

return M
