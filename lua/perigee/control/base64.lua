-- SPDX-License-Identifier: Apache-2.0
--- Bytes as text of base64 (RFC 4648, with padding), by libsodium.
local control = require "perigee.control.native"

local ffi = require "ffi"
local C = control.C
local bytes_t = ffi.typeof "char[?]"

local M = {}

function M.encode(text)
  local capacity = math.floor(#text / 3) * 4 + 8
  local into = bytes_t(capacity)
  return ffi.string(into, C.perigee_base64(into, capacity, text, #text))
end

--- The bytes; nil if text is not valid.
function M.decode(text)
  if type(text) ~= "string" then return nil end
  local capacity = #text + 1
  local into = bytes_t(capacity)
  local length = C.perigee_from_base64(into, capacity, text, #text)
  return length >= 0 and ffi.string(into, length) or nil
end

return M
