-- SPDX-License-Identifier: Apache-2.0
--- Logs connections that a listener refused: at most once a second, since there
-- may be thousands.
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"

local ffi = require "ffi"
local C = native.C

local M = {}

local EVERY = 1e9                     -- nanoseconds

--- Makes engine (a handle) report refused connections as events.
function M.watch(engine)
  C.perigee_tell_refused(engine, EVERY)
end

-- A peer that only probed whether somebody listens causes no warning.
local function level(status)
  return status == C.PERIGEE_PEER_LOST and "info" or "warning"
end

loop.on[C.PERIGEE_EVENT_REFUSED] = function(_, event)
  local count = tonumber(event.code)
  local one = ffi.string(event.pointer, event.length)
  local message = "refused " .. one
  if count > 1 then
    message = ("refused %d connections, among them %s"):format(count, one)
  end
  log.write(level(event.status), message)
end

return M
