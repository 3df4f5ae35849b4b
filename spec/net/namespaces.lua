-- SPDX-License-Identifier: Apache-2.0
-- Network namespaces for specs about several hosts. A child holds each, which
-- ends with it.
local ffi = require "ffi"
local process = require "spec.support.process"

ffi.cdef [[
  int spec_setns(int fd, int kind) __asm__("setns");
  int spec_open(const char *, int) __asm__("open");
]]

local O_CLOEXEC = 0x80000

local M = {}

local function open(path)
  local fd = ffi.C.spec_open(path, O_CLOEXEC)
  assert(fd >= 0, path)
  return fd
end

--- Runs a shell's command. Returns true; or nil and what it said first.
function M.run(command)
  local pipe = io.popen(command .. " 2>&1 || echo failed: $?")
  local text = pipe:read("*a")
  pipe:close()
  if text:find "failed: %d" then return nil, text:match "[^\n]+" end
  return true
end

--- The namespace of this process: a descriptor, to be closed.
function M.here() return open "/proc/self/ns/net" end

--- Moves this process into a namespace.
function M.enter(fd)
  assert(ffi.C.spec_setns(fd, 0) == 0)
end

--- A new namespace: the child that holds it, and a descriptor, to be closed; or
-- nil and the reason why there can be none.
function M.hold()
  local child = process.spawn { "unshare", "-n", "sh", "-c",
                                "echo held; read line" }
  local said = child:read(10 * process.slow)
  if said ~= "held" then
    return nil, "no network namespace can be made here (are you root?)"
  end
  return child, open(("/proc/%d/ns/net"):format(child.pid))
end

function M.close(fd) ffi.C.spec_close(fd) end

--- Moves this process back home, if it ever left, and closes all these; the
-- first is home, or nil.
function M.leave(home, ...)
  if not home then return end
  M.enter(home)
  for _, fd in ipairs { home, ... } do M.close(fd) end
end

--- Returns what f(...) returns (two values), called in the namespace there by
-- who is in the namespace here.
function M.within(there, here, f, ...)
  M.enter(there)
  local value, why = f(...)
  M.enter(here)
  return value, why
end

return M
