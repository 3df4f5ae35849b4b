-- SPDX-License-Identifier: Apache-2.0
-- A bench's own side: its worker, an agent, and sessions to the worker. The
-- names are unique to this run, so benches may run side by side. A worker that
-- was started separately is found by its address, serves everything there, and
-- is left running.

local engine_options = require "bench.lib.options".engine
local folders = require "bench.lib.folders"
local kinds = require "bench.lib.kinds"
local process = require "bench.lib.process"

local LONG = { timeout = 60 }
-- Handlers that copy for milliseconds should find the other side awake.
local SPIN = 0.02
-- Both sides are silent while a burst of the floor runs, and must not count as
-- dead.
local PATIENCE = 600
-- These modes keep Perigee's own dead_after.
local MORTALS = { idle = true, cut = true, restart = true }
-- These modes keep Perigee's own time of polling before a side sleeps.
local SLEEPERS = { connect = true, sleeping = true, idle = true, memory = true,
                   cut = true, restart = true }

local M = {}
local Driver = {}
Driver.__index = Driver

-- The sockets that the worker listens at, in the folder of the run.
M.SOCKETS = { "transfer.sock", "idle.sock" }

local function pin(options)
  for i = 2, 1, -1 do
    local fine, message = process.pin(0, options.pin[i])
    if not fine then error(message, 0) end
  end
end

local function command_of(self, worker, bytes)
  local options = self.options
  local command = options.netns and { "nsenter", "--net=" .. options.netns }
                  or {}
  local function add(...)
    for _, word in ipairs { ... } do command[#command + 1] = word end
  end
  add(unpack(process.interpreter()))
  add(worker, "--scope", self.scope, "--folder", self.folder, "--bytes",
      ("%d"):format(bytes or 0), "--window", options.window or 1, "--core",
      options.pin[2], "--parent", process.pid(), "--spin",
      options.spin or "own",
      "--rdma", options.worker_rdma or "", "--kind", kinds.of(options)[2],
      "--every", kinds.mirrored(options) and kinds.EVERY or 1)
  if options.at then add("--listen", options.at) end
  if options.no_inbox then add "--no-inbox" end
  if options.streams then add("--streams", options.streams) end
  if options.dead_after then add("--dead-after", options.dead_after) end
  if options.encrypt then
    add(options.encrypt == "auth" and "--auth" or "--encrypt")
  end
  return command
end

-- Starts the worker, again if it had ended, and does not wait for it.
function Driver:launch()
  for _, name in ipairs(M.SOCKETS) do os.remove(self.folder .. "/" .. name) end
  self.worker = assert(process.spawn(
    command_of(self, self.path, self.bytes)))
end

-- Waits until the worker listens; returns since when, in ns.
function Driver:ready()
  local since, address = (self.worker:line() or ""):match "^ready (%d+) (.*)$"
  if not since then error("the bench's worker did not start", 0) end
  if self.options.at then
    self.options.at, self.options.connect = address, address
  end
  return tonumber(since)
end

-- Over TCP both sides prove that they know the same secret. It is in a file
-- because an engine removes a secret's text from the environment, and workers
-- are started again later.
local function share_secret(self)
  local text = os.getenv "PERIGEE_SECRET"
  if text and text:match "^file:" or not (text or self.options.at) then
    return
  end
  local path = self.folder .. "/secret"
  assert(os.execute(("umask 077; : > '%s'"):format(path)) == 0)
  local file = assert(io.open(path, "w"))
  file:write(text or ("%s-%.0f-%.17g"):format(self.folder, process.now(),
                                              math.random()))
  file:close()
  process.setenv("PERIGEE_SECRET", "file:" .. path)
end

local function start_worker(self, worker, bytes)
  share_secret(self)
  self.path, self.bytes = worker, bytes
  self:launch()
  self:ready()
end

local function start_agent(self)
  local perigee, proxies = require "perigee", require "perigee.call.proxy"
  local options = self.options
  self.agent = assert(perigee.agent {
    name = "driver", scope = self.scope, transport = options.transport,
    engine = engine_options(options, options.rdma),
  })
  self.engine = self.agent.engine
  if not options.connect then
    self.proxy = assert(self.agent:proxy("worker", "bench", LONG))
    return
  end
  self.session = self:connect()
  self.proxy = assert(proxies.open(self.session, "bench", LONG, 1))
end

-- Starts a worker and returns a driver. worker: the path of bench/worker.lua;
-- bytes: the size of its region for transfers.
function M.start(options, worker, bytes)
  pin(options)
  options.spin = options.spin or not SLEEPERS[options.mode[1]] and SPIN or nil
  options.dead_after = options.dead_after
                       or not MORTALS[options.mode[1]] and PATIENCE or nil
  local self = setmetatable({
    options = options, idle = {}, folder = folders.new(),
    scope = "bench-" .. process.pid(),
  }, Driver)
  local fine, message = true
  if not options.connect then
    fine, message = pcall(start_worker, self, worker, bytes)
  end
  if fine then fine, message = pcall(start_agent, self) end
  if fine then return self end
  self:stop()
  error(message, 0)
end

-- Opens a session of the engine, without the agent, to one of the worker's
-- sockets.
function Driver:connect(name)
  local options = self.options
  return assert(self.engine:connect(
    options.connect or "unix:" .. self.folder .. "/" .. name,
    { timeout = 10, transport = options.transport }))
end

-- Opens or closes idle sessions until there are `count` beside the agent's
-- own.
function Driver:set_idle(count)
  while #self.idle < count do
    self.idle[#self.idle + 1] = self:connect "idle.sock"
  end
  while #self.idle > count do table.remove(self.idle):close() end
end

-- Returns the transport of the sessions between driver and worker.
function Driver:transport()
  local session = self:connect "idle.sock"
  local name = session:explain().transport
  session:close()
  return name
end

-- Ends the worker, also after a failure.
function Driver:stop()
  if self.agent then self.agent:close() end
  if self.worker then self.worker:stop() end
  os.remove(self.folder .. "/secret")
  process.remove_folder(self.folder, M.SOCKETS)
end

return M
