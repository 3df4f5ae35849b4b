-- SPDX-License-Identifier: Apache-2.0
--- Strangers that came to a listener and were refused: told to the log, once a
-- second at most, as they may come by thousands.
local log = require "perigee.log"
local loop = require "perigee.loop"
local native = require "perigee.native"

local ffi = require "ffi"
local C = native.C

local M = {}

local EVERY = 1e9                     -- nanoseconds

--- Has engine (a handle) tell of them.
function M.watch(engine)
  C.perigee_tell_refused(engine, EVERY)
end

-- Who only looked whether somebody listens is not worth a warning.
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
