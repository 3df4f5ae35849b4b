-- SPDX-License-Identifier: Apache-2.0
--- Bytes as text of base64 (RFC 4648, with padding), by libsodium.
local control = require "perigee.net.native"
local turns = require "perigee.runtime.turn"

local ffi = require "ffi"
local C = control.C
local bytes_t = ffi.typeof "char[?]"

local M = {}

local PIECE = 2 ^ 16                    -- characters; a multiple of four

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

--- Does the same in portions, in a task: waits.
function M.decode_long(text)
  if type(text) ~= "string" then return nil end
  local parts = {}
  for at = 1, #text, PIECE do
    local bytes = M.decode(text:sub(at, at + PIECE - 1))
    -- Padding is at the end alone.
    local whole = bytes and (#bytes == PIECE / 4 * 3 or at + PIECE > #text)
    if not whole then return nil end
    parts[#parts + 1] = bytes
    turns.give()
  end
  return table.concat(parts)
end

return M
