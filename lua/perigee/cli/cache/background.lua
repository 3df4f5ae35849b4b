-- SPDX-License-Identifier: Apache-2.0
--- `perigee cache start`, `status` and `stop`: a cache in the background.
local life = require "perigee.cli.server.life"
local options = require "perigee.cli.cache.options"

local start = {
  name = "start",
  summary = "Serve a cache in the background.",
  description = "Starts perigee cache serve in the background, and returns "
    .. "when it serves. perigee cache stop ends it. Two caches of one name, in "
    .. "two scopes, take a --pid each.",
  configure = options.server,
}

function start.run(given)
  options.complete_start(given)
  options.address(given)
  return life.start(given, options.NAMES)
end

local status = {
  name = "status",
  summary = "Tell whether a cache runs. The exit status is 1 if not.",
}

function status.configure(parser)
  options.which(parser)
  parser:flag("--json", "Print JSON.")
end

function status.run(given)
  options.complete(given)
  return life.status(given, { name = given.name }, given.pid)
end

local stop = {
  name = "stop",
  summary = "End a cache.",
  description = "Ends the cache, and returns when it has ended: it waits until "
    .. "what its clients have leased is over. The exit status is 1 if none "
    .. "runs.",
  configure = options.which,
}

function stop.run(given)
  options.complete(given)
  return life.stop(given, given.pid)
end

return { start = start, status = status, stop = stop }
