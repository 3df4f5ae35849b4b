-- SPDX-License-Identifier: Apache-2.0
-- All processes of a session (setsid), which a peer's side may have several of:
-- their processor time, memory, and end.

local ffi = require "ffi"
local resources = require "perigee.bench.resources"

ffi.cdef [[
typedef struct { uint64_t inode; int64_t offset; unsigned short length;
                 unsigned char type; char name[256]; } perigee_bench_entry;
void *perigee_bench_opendir(const char *) __asm__("opendir");
perigee_bench_entry *perigee_bench_readdir(void *) __asm__("readdir");
int perigee_bench_closedir(void *) __asm__("closedir");
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
  local found, folder = {}, C.perigee_bench_opendir "/proc"
  if folder == nil then return found end
  while true do
    local entry = C.perigee_bench_readdir(folder)
    if entry == nil then break end
    local pid = tonumber(ffi.string(entry.name))
    if pid and session_of(pid) == session then found[#found + 1] = pid end
  end
  C.perigee_bench_closedir(folder)
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
