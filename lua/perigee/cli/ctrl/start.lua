-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl start`: a server in the background.
local life = require "perigee.cli.server.life"
local listen = require "perigee.cli.server.listen"
local options = require "perigee.cli.ctrl.options"

local M = {
  name = "start",
  summary = "Serve in the background.",
  description = "Starts a server in the background, and returns when it "
    .. "serves. perigee ctrl stop ends it.",
  configure = options.server,
}

local NAMES = { "listen", "store", "tls-cert", "tls-key", "log", "pid",
                "name", "config", "insecure", "page" }
for _, limit in ipairs(options.LIMITS) do NAMES[#NAMES + 1] = limit[1] end

function M.run(given)
  listen.check_libraries()
  options.complete(given)
  listen.address(given.listen, "--listen", options.LISTEN)
  given.log = given.log or given.beside .. ".log"
  return life.start(given, NAMES)
end

return M
