-- SPDX-License-Identifier: Apache-2.0
--- Bytes as text of base64 (RFC 4648, with padding). For commands, which work
-- without perigee/control.so, whose own is faster (net/base64.lua).
local M = {}

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
  .. "0123456789+/"

local letter, value = {}, {}
for i = 0, 63 do
  local each = ALPHABET:sub(i + 1, i + 1)
  letter[i], value[each] = each, i
end

local function four(three)
  local a, b, c = three:byte(1, 3)
  local bits = a * 65536 + (b or 0) * 256 + (c or 0)
  return letter[bit.rshift(bits, 18)]
    .. letter[bit.band(bit.rshift(bits, 12), 63)]
    .. (b and letter[bit.band(bit.rshift(bits, 6), 63)] or "=")
    .. (c and letter[bit.band(bits, 63)] or "=")
end

function M.encode(bytes)
  return (bytes:gsub("..?.?", four))
end

local function three(text)
  local bits, n = 0, 0
  for each in text:gmatch "[^=]" do bits, n = bits * 64 + value[each], n + 1 end
  bits = bits * 64 ^ (4 - n)
  return string.char(bit.rshift(bits, 16), bit.band(bit.rshift(bits, 8), 255),
                     bit.band(bits, 255)):sub(1, n - 1)
end

--- The bytes; nil if text is not valid.
function M.decode(text)
  local body, padding = text:match "^([%w+/]*)(=?=?)$"
  if not body or (#body + #padding) % 4 ~= 0 then return nil end
  local bytes = text:gsub("....", three)
  return M.encode(bytes) == text and bytes or nil
end

return M
