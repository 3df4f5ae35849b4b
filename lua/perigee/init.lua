-- SPDX-License-Identifier: Apache-2.0
--- Perigee: remote memory and calls between processes, as close as the hardware
-- between them allows. This module is all that scripts require; README.md
-- beside it says what is behind it.
--
--   perigee.serve, perigee.agent        services and calls
--   perigee.engine                      the layer below: memory, sessions
--   perigee.run, spawn, sleep, stop     tasks (task.lua)
--   perigee.wait_all, wait_any          several futures; as_completed: a loop
--   perigee.context                     in a handler: the call that it serves
--   perigee.session                     by which a proxy's calls go
--   perigee.is_error                    tells an error from a value
--   perigee.log                         function (level, message); replace it
--   perigee.devices                     RDMA devices and their ports
--   perigee.RnrMonitor                  their counters of receiver-not-ready
--   perigee.units                       sizes and times as people write them
if not jit then
  error(("Perigee is for LuaJIT 2.1, and this is %s: run the script with "
    .. "luajit"):format(_VERSION), 0)
end

local agents = require "perigee.agent"
local contexts = require "perigee.context"
local engines = require "perigee.engine"
local errors = require "perigee.errors"
local log = require "perigee.log"
local tasks = require "perigee.task"
require "perigee.transfer"
require "perigee.transfer.prepared"

local M = {
  agent = function(options)
    local agent, err = agents.new(options, 3)
    return agent, err
  end,
  serve = require "perigee.serve",
  engine = engines.new,
  run = tasks.run,
  stop = tasks.stop,
  spawn = tasks.spawn,
  sleep = tasks.sleep,
  wait_all = tasks.wait_all,
  wait_any = tasks.wait_any,
  as_completed = tasks.as_completed,
  context = contexts.current,
  is_error = errors.is_error,
  session = require "perigee.proxy".session,
  log = log.default,
  units = require "perigee.units",
  devices = require "perigee.devices".list,
  RnrMonitor = require "perigee.rnr_monitor".new,
}

log.target = M

return M
