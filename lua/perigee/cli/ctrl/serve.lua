-- SPDX-License-Identifier: Apache-2.0
--- `perigee ctrl serve`: a server in this process, until SIGTERM or SIGINT.
local failure = require "perigee.cli.failure"
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
    .. "/tmp/perigee-UID. Beyond loopback it wants TLS and at least one token, "
    .. "or --insecure.",
  configure = options.server,
}

local function text_of(path, option)
  if not path then return nil end
  local file, why = io.open(path)
  local text = file and file:read "*a"
  if file then file:close() end
  if not text then failure.misuse("reading %s: %s", option, why) end
  return text
end

local function key_of(path)
  if not path then return nil end
  local text, _, why = require "perigee.net.private".read(path, true)
  if not text then failure.misuse("reading --tls-key: %s", why) end
  return text
end

local function check_tls(given, address)
  local all = given.tls_cert and given.tls_key
  if (given.tls_cert or given.tls_key) and not all then
    failure.misuse "--tls-cert and --tls-key belong together"
  elseif all and not address.tls then
    failure.misuse "--listen must be https:// with --tls-cert"
  elseif address.tls and not all then
    failure.misuse "https:// takes --tls-cert and --tls-key"
  end
end

local function check_open(given, address)
  if address.loopback or given.insecure then return end
  if address.tls and token.list(given)[1] then return end
  failure.misuse("others than this host are served over https:// and with "
    .. "tokens (perigee ctrl token new --store %s), or with --insecure",
    given.shown)
end

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

local function log_to(path)
  local perigee = require "perigee"
  local file, why = io.stderr, nil
  if path then file, why = io.open(path, "a") end
  if not file then failure.misuse("opening --log: %s", why) end
  file:setvbuf "line"
  perigee.log = function(level, message)
    if level ~= "debug" then
      file:write(os.date "!%Y-%m-%dT%H:%M:%SZ ", level, ": ", message, "\n")
    end
  end
end

local function open(given, address)
  local servers = require "perigee.control"
  local to = options.limits(given)
  to.host, to.port, to.store = address.host, address.port, given.store
  to.certificate = text_of(given.tls_cert, "--tls-cert")
  to.key = key_of(given.tls_key)
  to.names = options.names(given)
  to.wanted = not address.loopback and not given.insecure
  to.strangers = given.insecure and "admin" or "read"
  to.mark = given.mark
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

local function url_of(address, port)
  return ("%s://%s:%d"):format(address.tls and "https" or "http",
    address.host:find ":" and "[" .. address.host .. "]" or address.host, port)
end

--- Serves as the options say; these are complete.
function M.serve(given)
  local address = options.address(given.listen)
  local perigee = require "perigee"
  local log = require "perigee.runtime.log"
  local process = require "perigee.cli.ctrl.process"
  check_tls(given, address)
  check_open(given, address)
  check_kept(given)
  log_to(given.log)
  local engine, err = perigee.engine {}
  if not engine then failure.failed("%s", tostring(err)) end
  local server, text = open(given, address)
  local url = url_of(address, server.port)
  local told, why = process.tell(given.pid, url)
  if not told then failure.failed("writing --pid: %s", why) end
  local take_token = give_token(server, text)
  log.write("info", ("serving at %s from %s"):format(url, given.shown))
  print(url)
  io.stdout:flush()
  local _, stopped = perigee.run(function() server.ended:wait() end)
  server:close()
  engine:close()
  take_token()
  process.forget(given.pid)
  log.write("info", "it has ended")
  return stopped and 0 or 1
end

function M.run(given)
  options.check_libraries()
  return M.serve(options.complete(given))
end

return M
