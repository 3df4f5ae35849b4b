-- SPDX-License-Identifier: Apache-2.0
--- perigee.serve: an agent that serves until it is stopped.
local agents = require "perigee.agent"
local futures = require "perigee.future"
local tasks = require "perigee.task"

--- Makes an agent (options as perigee.agent's), serves until stopped (by
-- perigee.stop() or the first SIGINT or SIGTERM), closes it and returns true.
-- nil and an error if the name is taken. For the main thread; a task uses
-- agent:serve.
return function(options)
  local agent, err = agents.new(options, 3)
  if not agent then return nil, err end
  local fine, failure = pcall(tasks.run_until, futures.new(agent), "serve", 3)
  agent:close()
  if not fine then error(failure, 0) end
  return true
end
