-- SPDX-License-Identifier: Apache-2.0
-- Agent:drain. A draining engine has no methods but the description, so that
-- calls which come find none and are refused (reply.lua), and those of an agent
-- that does not drain cost nothing for it. engine.draining has the methods that
-- there were, or is false.
local check = require "perigee.check"
local errors = require "perigee.errors"
local loop = require "perigee.loop"
local signals = require "perigee.signal"

local M = {}

local PAUSE = 1e6                       -- ns between looks at what is served

local function is_idle(engine)
  return engine:stats().held_operations == 0
end

-- Waits until no call is under way, at most until deadline.
local function wait(engine, deadline)
  while not is_idle(engine) do
    local time = loop.now()
    if time >= deadline or loop.state.stopping then return false end
    loop.wait_signal(signals.new(1), math.min(time + PAUSE, deadline))
    if not engine.handle then return true end
  end
  return true
end

--- Adds these methods to the class of agents.
function M.add(Agent)

--- Takes no new calls from now on, for good; calls that are under way go on, as
-- do sessions, transfers and this agent's own calls. Its registry lists it as
-- "draining". Close it when its calls are done: a new process can then take the
-- name.
--
-- A call that comes is refused by an error of kind `closed`, whose `code` is
-- "draining" and `sent` is false. A proxy that was made by a name or an address
-- asks for the next holder of the name then, and calls that one: it waits for
-- it as for a peer that is away (`Agent:proxy`). All its tries are within its
-- timeout.
-- @function Agent:drain
-- @tparam[opt] number timeout seconds to wait until no call is under way, the
--   calls that peers wait for and their messages that nobody has received;
--   default: 0
-- @treturn boolean true; or nil and an error
-- @errors `timeout`: calls are still under way; it drains all the same;
--   `closed`
-- @waits no; with a timeout yes
-- @usage
-- local old = assert(perigee.agent { name = "old" })
-- old:serve { name = "sums", methods = { add = function(a) return a end } }
-- local sums = assert(agent:proxy("old", "sums", { reconnect = 0 }))
-- print(old:drain(5))                                          --> true
-- local sum, err = sums:add(1)
-- print(sum, err.kind, err.code, err.sent)        --> nil closed draining false
-- old:close()
function Agent:drain(timeout)
  local engine = self.engine
  local gone = engine:gone("draining " .. tostring(self))
  if gone then return nil, gone end
  if timeout ~= nil then
    check.value(timeout, check.seconds, "drain's timeout")
    loop.check_wait(2)
  end
  if not engine.draining then
    engine.draining = engine.methods
    engine.methods = { [0] = engine.methods[0] }
    self:changed()
  end
  if not timeout or wait(engine, loop.deadline(timeout)) then return true end
  return nil, errors.new("timeout", ("draining %s: calls are under way after "
    .. "%g s"):format(tostring(self), timeout))
end

end

return M
