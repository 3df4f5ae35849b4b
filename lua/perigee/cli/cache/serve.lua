-- SPDX-License-Identifier: Apache-2.0
--- `perigee cache serve`: a cache in this process. The first SIGTERM or SIGINT
-- ends it in order (Cache:drain): it takes no more requests, and closes when
-- nobody has a lease any more. A second one ends it at once.
local client = require "perigee.cli.client"
local failure = require "perigee.cli.failure"
local life = require "perigee.cli.server.life"
local listen = require "perigee.cli.server.listen"
local options = require "perigee.cli.cache.options"

local M = {
  name = "serve",
  summary = "Serve a cache in the foreground.",
  description = "Serves until SIGTERM or Ctrl-C. Then it takes no new "
    .. "requests, waits until what clients have leased is over (--drain), and "
    .. "ends; a second signal ends it at once. With --http, programs of any "
    .. "user of this host may read and write entries by HTTP, unless there are "
    .. "--tokens. Beyond loopback --http wants TLS and at least one token, or "
    .. "--insecure. A --config FILE has lines NAME VALUE of these options.",
  configure = options.server,
}

-- The HTTP server, if there is one to be.
local function web_of(given, cache)
  local address = options.address(given)
  if not address then return nil end
  local to = listen.target(given, address)
  to.names, to.body, to.tokens = options.names(given), given.body, given.tokens
  local web, err = require "perigee.cli.cache.web".open(cache, to, given)
  if not web then failure.failed("%s", tostring(err)) end
  web.url = listen.url_of(address, web.port)
  return web
end

-- What is wrong is told before a name is held.
local function check(given)
  local address = options.address(given)
  if not address then return end
  listen.check_libraries()
  listen.check_with_file(given, address)
end

local function announce(given, cache, web)
  local out = require "perigee.cli.out"
  for _, agent in ipairs(cache.agents) do
    local list = { agent.address, unpack(agent.addresses) }
    out.line("serving %s in scope %s at %s", given.name, agent.scope,
             table.concat(list, " "))
  end
  if web then out.line("serving %s at %s", given.name, web.url) end
  out.finish()
  require "perigee.runtime.notify".ready()
end

-- Serves until a stop. Returns the error of a name that was taken, or nil.
local function serve(given, cache, web)
  local perigee = require "perigee"
  local notify = require "perigee.runtime.notify"
  local function begun()
    notify.stopping()
    if web then web:drain() end
  end
  local forget = require "perigee.agent.drain".at_end(cache.agents, given.drain,
    begun, function(_, limit) cache:drain(limit) end)
  perigee.spawn(announce, given, cache, web)
  perigee.run()
  return forget()
end

local function with_web(given, cache)
  local web = web_of(given, cache)
  local log = require "perigee.runtime.log"
  local url = web and web.url or cache.agents[1].address
  life.tell(given, url)
  log.write("info", ("serving %s at %s"):format(given.name, url))
  local fine, taken = xpcall(serve, failure.traced, given, cache, web)
  if web then web:close() end
  require "perigee.cli.server.process".forget(given.pid)
  log.write("info", "it has ended")
  if not fine then error(taken, 0) end
  return taken
end

function M.run(given)
  options.complete(given)
  local perigee = client.library()
  check(given)
  life.log_to(given.log)
  local cache = client.made(given, perigee.cache, options.of_cache(given))
  local fine, taken = xpcall(with_web, failure.traced, given, cache)
  cache:close()
  if not fine then error(taken, 0) end
  if taken then failure.by(taken, tostring(taken)) end
  return 0
end

return M
