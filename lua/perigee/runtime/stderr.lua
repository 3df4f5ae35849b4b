-- SPDX-License-Identifier: Apache-2.0
--- Writes to stderr without waiting for whoever reads it: what a full pipe, a
-- full disk or a stopped terminal does not take is lost. A pipe has room for
-- PIECE bytes if it has any, so no write of as many blocks, unless another
-- process fills it at the same moment.
--
-- If this process has begun without a stderr, its descriptor is that of some
-- file or socket which was opened later, so nothing is written there.
local ready = require "perigee.runtime.ready"

local ffi = require "ffi"

-- A Lua state accepts the declarations only once.
if not pcall(function() return ffi.C.perigee_stderr_fcntl end) then
  ffi.cdef [[
    int perigee_stderr_fcntl(int, int, ...) __asm__("fcntl");
    int perigee_stderr_fileno(void *) __asm__("fileno");
    long perigee_stderr_write(int, const void *, size_t) __asm__("write");
  ]]
end

local C = ffi.C
local STDERR, F_GETFD, PIECE = 2, 1, 4096

local M = {}

local open = C.perigee_stderr_fcntl(STDERR, F_GETFD) >= 0
local cut = false                       -- the last line lacks its end

-- A pipe that nobody will ever read has an error, too, and raises SIGPIPE.
local function takes()
  return open and ready.look(STDERR, ready.OUT, 0) == ready.OUT
end

-- A program may have put something else in the place of io.stderr.
local function is_other(file)
  return io.type(file) ~= "file" or C.perigee_stderr_fileno(file) ~= STDERR
end

--- Writes a text that ends in a newline. Returns false if not all of it was
-- taken.
function M.write(text)
  if is_other(io.stderr) then
    io.stderr:write(text)
    return true
  end
  if cut then text = "\n" .. text end
  local bytes, at = ffi.cast("const char *", text), 0
  while at < #text do
    local n = takes() and tonumber(C.perigee_stderr_write(STDERR, bytes + at,
                                     math.min(#text - at, PIECE)))
    if not n or n <= 0 then
      cut = cut or at > 0
      return false
    end
    at = at + n
  end
  cut = false
  return true
end

return M
