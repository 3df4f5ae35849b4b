-- SPDX-License-Identifier: Apache-2.0
-- The socket of a service manager, as systemd has one for its services.
local cases = require "spec.support.cases"
local ffi = require "ffi"
require "spec.net.sockets"              -- bind, recv

local M = {}

local AF_UNIX, SOCK_DGRAM = 1, 2

--- A manager's socket at a path ("\0NAME": in no folder), to be closed.
function M.open(path)
  local fd = ffi.C.spec_net_socket(AF_UNIX, SOCK_DGRAM, 0)
  local address = ffi.new "uint8_t[112]"
  address[0] = AF_UNIX
  ffi.copy(address + 2, path, #path)
  assert(ffi.C.spec_net_bind(fd, address, 2 + #path) == 0)
  return fd
end

--- The next word that it hears; nil if there is none for 20 s.
function M.hear(fd)
  local entry, text = ffi.new("struct spec_poll", fd, 1, 0),
                      ffi.new "char[4096]"
  if ffi.C.spec_poll(entry, 1, 20000 * cases.slow) == 0 then return nil end
  return ffi.string(text, ffi.C.spec_net_recv(fd, text, 4096, 0))
end

function M.close(fd) ffi.C.spec_close(fd) end

return M
