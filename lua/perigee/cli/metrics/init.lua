-- SPDX-License-Identifier: Apache-2.0
--- `perigee metrics`: what this user's agents on this host count, for
-- Prometheus, from their stats files: printed once, or served until SIGTERM or
-- SIGINT.
local failure = require "perigee.cli.failure"
local listen = require "perigee.cli.server.listen"
local options = require "perigee.cli.options"

local M = {
  name = "metrics",
  summary = "Tell Prometheus what the agents of this host count.",
  description = "Prints what this user's agents on this host count as metrics "
    .. "for Prometheus, or serves that at /metrics (--listen), as OpenMetrics "
    .. "to clients that ask for it. The numbers come from the agents' stats "
    .. "files: no agent is asked. Beyond loopback the server wants TLS and at "
    .. "least one token, or --insecure.",
}

local EXAMPLE = "http://127.0.0.1:9470"
local SERIES = 10000

local function name(text)
  local wanted = require "perigee.runtime.check".name(text)
  if not wanted then return text end
  return nil, ("%q must be %s"):format(text, wanted)
end

function M.configure(parser)
  parser:option("--listen", "Serve metrics there, as at 127.0.0.1:9470.")
    :argname "ADDRESS"
  parser:flag("--page", "Serve a page at /, too, for browsers of this host.")
  parser:flag("--once", "Print metrics, and serve nothing.")
  parser:option("--scope", "Only agents of this scope; default: of all. May be "
    .. "given again."):argname "SCOPE":count "*":convert(name)
  options.registry(parser)
  parser:option("--series", ("Series of agents and methods at most; the rest "
    .. "is summed as other; default: %d."):format(SERIES)):argname "N"
    :convert(options.count):default(SERIES)
  parser:flag("--openmetrics", "Print OpenMetrics.")
  parser:option("--tokens", "Clients need one of the tokens that perigee ctrl "
    .. "token new --store FILE has made."):argname "FILE"
  listen.tls(parser)
  parser:option("--names", "Hosts, joined by commas, by which clients' URLs "
    .. "name the server, besides addresses, localhost and those of the "
    .. "certificate.")
    :argname "HOST,..."
  parser:flag("--insecure", "Serve others than this host without TLS and "
    .. "tokens.")
end

local function metrics_of(given)
  return require "perigee.stats.metrics".new {
    registry = require "perigee.cli.client".registry(given),
    scopes = given.scope[1] and given.scope, series = given.series }
end

-- ---- Serving ----------------------------------------------------------------

local function address_of(given)
  return listen.address(given.listen, "--listen", EXAMPLE,
                        given.tls_cert and "https" or "http")
end

-- A browser has no token, so its page is for this host alone.
local function check_page(given, address)
  if not given.page then return end
  if not address then
    failure.misuse("--page is served: it wants --listen, as %s",
                   EXAMPLE:match "//(.*)")
  elseif given.tokens or not address.loopback then
    failure.misuse "--page is for loopback, and takes no --tokens"
  end
end

local function open(given, address)
  local to = listen.target(given, address)
  to.tokens, to.scope = given.tokens, "*"
  if given.scope[1] and not given.scope[2] then to.scope = given.scope[1] end
  to.names = (given.names or ""):gsub("[,%s]+", " "):match "^ ?(.-) ?$"
  local told = metrics_of(given)
  to.page = given.page and require "perigee.cli.metrics.page".new(told)
  local server, err = require "perigee.cli.metrics.web".open(told, to)
  if not server then failure.failed("%s", tostring(err)) end
  return server
end

local function announce(url, page)
  local out = require "perigee.cli.out"
  out.line("%s/metrics", url)
  if page then out.line("%s/", url) end
  out.finish()
  require "perigee.runtime.notify".ready()
end

local function serve(given)
  local address = address_of(given)
  check_page(given, address)
  listen.check_libraries()
  listen.check_with_file(given, address)
  local perigee = require "perigee"
  local engine, err = perigee.engine {}
  if not engine then failure.failed("%s", tostring(err)) end
  local server = open(given, address)
  announce(listen.url_of(address, server.port), given.page)
  local _, stopped = perigee.run(function() server.ended:wait() end)
  require "perigee.runtime.notify".stopping()
  server:close()
  engine:close()
  return stopped and 0 or 1
end

function M.run(given)
  if given.listen and not given.once then return serve(given) end
  if not given.listen then check_page(given) end
  local out = require "perigee.cli.out"
  out.write(metrics_of(given):text(given.openmetrics and "openmetrics"))
  out.finish()
end

return M
