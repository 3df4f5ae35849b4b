-- SPDX-License-Identifier: Apache-2.0
-- The two cores of a comparison: a lock on each, so that two comparisons never
-- share one, and what others do on them.

local ffi = require "ffi"

ffi.cdef [[
typedef struct { unsigned short family; char name[108]; } perigee_bench_place;
int perigee_bench_socket(int, int, int) __asm__("socket");
int perigee_bench_bind(int, const perigee_bench_place *, unsigned)
  __asm__("bind");
]]

local C = ffi.C
local AF_UNIX, SOCK_DGRAM, SOCK_CLOEXEC = 1, 2, 0x80000
local TICKS = 100 -- of /proc/stat in a second

local M = {}

-- The lock is a socket bound to an abstract name, which goes with the process
-- that holds it, however that ends. Specs have names of their own.
local function lock(core)
  local name = ("\0perigee-compare%s-core-%d")
               :format(os.getenv "PERIGEE_COMPARE_LOCKS" or "", core)
  local place = ffi.new "perigee_bench_place"
  place.family = AF_UNIX
  ffi.copy(place.name, name, #name)
  local fd = C.perigee_bench_socket(AF_UNIX, SOCK_DGRAM + SOCK_CLOEXEC, 0)
  return fd >= 0 and C.perigee_bench_bind(fd, place, 2 + #name) == 0
end

-- Takes the cores for this process; nil and why not.
function M.take(pin)
  for i = 1, pin[1] == pin[2] and 1 or 2 do
    if not lock(pin[i]) then
      return nil, ("another comparison measures on core %d; wait for it, or \z
                    choose cores by --pin"):format(pin[i])
    end
  end
  return true
end

-- Returns the seconds that the cores have been busy, with whatever, as
-- /proc/stat counts them: all but idling and waiting for disks.
function M.busy(pin)
  local file = io.open "/proc/stat"
  local text = file and file:read "*a" or ""
  if file then file:close() end
  local sum = 0
  for i = 1, pin[1] == pin[2] and 1 or 2 do
    local line = text:match(("\ncpu%d ([^\n]+)"):format(pin[i])) or ""
    local at = 0
    for ticks in line:gmatch "%d+" do
      at = at + 1
      if at <= 8 and at ~= 4 and at ~= 5 then sum = sum + ticks / TICKS end
    end
  end
  return sum
end

return M
