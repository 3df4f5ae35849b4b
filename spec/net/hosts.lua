-- SPDX-License-Identifier: Apache-2.0
-- Two hosts: network namespaces with a cable (a veth pair) between them. From
-- start() on this process and its children are on the near host; far() starts a
-- child on the other. finish() moves this process back.
local cases = require "spec.support.cases"
local namespaces = require "spec.net.namespaces"
local process = require "spec.support.process"

local enter, hold, run = namespaces.enter, namespaces.hold, namespaces.run

local DEVICE = "cable" -- the name of either end

local M = { NEAR = "10.77.7.1", FAR = "10.77.7.2",
            SECRET = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=" }

-- dead_after of these specs, and the time a slow machine may need beyond it.
M.DEAD = math.min(6, (1 + cases.slow) / 2)
M.MORE = math.min(6, 2 * cases.slow)

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
  M.home = namespaces.here()
  enter(M.near_fd)
  return wire(far)
end

function M.finish()
  namespaces.leave(M.home, M.near_fd, M.far_fd)
  M.home = nil
  cases.cleanup()
end

-- True if there can be two hosts; nil and the reason if not.
function M.possible()
  local fine, why = M.start()
  M.finish()
  return fine, why
end

local function there(f, ...)
  return namespaces.within(M.far_fd, M.near_fd, f, ...)
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
