-- SPDX-License-Identifier: Apache-2.0
-- A crowd of connections that say nothing, to a control server on a host
-- without SYN cookies: the kernel has no answer for newcomers there once its
-- queue of half-open connections is full.
local asking = require "spec.support.asking"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local namespaces = require "spec.net.namespaces"
local sockets = require "spec.net.sockets"

local CROWD = 400

describe("a control server on a host without SYN cookies", function()
  local home, there, fds

  -- Moves this process to such a host. Returns nil and the reason why there can
  -- be none.
  local function move()
    if not control.is_there() then
      return nil, control.needs .. " is missing"
    end
    local child, fd = namespaces.hold()
    if not child then return nil, fd end
    home, there, fds = namespaces.here(), fd, {}
    namespaces.enter(there)
    return namespaces.run("ip link set lo up && cd /proc/sys/net/ipv4 && "
      .. "echo 0 >tcp_syncookies && echo 128 >tcp_max_syn_backlog")
  end

  after_each(function()
    for _, fd in ipairs(fds or {}) do sockets.close(fd) end
    namespaces.leave(home, there)
    home, fds = nil, nil
    asking.finish()
  end)

  local function descriptors(server)
    local list = io.popen(("ls /proc/%d/fd"):format(server.process.pid))
    local _, n = list:read "*a":gsub("%d+", "")
    list:close()
    return n
  end

  it("takes a crowd that says nothing, and others beside it", function()
    local possible, why = move()
    if not possible then pending(why) end
    local server = asking.begin()
    local address = "tcp://127.0.0.1:" .. server.port
    local before = descriptors(server)
    for i = 1, CROWD do fds[i] = sockets.dial(address, true) end
    -- None of them is left in the kernel's queue.
    cases.await(function()
      return descriptors(server) - before > CROWD * 3 / 4
    end)
    assert.equal(200, (asking.ask("GET", "/healthz")))
  end)
end)
