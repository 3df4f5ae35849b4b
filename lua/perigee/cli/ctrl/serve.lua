-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl serve`: a server in this process, until SIGTERM or SIGINT.
local failure = require "perigee.cli.failure"
local life = require "perigee.cli.server.life"
local listen = require "perigee.cli.server.listen"
local options = require "perigee.cli.ctrl.options"
local token = require "perigee.cli.ctrl.token"

local M = {
  name = "serve",
  summary = "Serve in the foreground.",
  description = "Serves until SIGTERM or SIGINT. A client without a token may "
    .. "read, on loopback alone and until there are tokens (perigee ctrl token "
    .. "new). "
    .. "Programs of its user find a token by themselves, in a file "
    .. ".ctrl-ADDRESS-PORT of the folder perigee in $XDG_RUNTIME_DIR, or of "
    .. "/tmp/perigee-UID. Beyond loopback the server wants TLS and at least "
    .. "one token, or --insecure. /metrics tells Prometheus what the server "
    .. "counts, and what agents report that they count.",
  configure = options.server,
}

-- A server whose store has lost its tokens would let in who needed one.
local function check_kept(given)
  local marks = require "perigee.control.mark"
  if not marks.is_there(given.mark) then return end
  local list = token.known(given)
  if not list or list[1] then return end
  failure.failed("%s had tokens, and has none: it was emptied, or is another "
    .. "one. Put back what it had, make new tokens (perigee ctrl token new "
    .. "--store %s), or remove %s to have it serve without tokens again",
    given.shown, given.shown, given.mark)
end

local function open(given, address)
  local servers = require "perigee.control"
  local to = listen.target(given, address)
  options.set_limits(given, to)
  to.store, to.names = given.store, options.names(given)
  to.strangers = given.insecure and "admin" or "read"
  to.mark = given.mark
  to.page = given.page and require "perigee.cli.metrics.page".new
  to.own = assert(require "perigee.control.tokens".new_text())
  local server, err = servers.open(to)
  if not server then failure.failed("%s", tostring(err)) end
  return server, to.own
end

-- Keeps the token of this user where this user's programs look for it. Returns
-- a function that removes it.
local function give_token(server, text)
  local own = require "perigee.registry.http.own"
  local log = require "perigee.runtime.log"
  local path, _, why = own.keep(server.address, server.port, text)
  if path then return function() own.forget(path, text) end end
  log.write("warning", "no program finds a token by itself: " .. why)
  return function() end
end

-- Tells where it serves, and serves until a stop; whether that came.
local function go_on(perigee, server, url)
  local out = require "perigee.cli.out"
  out.write(url, "\n")
  out.finish()
  local _, stopped = perigee.run(function() server.ended:wait() end)
  return stopped ~= nil
end

--- Serves as the options say; these are complete.
function M.serve(given)
  local address = listen.address(given.listen, "--listen", options.LISTEN)
  local perigee = require "perigee"
  local log = require "perigee.runtime.log"
  listen.check(given, address, function() return token.list(given)[1] end,
               "perigee ctrl token new --store " .. given.shown)
  check_kept(given)
  life.log_to(given.log)
  local engine, err = perigee.engine {}
  if not engine then failure.failed("%s", tostring(err)) end
  local server, text = open(given, address)
  local url = listen.url_of(address, server.port)
  life.tell(given, url)
  local take_token = give_token(server, text)
  log.write("info", ("serving at %s from %s"):format(url, given.shown))
  local fine, stopped = xpcall(go_on, failure.traced, perigee, server, url)
  server:close()
  engine:close()
  take_token()
  require "perigee.cli.server.process".forget(given.pid)
  log.write("info", "it has ended")
  if not fine then error(stopped, 0) end
  return stopped and 0 or 1
end

function M.run(given)
  listen.check_libraries()
  return M.serve(options.complete(given))
end

return M
