-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl stop`: ends the server.
local failure = require "perigee.cli.failure"
local options = require "perigee.cli.ctrl.options"

local PATIENCE = 30                     -- seconds

local M = {
  name = "stop",
  summary = "End the server.",
  description = "Ends the server, and returns when it has ended. The exit "
    .. "status is 1 if none runs.",
}

function M.configure(parser)
  options.store(parser)
  parser:option("--pid", "The file that start was given."):argname "FILE"
end

function M.run(given)
  local process = require "perigee.cli.ctrl.process"
  options.complete(given)
  local found = process.find(given.pid)
  if not found then failure.failed("no server runs from %s", given.shown) end
  process.stop(found)
  local gone = process.eventually(PATIENCE, function()
    return not process.runs(found)
  end)
  if not gone then
    failure.failed("process %d does not end", found.pid)
  end
end

return M
