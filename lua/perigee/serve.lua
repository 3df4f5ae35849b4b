-- SPDX-License-Identifier: Apache-2.0
--- perigee.serve: an agent that serves until it is stopped.
local agents = require "perigee.agent"
local futures = require "perigee.future"
local tasks = require "perigee.task"

--- Makes an agent, serves until it is stopped, closes the agent and returns
-- true. It is stopped by `perigee.stop`, or by the first SIGINT or SIGTERM; a
-- second signal, or 2 s in which it does not end, cause the default action. For
-- the main thread; a task uses `Agent:serve`.
-- @function perigee.serve
-- @tparam table options those of `perigee.agent`
-- @treturn boolean true after a stop; or nil and an error
-- @errors those of `perigee.agent`: `name_taken`, `denied`, ...
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
  local agent, err = agents.new(options, 3)
  if not agent then return nil, err end
  local fine, failure = pcall(tasks.run_until, futures.new(agent), "serve", 3)
  agent:close()
  if not fine then error(failure, 0) end
  return true
end
