-- SPDX-License-Identifier: Apache-2.0
--- perigee.serve: an agent that serves until it is stopped.
local agents = require "perigee.agent"
local check = require "perigee.runtime.check"
local drains = require "perigee.agent.drain"
local settings = require "perigee.agent.options"
local futures = require "perigee.runtime.future"
local tasks = require "perigee.runtime.task"

local DRAIN = 10                        -- seconds

local checked = settings.with({ drain = check.seconds }, "perigee.serve")

-- Returns the options of the agent, and that of the drain.
local function apart(options)
  options = checked(options, 3)
  local own = {}
  for key, value in pairs(options) do own[key] = value end
  own.drain = nil
  return own, options.drain or DRAIN
end
jit.off(apart)

--- Makes an agent, serves until it is stopped, closes the agent and returns
-- true. The first SIGINT or SIGTERM has it drain before that (`Agent:drain`):
-- it takes no new calls, those that are under way are answered, and callers go
-- elsewhere without an error. A second signal, or `perigee.stop`, stops it at
-- once; one more, or 2 s in which its loop does not run, causes the signal's
-- default action. It ends in the same way once another agent has the name
-- (`Agent:on_lost`). For the main thread; a task uses `Agent:serve`.
-- @function perigee.serve
-- @tparam table options those of `perigee.agent`, and
-- @tparam[opt=10] number options.drain seconds that calls which are under way
--   have after a signal; 0: none
-- @treturn boolean true after a stop; or nil and an error
-- @errors those of `perigee.agent`: `name_taken` (also when another agent has
--   taken the name meanwhile), `denied`, ...
-- @waits until it is stopped
-- @usage
-- perigee.spawn(function()                -- somebody else would do this
--   perigee.sleep(0.01)
--   perigee.stop()
-- end)
-- print(perigee.serve { name = "worker:1", services = { {
--   name = "hello",
--   methods = { greet = function(who) return "hello " .. who end },
-- } } })                                                    --> true
return function(options)
  local own, limit = apart(options)
  local agent, err = agents.new(own, 3)
  if not agent then return nil, err end
  local forget = drains.at_end({ agent }, limit)
  local fine, failure = pcall(tasks.run_until, futures.new(agent), "serve", 3)
  local taken = forget()
  agent:close()
  if not fine then error(failure, 0) end
  if taken then return nil, taken end
  return true
end
