-- SPDX-License-Identifier: Apache-2.0
-- Several hosts: network namespaces, each with a cable (a veth pair) to a
-- switch (a bridge). From start(n) on this process and its children are on host
-- 1; on(i) starts a child on host i. Host i has the address 10.77.8.i.
-- finish() moves this process back.
--
-- The hosts know each other's hardware addresses, so that who dials one whose
-- cable is cut hears nothing, as from one that is far, and no "unreachable".
local cases = require "spec.support.cases"
local namespaces = require "spec.net.namespaces"
local process = require "spec.support.process"

local run = namespaces.run

local M = { hosts = {} }

--- The address of a host.
function M.address(i) return "10.77.8." .. i end

local function hardware(i) return ("02:00:00:00:08:%02x"):format(i) end

-- Called on the switch.
local function add_cable(i, pid)
  return run(("ip link add port%d type veth peer name cable address %s netns "
    .. "%d && ip link set port%d master bridge && ip link set port%d up")
    :format(i, hardware(i), pid, i, i))
end

-- Called on the host.
local function use_cable(i, n)
  local fine, why = run(("ip link set lo up && ip address add %s/24 dev cable "
    .. "&& ip link set cable up"):format(M.address(i)))
  for other = 1, n do
    if fine and other ~= i then
      fine, why = run(("ip neighbour add %s lladdr %s dev cable nud permanent")
        :format(M.address(other), hardware(other)))
    end
  end
  return fine, why
end

local function there(fd, f, ...)
  return namespaces.within(fd, M.hosts[1] or M.home, f, ...)
end

-- Adds host i of n.
local function add(i, n)
  local child, fd = namespaces.hold()
  if not child then return nil, fd end
  M.hosts[i] = fd
  local fine, why = there(M.switch, add_cable, i, child.pid)
  if fine then fine, why = there(fd, use_cable, i, n) end
  return fine, why
end

--- Returns true, or nil and the reason why it is impossible here.
function M.start(n)
  local child
  child, M.switch = namespaces.hold()
  if not child then return nil, M.switch end
  M.home = namespaces.here()
  local fine, why = there(M.switch, run,
    "ip link add bridge type bridge && ip link set bridge up")
  for i = 1, n do
    if fine then fine, why = add(i, n) end
  end
  return fine, why
end

function M.finish()
  namespaces.leave(M.home, M.switch, unpack(M.hosts))
  M.home, M.hosts = nil, {}
  cases.cleanup()
end

--- True if there can be so many hosts; nil and the reason if not.
function M.possible(n)
  local fine, why = M.start(n)
  M.finish()
  return fine, why
end

--- As process.start, but on host i.
function M.on(i, f, ...) return there(M.hosts[i], process.start, f, ...) end

--- Connects host i with the others again, or cuts its cable.
function M.plug(i, up)
  assert(there(M.switch, run, ("ip link set port%d %s"):format(i,
    up and "up" or "down")))
end

return M
