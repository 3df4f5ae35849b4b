-- SPDX-License-Identifier: Apache-2.0
-- Trouble with a server and the way to it (spec/hostile/stores.lua): they are
-- stopped, cut and restarted, at random.
local cases = require "spec.support.cases"
local ffi = require "ffi"
require "spec.support.process" -- clock

local M = {}

-- Seconds for which a process is stopped at most; mostly it is a short time.
M.STOPPED = 4 * cases.slow

local CLOCK_BOOTTIME = 7
local time = ffi.new "int64_t[2]"

--- Seconds of the clock that all processes share.
function M.now()
  ffi.C.spec_clock(CLOCK_BOOTTIME, time)
  return tonumber(time[0]) + tonumber(time[1]) * 1e-9
end

local Trouble = {}
Trouble.__index = Trouble

--- Trouble for a server, and for the way to it, if there is one.
function M.new(server, way)
  return setmetatable({ server = server, way = way, paused = {} }, Trouble)
end

--- Stops a process for up to so many seconds; long: mostly for long.
function Trouble:pause(one, seconds, long)
  if self.paused[one] or not one.pid then return end
  one:signal "STOP"
  self.paused[one] = M.now() + math.random() ^ (long and 0.5 or 4) * seconds
end

--- Continues those whose time is over, or all.
function Trouble:go_on(all)
  for one, at in pairs(self.paused) do
    if all or at < M.now() then
      if one.pid then one:signal "CONT" end
      self.paused[one] = nil
    end
  end
end

-- All wait for a server that is stopped or killed, so that is done more rarely.
local function rarely() return math.random(4) == 1 end

local ACTS = {
  function(self)
    if self.way then self:pause(self.way, M.STOPPED, true) end
  end,
  function(self)
    if self.way and rarely() then self.way:tell "cut" end
  end,
  function(self)
    if not self.server.processes or not rarely() then return end
    local list = self.server:processes()
    self:pause(list[math.random(#list)], M.STOPPED / 2)
  end,
  function(self)
    if self.server.cut then self.server:cut() end
  end,
  function(self)
    if self.server.restart and rarely() then self.server:restart() end
  end,
}

--- Does something, maybe, to the server or the way.
function Trouble:act() ACTS[math.random(#ACTS)](self) end

return M
