-- SPDX-License-Identifier: Apache-2.0
-- Captures all packets on the network devices of this host, with their headers,
-- as an eavesdropper on the wire would.
local ffi = require "ffi"
require "spec.net.sockets"

local C = ffi.C
local AF_PACKET, SOCK_RAW, ALL = 17, 3, 0x0300 -- ETH_P_ALL as it is sent
local NONBLOCK, CLOEXEC = 0x800, 0x80000
local SOL_SOCKET, RCVBUFFORCE, MSG_DONTWAIT = 1, 33, 0x40
local ROOM = 2 ^ 17

local Capture = {}
Capture.__index = Capture

local M = {}

-- Returns nil if that is not allowed.
function M.new()
  local fd = C.spec_net_socket(AF_PACKET, SOCK_RAW + NONBLOCK + CLOEXEC, ALL)
  if fd < 0 then return nil, "no packets can be captured here" end
  local size = ffi.new("int[1]", 2 ^ 27)
  C.spec_net_option(fd, SOL_SOCKET, RCVBUFFORCE, size, 4)
  return setmetatable({ fd = fd, packets = {} }, Capture)
end

-- Everything since the last call, as one text.
function Capture:text()
  local buffer, packets = ffi.new("char[?]", ROOM), {}
  while true do
    local n = C.spec_net_recv(self.fd, buffer, ROOM, MSG_DONTWAIT)
    if n <= 0 then break end
    packets[#packets + 1] = ffi.string(buffer, n)
  end
  return table.concat(packets)
end

function Capture:close() C.spec_close(self.fd) end

return M
