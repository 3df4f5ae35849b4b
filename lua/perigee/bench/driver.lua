-- SPDX-License-Identifier: Apache-2.0
-- A bench's own side: its worker, an agent, and sessions to the worker. The
-- names are of this run only, so that benches may run side by side.

local process = require "perigee.bench.process"

local M = {}
local Driver = {}
Driver.__index = Driver

local function make_folder()
  local path = os.tmpname()
  os.remove(path)
  assert(os.execute("mkdir -m 700 '" .. path .. "'") == 0,
         "no folder for sockets")
  return path
end

-- Worker: the path of bench/worker.lua; bytes: of its region for transfers.
function M.start(options, worker, bytes)
  local self = setmetatable({ options = options, idle = {} }, Driver)
  self.folder = make_folder()
  self.scope = "bench-" .. process.pid()
  self.worker = assert(process.spawn {
    "luajit", worker, self.scope, self.folder, ("%d"):format(bytes or 0),
    options.pin[2], process.pid(), options.spin or 0,
  })
  assert(process.pin(0, options.pin[1]))
  if self.worker:line() ~= "ready" then
    error("the bench's worker did not start", 0)
  end
  local perigee = require "perigee"
  self.agent = assert(perigee.agent {
    name = "driver", scope = self.scope, engine = { spin = options.spin },
  })
  self.engine = self.agent.engine
  self.proxy = assert(self.agent:proxy("worker", "bench", { timeout = 60 }))
  return self
end

-- A session of the layer below to one of the worker's sockets.
function Driver:connect(name)
  return assert(self.engine:connect("unix:" .. self.folder .. "/" .. name,
                                    { timeout = 5 }))
end

-- Brings the number of idle sessions beside the agent's own to `count`.
function Driver:set_idle(count)
  while #self.idle < count do
    self.idle[#self.idle + 1] = self:connect "idle.sock"
  end
  while #self.idle > count do table.remove(self.idle):close() end
end

-- What carries the sessions between the two.
function Driver:transport()
  local session = self:connect "idle.sock"
  local name = session:explain().transport
  session:close()
  return name
end

-- Frees the worker, however things went.
function Driver:stop()
  if self.agent then self.agent:close() end
  local status = self.worker:stop()
  os.execute("rm -rf '" .. self.folder .. "'")
  return status == 0 or nil, status
end

return M
