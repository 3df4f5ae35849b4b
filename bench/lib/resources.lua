-- SPDX-License-Identifier: Apache-2.0
-- What a process has used: processor time and memory.

local ffi = require "ffi"

ffi.cdef [[
typedef struct { long sec, nsec; } perigee_bench_cpu;
int perigee_bench_cpu_time(int clock, perigee_bench_cpu *)
  __asm__("clock_gettime");
]]

local CLOCK_PROCESS_CPUTIME_ID = 2

local M = {}

-- A page that several processes share counts in parts, so that the sum over
-- all processes is what they have together.
local function resident(pid)
  local file = io.open("/proc/" .. pid .. "/smaps_rollup")
  if not file then return 0 end
  local text = file:read "*a" or ""
  file:close()
  return (tonumber(text:match "\nPss:%s*(%d+) kB") or 0) * 1024
end

local time = ffi.new "perigee_bench_cpu"

local function cpu(clock)
  if ffi.C.perigee_bench_cpu_time(clock, time) ~= 0 then return 0 end
  return tonumber(time.sec) + tonumber(time.nsec) * 1e-9
end

M.resident = resident

-- Returns the seconds that all threads of a process have run, 0 if it is not
-- there. The clock's number is made from the process's as in
-- clock_getcpuclockid(3).
function M.cpu_of(pid)
  return cpu(bit.bor(bit.lshift(bit.bnot(pid), 3), CLOCK_PROCESS_CPUTIME_ID))
end

-- Returns cpu in seconds and memory in bytes, after a full collection.
function M.used()
  local spent = cpu(CLOCK_PROCESS_CPUTIME_ID)
  collectgarbage()
  return { cpu = spent, memory = resident "self" }
end

return M
