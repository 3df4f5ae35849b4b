-- SPDX-License-Identifier: Apache-2.0
-- Replaces os.execute and io.popen on hosts without /bin/sh, where a bundle
-- runs its specs all the same: by the bundle's own shell, which has commands
-- within it.
local ffi = require "ffi"

ffi.cdef [[
  int bundle_fork(void) __asm__("fork");
  int bundle_waitpid(int, int *, int) __asm__("waitpid");
  int bundle_execv(const char *, const char **) __asm__("execv");
  int bundle_open(const char *, int) __asm__("open");
  int bundle_mkfifo(const char *, int) __asm__("mkfifo");
  int bundle_dup2(int, int) __asm__("dup2");
  void bundle_exit(int) __asm__("_exit");
]]
local C = ffi.C
local READ, WRITE, PRIVATE = 0, 1, 384  -- 0600

local root = os.getenv("LUA_INIT"):match "^@(.*)/spec/bundle/shell.lua$"
local shell = root .. "/lib/run/busybox"

-- Starts a command. Its descriptor `number` is a file, if one is named. Returns
-- the process.
local function start(command, file, number)
  local words = ffi.new("const char *[5]", shell, "sh", "-c", command)
  local pid = C.bundle_fork()
  if pid ~= 0 then return pid end
  if file then C.bundle_dup2(C.bundle_open(file, number), number) end
  C.bundle_execv(shell, words)
  C.bundle_exit(127)
end

local function wait(pid)
  local status = ffi.new "int[1]"
  C.bundle_waitpid(pid, status, 0)
  return status[0]
end

function os.execute(command) -- luacheck: ignore 122
  return command == nil and 1 or wait(start(command))
end

-- Closing a file of popen waits for the command's end.
local methods = getmetatable(io.stdout).__index
local close, running = methods.close, setmetatable({}, { __mode = "k" })

function methods.close(file)
  local pid = running[file]
  running[file] = nil
  local fine, why = close(file)
  if pid then wait(pid) end
  return fine, why
end

function io.popen(command, mode) -- luacheck: ignore 122
  local name = os.tmpname()
  os.remove(name)
  assert(C.bundle_mkfifo(name, PRIVATE) == 0)
  -- The child reads what is written here, and the reverse. Opening waits for
  -- the other side.
  local pid = start(command, name, mode == "w" and READ or WRITE)
  local file = io.open(name, mode or "r")
  os.remove(name)
  running[file] = pid
  return file
end
