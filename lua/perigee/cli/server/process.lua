-- SPDX-License-Identifier: Apache-2.0
--- Finds a server's process by its two files. --pid names the file that holds
-- the process's number and nothing else, as kill $(cat FILE) wants. FILE.state
-- beside it has a line "PID START URL". START is the time at which the process
-- began, by the kernel's word. So a later process with the same number is not
-- taken for the server.
local ffi = require "ffi"

pcall(ffi.cdef, [[
  int perigee_ctrl_kill(int pid, int signal) __asm__("kill");
  int perigee_ctrl_getpid(void) __asm__("getpid");
]])
local C = ffi.C

local TERM = 15

local M = {}

-- The time at which a process began; nil if there is none, or it is dead
-- already.
local function start_of(pid)
  local file = io.open(("/proc/%d/stat"):format(pid))
  local text = file and file:read "*a" or ""
  if file then file:close() end
  local state, rest = text:match "^.*%) (%a) (.*)$"
  if not state or state == "Z" then return nil end
  local n = 3
  for word in rest:gmatch "%S+" do
    n = n + 1
    if n == 22 then return word end
  end
end

-- Writes a whole file, or leaves the one that there was. True; or nil and why.
local function write(path, text)
  local file, why = io.open(path .. ".new", "w")
  if not file then return nil, why end
  local fine
  fine, why = file:write(text)
  local closed, late = file:close()
  if fine and closed then return os.rename(path .. ".new", path) end
  os.remove(path .. ".new")
  return nil, why or late
end

local function state_of(path) return path .. ".state" end

--- The process that the files tell of, if it runs: { pid, url }.
function M.find(path)
  local file = io.open(state_of(path))
  local line = file and file:read "*l" or ""
  if file then file:close() end
  local pid, start, url = line:match "^(%d+) (%d+) (%S+)$"
  if pid and start_of(tonumber(pid)) == start then
    return { pid = tonumber(pid), start = start, url = url }
  end
end

--- Takes back what tell says, unless another process has said so meanwhile.
function M.forget(path)
  local file = io.open(path)
  local pid = file and file:read "*n"
  if file then file:close() end
  if pid ~= C.perigee_ctrl_getpid() then return end
  os.remove(state_of(path))
  os.remove(path)
end

--- Says in the files that this process serves at url. True; or nil and why, as
-- that another one that runs has said so. A reader who finds the second file
-- finds the first, too.
function M.tell(path, url)
  local pid, other = C.perigee_ctrl_getpid(), M.find(path)
  if other and other.pid ~= pid then
    return nil, ("%s is of process %d, which runs and serves at %s"):format(
      path, other.pid, other.url)
  end
  local state = ("%d %s %s\n"):format(pid, start_of(pid), url)
  local told, why = write(path, ("%d\n"):format(pid))
  if told then told, why = write(state_of(path), state) end
  if not told then M.forget(path) end
  return told, why
end

--- The process with this number, as it is now.
function M.of(pid) return { pid = pid, start = start_of(pid) or "" } end

--- Does it still run?
function M.runs(process)
  return start_of(process.pid) == process.start
end

--- Asks it to end.
function M.stop(process)
  return C.perigee_ctrl_kill(process.pid, TERM) == 0
end

--- Waits until f() is true, for seconds at most; f's last value.
function M.eventually(seconds, f)
  local native = require "perigee.native"
  local limit = native.clock() + seconds * 1e9
  local value = f()
  while not value and native.clock() < limit do
    native.sleep(20e6)
    value = f()
  end
  return value
end

return M
