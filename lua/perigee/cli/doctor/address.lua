-- SPDX-License-Identifier: Apache-2.0
--- Addresses to listen at, as --listen takes them.
local ffi = require "ffi"

ffi.cdef [[
  int perigee_cli_inet_pton(int, const char *, void *) __asm__("inet_pton");
]]

local AF = { [4] = 2, [6] = 10 }
local LENGTH = { [4] = 4, [6] = 16 }

local M = {}

-- Returns the bytes of an address of that family in network order; nil if it
-- is not valid.
local function bytes_of(family, host)
  local bytes = ffi.new "uint8_t[16]"
  if ffi.C.perigee_cli_inet_pton(AF[family], host, bytes) == 1 then
    return ffi.string(bytes, LENGTH[family])
  end
end

-- Parses "0.0.0.0:7471", "[::]:7471" or "host:7471".
local function tcp(rest)
  local address = { kind = "tcp" }
  local host, port = rest:match "^%[([^%]]+)%]:(%d+)$"
  if host then
    address.family, address.bytes = 6, bytes_of(6, host)
    if not address.bytes then return nil end
  else
    host, port = rest:match "^([%w._-]+):(%d+)$"
    if not host then return nil end
    address.bytes = bytes_of(4, host == "localhost" and "127.0.0.1" or host)
    address.family = address.bytes and 4
    if not address.bytes and host:match "^[%d.]+$" then return nil end
  end
  address.host, address.port = host, tonumber(port)
  return address.port <= 65535 and address or nil
end

--- Parses "unix:PATH" or "tcp://HOST:PORT" into a table: text, kind ("unix",
-- "tcp"), and path, or host, port, family (4, 6; nil for a name other than
-- localhost) and bytes. Returns nil and a message for any other text.
function M.parse(text)
  local path, rest = text:match "^unix:(.+)$", text:match "^tcp://(.+)$"
  local address = path and { kind = "unix", path = path } or rest and tcp(rest)
  if not address then
    return nil, ("'%s' is no address; write unix:PATH or tcp://HOST:PORT, with "
      .. "an IPv6 address in brackets"):format(text)
  end
  address.text = text
  return address
end

--- Returns whether only this host can reach the address.
function M.is_local(address)
  return address.kind == "unix"
    or address.family == 4 and address.bytes:byte(1) == 127
    or address.family == 6 and address.bytes == ("\0"):rep(15) .. "\1"
end

--- Returns whether the address means every interface.
function M.is_any(address)
  return address.bytes ~= nil and not address.bytes:find "[^%z]"
end

--- Returns the bytes as /proc/net/tcp and tcp6 print them: as words of this
-- machine.
function M.words(address)
  local words = ffi.cast("const uint32_t *", address.bytes)
  local text = {}
  for i = 0, #address.bytes / 4 - 1 do
    text[i + 1] = bit.tohex(words[i], -8)
  end
  return table.concat(text)
end

return M
