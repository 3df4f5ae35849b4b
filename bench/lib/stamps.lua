-- SPDX-License-Identifier: Apache-2.0
-- The program's time stamps of a call (native/base/stamp.h): bench/anatomy.lua
-- wants them where PERIGEE_ANATOMY names a folder. Anywhere else nothing is
-- stamped, and handlers stay what they are.

local ffi = require "ffi"

local M = { on = os.getenv "PERIGEE_ANATOMY" ~= nil }

ffi.cdef [[
void perigee_stamps_open(void);
void perigee_stamp(int point);
uint64_t perigee_ticks(void);
]]

-- Of native/base/stamp.h; SUBMITTED, when a future is there, is the program's
-- alone.
M.ASKED, M.CALLED, M.PUBLISHED, M.WROTE, M.READ = 1, 2, 3, 4, 5
M.SEEN, M.GIVEN, M.HANDLER, M.HANDLED, M.DONE = 6, 7, 8, 9, 10
M.SUBMITTED = 11

-- Opens the process' file; returns the library that has stamps.
function M.open()
  local C = require "perigee.native".C
  C.perigee_stamps_open()
  return C
end

local function none() end

-- Returns a function that stamps a point.
function M.stamper(point)
  if not M.on then return none end
  local C = M.open()
  return function() C.perigee_stamp(point) end
end

-- Returns the handler, of two arguments and one result, with a stamp before and
-- behind it. (With varargs LuaJIT would interpret the server.)
function M.around(handler)
  if not M.on then return handler end
  local C, HANDLER, HANDLED = M.open(), M.HANDLER, M.HANDLED
  return function(request, reply)
    C.perigee_stamp(HANDLER)
    local result = handler(request, reply)
    C.perigee_stamp(HANDLED)
    return result
  end
end

return M
