-- SPDX-License-Identifier: Apache-2.0
-- What this process has used: processor time and memory.

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
local function resident()
  local file = io.open "/proc/self/smaps_rollup"
  if not file then return 0 end
  local text = file:read "*a"
  file:close()
  return tonumber(text:match "\nPss:%s*(%d+) kB") * 1024
end

-- Returns cpu in seconds and memory in bytes, after a full collection.
function M.used()
  local time = ffi.new "perigee_bench_cpu"
  ffi.C.perigee_bench_cpu_time(CLOCK_PROCESS_CPUTIME_ID, time)
  local cpu = tonumber(time.sec) + tonumber(time.nsec) * 1e-9
  collectgarbage()
  return { cpu = cpu, memory = resident() }
end

return M
