-- SPDX-License-Identifier: Apache-2.0
--- Asks the kernel whether a descriptor is ready, without the loop: for who may
-- not wait there, or has to wait while it stands still.
local ffi = require "ffi"

-- A Lua state accepts the declarations only once.
if not pcall(ffi.sizeof, "struct perigee_ready") then
  ffi.cdef [[
    struct perigee_ready { int fd; short events, revents; };
    int perigee_ready_poll(struct perigee_ready *, unsigned long, int)
      __asm__("poll");
  ]]
end

local C = ffi.C
local asked = ffi.new "struct perigee_ready[1]"

local M = { IN = 1, OUT = 4 }           -- POLLIN, POLLOUT

--- Returns what a descriptor is ready for of `events`, with errors (as revents
-- of poll); 0: nothing. Blocks for so many milliseconds at most.
function M.look(fd, events, milliseconds)
  asked[0].fd, asked[0].events, asked[0].revents = fd, events, 0
  C.perigee_ready_poll(asked, 1, milliseconds)
  return asked[0].revents
end

return M
