-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl status`: does a server run, and is it ready?
local life = require "perigee.cli.server.life"
local options = require "perigee.cli.ctrl.options"

local M = {
  name = "status",
  summary = "Tell whether the server runs. The exit status is 1 if not.",
}

function M.configure(parser)
  options.store(parser)
  life.which(parser)
  parser:flag("--json", "Print JSON.")
end

function M.run(given)
  options.complete(given)
  return life.status(given, { store = given.shown }, given.shown)
end

return M
