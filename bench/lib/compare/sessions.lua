-- SPDX-License-Identifier: Apache-2.0
-- All processes of a session (setsid), which a peer's side may have several of:
-- their processor time, memory, and end.

local ffi = require "ffi"
local folders = require "bench.lib.folders"
local resources = require "bench.lib.resources"

ffi.cdef [[
int perigee_bench_kill(int pid, int signal) __asm__("kill");
]]

local C = ffi.C
local KILL, CONT, STOP = 9, 18, 19

local M = { KILL = KILL, CONT = CONT, STOP = STOP }

local function session_of(pid)
  local file = io.open("/proc/" .. pid .. "/stat")
  if not file then return nil end
  local text = file:read "*a" or ""
  file:close()
  local state, session = text:match "%) (%a) %d+ %d+ (%d+)"
  return state ~= "Z" and tonumber(session)
end

-- Returns the numbers of the session's processes; zombies are none.
function M.members(session)
  local found = {}
  for _, name in ipairs(folders.entries "/proc") do
    local pid = tonumber(name)
    if pid and session_of(pid) == session then found[#found + 1] = pid end
  end
  return found
end

function M.signal(session, number)
  for _, pid in ipairs(M.members(session)) do
    C.perigee_bench_kill(pid, number)
  end
end

-- Returns the seconds of processor time, and the bytes, of the session's
-- processes.
function M.cpu(session)
  local sum = 0
  for _, pid in ipairs(M.members(session)) do
    sum = sum + resources.cpu_of(pid)
  end
  return sum
end

function M.memory(session)
  local sum = 0
  for _, pid in ipairs(M.members(session)) do
    sum = sum + resources.resident(pid)
  end
  return sum
end

return M
