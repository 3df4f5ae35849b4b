-- SPDX-License-Identifier: Apache-2.0
-- Two hosts with a middlebox between them: three network namespaces, of which
-- the middle one passes packets on until it forgets a connection. From then on
-- it drops every packet of that one, both ways, and says nothing. From start()
-- on this process and its children are on the near host; far() starts a child
-- on the other. finish() moves this process back.
local cases = require "spec.support.cases"
local namespaces = require "spec.net.namespaces"
local process = require "spec.support.process"

local run = namespaces.run

local M = { NEAR = "10.77.9.1", FAR = "10.77.10.1" }

local function there(fd, f, ...)
  return namespaces.within(fd, M.near, f, ...)
end

-- Called on the middlebox.
local function wire(near, far)
  return run(("ip link add near type veth peer name cable netns %d && "
    .. "ip link add far type veth peer name cable netns %d && "
    .. "ip address add 10.77.9.254/24 dev near && ip link set near up && "
    .. "ip address add 10.77.10.254/24 dev far && ip link set far up && "
    .. "echo 1 > /proc/sys/net/ipv4/ip_forward"):format(near.pid, far.pid))
end

-- Called on a host.
local function use(own, gate)
  return run(("ip link set lo up && ip address add %s/24 dev cable && "
    .. "ip link set cable up && ip route add default via %s"):format(own, gate))
end

--- Returns true, or nil and the reason why it is impossible here.
function M.start()
  local near, box, far
  near, M.near = namespaces.hold()
  if not near then return nil, M.near end
  box, M.box = namespaces.hold()
  far, M.far_fd = namespaces.hold()
  assert(box and far)
  M.home = namespaces.here()
  namespaces.enter(M.near)
  local fine, why = there(M.box, wire, near, far)
  if fine then fine, why = use(M.NEAR, "10.77.9.254") end
  if fine then fine, why = there(M.far_fd, use, M.FAR, "10.77.10.254") end
  return fine, why
end

function M.finish()
  namespaces.leave(M.home, M.near, M.box, M.far_fd)
  M.home = nil
  cases.cleanup()
end

--- True if there can be these hosts; nil and the reason if not.
function M.possible()
  local fine, why = M.start()
  if fine then
    fine, why = there(M.box, run,
                      "ip rule add pref 9 ipproto tcp sport 1 type blackhole")
  end
  M.finish()
  return fine, why
end

--- As process.start, but on the far host.
function M.far(f, ...) return there(M.far_fd, process.start, f, ...) end

local KEEPALIVE = "02" -- the timer of a socket that is idle

--- The near host's ports of its connections to a port of the far one, as it is
-- idle: those without keepalives, as a session's own, and those with.
function M.ports(port)
  local plain, kept = {}, {}
  local wanted = (":%04X$"):format(port)
  for line in io.lines "/proc/net/tcp" do
    local near, far, state, timer = line:match(
      "^%s*%d+: %x+:(%x+) (%x+:%x+) (%x+) %S+ (%x+):")
    if near and state == "01" and far:find(wanted) then
      local list = timer == KEEPALIVE and kept or plain
      list[#list + 1] = tonumber(near, 16)
    end
  end
  return plain, kept
end

--- The middlebox forgets the connection that has this port on the near host.
function M.forget(port)
  for _, side in ipairs { "sport", "dport" } do
    assert(there(M.box, run,
      ("ip rule add pref 9 ipproto tcp %s %d type blackhole"):format(side,
                                                                     port)))
  end
end

return M
