-- SPDX-License-Identifier: Apache-2.0
-- Two hosts: network namespaces with a cable (a veth pair) between them. From
-- start() on this process and its children are on the near host; far() starts a
-- child on the other. finish() moves this process back. A child holds each
-- namespace, which ends with it.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local process = require "spec.support.process"

ffi.cdef [[
  int spec_setns(int fd, int kind) __asm__("setns");
  int spec_open(const char *, int) __asm__("open");
]]

local O_CLOEXEC = 0x80000
local DEVICE = "cable" -- the name of either end

local M = { NEAR = "10.77.7.1", FAR = "10.77.7.2",
            SECRET = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=" }

-- dead_after of these specs, and the time a slow machine may need beyond it.
M.DEAD = math.min(6, (1 + cases.slow) / 2)
M.MORE = math.min(6, 2 * cases.slow)

local function run(command)
  local pipe = io.popen(command .. " 2>&1 || echo failed: $?")
  local text = pipe:read("*a")
  pipe:close()
  if text:find "failed: %d" then return nil, text:match "[^\n]+" end
  return true
end

local function open(path)
  local fd = ffi.C.spec_open(path, O_CLOEXEC)
  assert(fd >= 0, path)
  return fd
end

local function enter(fd)
  assert(ffi.C.spec_setns(fd, 0) == 0)
end

local function hold()
  local child = process.spawn { "unshare", "-n", "sh", "-c",
                                "echo held; read line" }
  local said = child:read(10)
  if said ~= "held" then
    return nil, "no network namespace can be made here (are you root?)"
  end
  return child, open(("/proc/%d/ns/net"):format(child.pid))
end

local function wire(far)
  local function steps(own)
    return run(("ip link set lo up && ip address add %s/24 dev %s && "
      .. "ip link set %s up"):format(own, DEVICE, DEVICE))
  end
  local fine, why = run(("ip link add %s type veth peer name %s netns %d")
    :format(DEVICE, DEVICE, far.pid))
  if fine then fine, why = steps(M.NEAR) end
  enter(M.far_fd)
  if fine then fine, why = steps(M.FAR) end
  enter(M.near_fd)
  return fine, why
end

-- Returns true, or nil and the reason why it is impossible here.
function M.start()
  local near, far
  near, M.near_fd = hold()
  if not near then return nil, M.near_fd end
  far, M.far_fd = hold()
  M.home = open "/proc/self/ns/net"
  enter(M.near_fd)
  return wire(far)
end

function M.finish()
  if M.home then
    enter(M.home)
    for _, fd in ipairs { M.home, M.near_fd, M.far_fd } do
      ffi.C.spec_close(fd)
    end
    M.home = nil
  end
  cases.cleanup()
end

-- Whether there can be two hosts; nil and the reason if not.
function M.possible()
  local fine, why = M.start()
  M.finish()
  return fine, why
end

local function there(f, ...)
  enter(M.far_fd)
  local value, why = f(...)
  enter(M.near_fd)
  return value, why
end

-- As process.start, but on the far host.
function M.far(f, ...) return there(process.start, f, ...) end

-- Puts the cable back in at one end ("near" or "far"), or pulls it out.
function M.cable(up, where)
  local f = where == "far" and there or function(g, ...) return g(...) end
  assert(f(run, ("ip link set %s %s"):format(DEVICE, up and "up" or "down")))
end

-- Sends every packet in both directions through such a netem, "loss 1% delay
-- 10ms"; returns nil and the reason if the kernel has none.
function M.netem(what)
  local command = ("tc qdisc replace dev %s root netem limit 100000 %s")
    :format(DEVICE, what)
  local fine, why = run(command)
  if fine then fine, why = there(run, command) end
  return fine, why
end

return M
