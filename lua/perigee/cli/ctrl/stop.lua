-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl stop`: ends the server.
local life = require "perigee.cli.server.life"
local options = require "perigee.cli.ctrl.options"

local M = {
  name = "stop",
  summary = "End the server.",
  description = "Ends the server, and returns when it has ended. The exit "
    .. "status is 1 if none runs.",
}

function M.configure(parser)
  options.store(parser)
  life.which(parser)
end

function M.run(given)
  options.complete(given)
  return life.stop(given, given.shown)
end

return M
