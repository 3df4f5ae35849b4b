-- SPDX-License-Identifier: Apache-2.0
--- Where a command listens for HTTP, and whom it serves there: this host's
-- programs without further ado; others over TLS and with tokens, or as
-- --insecure says. The control server, a cache and metrics decide it alike.
local failure = require "perigee.cli.failure"

local M = {}

--- Adds the options of TLS.
function M.tls(parser)
  parser:option("--tls-cert", "The server's certificate, a file in PEM.")
    :argname "FILE"
  parser:option("--tls-key", "The server's key, a file in PEM that others "
    .. "cannot read.")
    :argname "FILE"
end

--- Ends the command in one sentence where the libraries are missing.
function M.check_libraries()
  for _, name in ipairs { "perigee.net.native", "cjson.safe" } do
    local fine, why = pcall(require, name)
    if not fine then
      failure.misuse("%s", name ~= "cjson.safe" and why
        or "this needs lua-cjson: apt-get install lua-cjson")
    end
  end
end

-- The host and the port of what is behind a URL's scheme. Digits alone are no
-- host, although the system would take them for an address: they are a port
-- whose host is missing.
local function place_of(rest)
  local host, port = rest:match "^%[([%x:.]+)%]:?(%d*)$"
  if not host then host, port = rest:match "^([%w._-]+):?(%d*)$" end
  if host and not host:find "^%d+$" then return host, port end
end

--- The parts of a URL: { tls, host, port, loopback }. option: what it is of.
-- example: one that is right. scheme: of a URL without one; nil: it needs one.
function M.address(text, option, example, scheme)
  local url = scheme and not text:find "://" and scheme .. "://" .. text or text
  local said, rest = url:match "^(https?)://([^/]+)/?$"
  local host, port = place_of(rest or "")
  port = port == "" and tonumber(example:match "%d+$") or tonumber(port)
  if not host or not port or port > 65535 then
    failure.misuse("%s must be a URL as %s, not %s", option, example, text)
  end
  return { tls = said == "https", host = host, port = port, option = option,
           loopback = host:find "^127%." ~= nil or host == "::1"
             or host == "localhost" }
end

--- The URL of an address, at the port where it listens.
function M.url_of(address, port)
  return ("%s://%s:%d"):format(address.tls and "https" or "http",
    address.host:find ":" and "[" .. address.host .. "]" or address.host, port)
end

local function check_tls(given, address)
  local all = given.tls_cert and given.tls_key
  if (given.tls_cert or given.tls_key) and not all then
    failure.misuse "--tls-cert and --tls-key belong together"
  elseif all and not address.tls then
    failure.misuse("%s must be https:// with --tls-cert", address.option)
  elseif address.tls and not all then
    failure.misuse "https:// takes --tls-cert and --tls-key"
  end
end

--- Checks that it may be listened there. has_tokens() tells whether there are
-- tokens; token_new: the command that makes one.
function M.check(given, address, has_tokens, token_new)
  check_tls(given, address)
  if address.loopback or given.insecure then return end
  if address.tls and has_tokens() then return end
  failure.misuse("others than this host are served over https:// and with "
    .. "tokens (%s), or with --insecure", token_new)
end

-- Has the file of --tokens any?
local function has_tokens(given)
  if not given.tokens then return false end
  local storage, _, why = require "perigee.control.file".open(given.tokens)
  if not storage then failure.failed("opening --tokens: %s", why) end
  local list = storage:all_tokens()
  storage:close()
  return list and list[1]
end

-- Opening a store makes its file, which would be empty: all would be refused.
local function check_tokens(path)
  local file, why = io.open(path, "rb")
  if not file then
    failure.misuse("opening --tokens: %s (perigee ctrl token new --store FILE "
      .. "makes it)", why)
  end
  file:close()
end

--- The same where tokens are in the file of --tokens.
function M.check_with_file(given, address)
  if given.tokens then check_tokens(given.tokens) end
  M.check(given, address, function() return has_tokens(given) end,
    "perigee ctrl token new --store FILE, and --tokens FILE")
end

local function certificate_of(path)
  if not path then return nil end
  local file, why = io.open(path)
  local text = file and file:read "*a"
  if file then file:close() end
  if not text then failure.misuse("reading --tls-cert: %s", why) end
  return text
end

local function key_of(path)
  if not path then return nil end
  local text, _, why = require "perigee.net.private".read(path, true)
  if not text then failure.misuse("reading --tls-key: %s", why) end
  return text
end

--- What a server is opened with (control, cache/web): host, port, certificate,
-- key; wanted, if requests need a token even if there are none.
function M.target(given, address)
  return { host = address.host, port = address.port,
           certificate = certificate_of(given.tls_cert),
           key = key_of(given.tls_key),
           wanted = not address.loopback and not given.insecure }
end

return M
