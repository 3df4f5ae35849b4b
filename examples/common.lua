-- SPDX-License-Identifier: Apache-2.0
-- Shared by the examples: they find Perigee in the source tree around them if
-- it is not installed, and start a second process that ends when the first one
-- ends.
local ffi = require "ffi"

ffi.cdef [[
  int getpid(void);
  int getppid(void);
  int kill(int pid, int signal);
  int prctl(int option, unsigned long value, unsigned long, unsigned long,
            unsigned long);
  int example_clock(int clock, int64_t *time) __asm__("clock_gettime");
]]

-- A reader at the other end of a pipe gets each line when it is printed.
io.stdout:setvbuf "line"

local here = arg[0]:match(".*/") or "./"
if not package.searchpath("perigee.core", package.cpath) then
  package.path = here .. "../lua/?.lua;" .. here .. "../lua/?/init.lua;"
    .. package.path
  package.cpath = here .. "../build/?.so;" .. package.cpath
end

local SIGTERM, PR_SET_PDEATHSIG, CLOCK_MONOTONIC = 15, 1, 1
local time = ffi.new("int64_t[2]")
local M = { here = here }

-- A worker is started with its role and the driver's id, a driver with words of
-- its own.
M.role = tonumber(arg[2]) == ffi.C.getppid() and arg[1] or nil

-- Unique to a run, and the same in its driver and workers.
M.id = M.role and arg[2] or tostring(ffi.C.getpid())
M.scope = "example-" .. M.id

-- The address at which the worker of this run listens.
function M.address(name)
  local folder = os.getenv("TMPDIR") or "/tmp"
  return ("unix:%s/perigee-%s-%s.sock"):format(folder, M.id, name or "0")
end

-- Returns the seconds of a monotonic clock.
function M.now()
  ffi.C.example_clock(CLOCK_MONOTONIC, time)
  return tonumber(time[0]) + tonumber(time[1]) * 1e-9
end

local function quote(word)
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

-- Starts `luajit script role id ...`; returns once that process has called
-- ready().
function M.start(script, role, ...)
  local words = { "exec luajit", quote(script) }
  for _, word in ipairs { role, M.id, ... } do
    words[#words + 1] = quote(tostring(word))
  end
  local pipe = assert(io.popen(table.concat(words, " "), "r"))
  local line = pipe:read("*l")
  local pid = tonumber((line or ""):match("^ready (%d+)$"))
  if not pid then
    pipe:close()
    error(("%s %s did not start: %s"):format(script, role, tostring(line)), 2)
  end
  return { pid = pid, pipe = pipe }
end

-- Asks a started process for an orderly end and waits for it.
function M.stop(process)
  ffi.C.kill(process.pid, SIGTERM)
  process.pipe:close()
end

-- Called in a worker: from then on the worker ends when the driver ends.
function M.follow()
  ffi.C.prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0)
  if ffi.C.getppid() ~= tonumber(M.id) then os.exit(1) end
end

-- Called in a worker: tells the driver that the worker can be called.
function M.ready()
  print("ready " .. ffi.C.getpid())
  io.stdout:flush()
end

-- Runs a worker: calls the function of its role and serves until it is told to
-- stop, which run() turns into an orderly end.
local function work(role)
  local perigee = require "perigee"
  M.follow()
  perigee.run(function()
    role(select(3, unpack(arg)))
    perigee.sleep(math.huge)
  end)
end

-- Runs driver() with one worker process for each role that start names, in
-- this order. roles is a table from role to function, which the worker process
-- runs with the words that follow here.
function M.main(driver, roles, start, ...)
  if M.role then return work(roles[M.role]) end
  local workers, words = {}, { ... }
  local fine, message = xpcall(function()
    for i, role in ipairs(start) do
      workers[i] = M.start(arg[0], role, unpack(words))
    end
    driver(workers)
  end, debug.traceback)
  for i = #workers, 1, -1 do M.stop(workers[i]) end
  if not fine then
    io.stderr:write(message, "\n")
    os.exit(1)
  end
  print("ok")
end

return M
