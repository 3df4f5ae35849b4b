-- SPDX-License-Identifier: Apache-2.0
--- The options of `perigee ctrl`, which a file may have, too: lines of an
-- option's name without dashes, and its value. The command line goes first.
local failure = require "perigee.cli.failure"
local files = require "perigee.cli.server.files"
local life = require "perigee.cli.server.life"
local listen = require "perigee.cli.server.listen"
local storages = require "perigee.control.storages"

local M = {}

M.LISTEN = "http://127.0.0.1:7470"

-- Limits: the option's name, the server's name of it, and what it is.
M.LIMITS = {
  { "connections", "connections", "Connections at most (4096)." },
  { "per-host", "per_host", "Connections of one address at most (all)." },
  { "head", "head", "Bytes of a request's head at most (2048)." },
  { "body", "body", "Bytes of a request's body at most (1048576)." },
  { "patience", "patience", "Seconds for a whole request to come (30)." },
  { "queued", "queued",
    "Bytes that a watcher may be behind at most (4194304)." },
  { "backlog", "backlog",
    "Bytes that all watchers may be behind together (67108864)." },
  { "rate", "rate", "Requests of a token in a second at most (no limit)." },
}

local function limit_of(text) return tonumber(text) or -1 end

local KNOWN = { insecure = files.flag, page = files.flag }
for _, name in ipairs { "listen", "store", "tls-cert", "tls-key", "log", "pid",
                        "name" } do
  KNOWN[name] = files.text
end
for _, limit in ipairs(M.LIMITS) do KNOWN[limit[1]] = limit_of end

--- Adds the option that says which server is meant.
function M.store(parser)
  parser:option("--store", "The file that it keeps all in, by default "
                .. "ctrl.db in the folder perigee of $XDG_STATE_HOME or "
                .. "~/.local/state; or the address of Redis or etcd, as of a "
                .. "registry (redis://HOST, etcd://HOST,HOST), which several "
                .. "servers may share."):argname "STORE"
  return parser
end

--- Adds those of a server.
function M.server(parser)
  parser:option("--listen", "The URL where it listens; by default "
                .. M.LISTEN .. ".")
    :argname "URL"
  M.store(parser)
  listen.tls(parser)
  parser:option("--name", "Hosts, joined by commas, by which clients' URLs "
                .. "name the server, besides addresses, localhost, the host "
                .. "of --listen and those of the certificate. A client that "
                .. "names another is refused.")
    :argname "HOST,..."
  life.options(parser, "stderr, of start STORE.log", "STORE.pid, or in the "
    .. "folder perigee if STORE is no file")
  parser:flag("--page", "Serve a page at /, too, of the agents of this host "
              .. "and of those that report to the server.")
  parser:flag("--insecure", "Serve others than this host without TLS, and "
              .. "let all who have no token write if there are no tokens.")
  for _, limit in ipairs(M.LIMITS) do
    parser:option("--" .. limit[1], limit[3]):argname "N":convert(tonumber)
  end
end

-- ---- Reading ---------------------------------------------------------------

-- Has the store as an absolute path or an address, as one that may be told
-- (`shown`), and where files of the server's are (`beside`).
local function complete_store(given, folder)
  local store = given.store or folder "--store" .. "/ctrl.db"
  if storages.is_shared(store) then
    given.shown = storages.shown(store)
    given.beside = ("%s/ctrl-%s"):format(folder "--store",
      (given.shown:gsub("[^%w.,-]+", "_"):sub(1, 200)))
  elseif store:find "^%a[%w+]*://" then
    failure.misuse("--store is the path of a file, or an address of redis:// "
      .. "or etcd://")
  else
    store = files.absolute(store)
  end
  given.store, given.shown = store, given.shown or store
  given.beside = given.beside or store
  given.mark = given.beside .. ".tokens"
end

--- Completes options by those of the file and the defaults. folder: what tells
-- the folder of the default store; files.made_folder, if not given.
function M.complete(given, folder)
  files.read_config(given, KNOWN)
  complete_store(given, folder or files.made_folder)
  given.listen = given.listen or M.LISTEN
  given.pid = given.pid or given.beside .. ".pid"
  for _, limit in ipairs(M.LIMITS) do
    local value = given[files.field(limit[1])]
    if value and (value < 0 or value % 1 ~= 0 or value >= 2 ^ 31) then
      failure.misuse("--%s must be a number", limit[1])
    end
  end
  return given
end

--- The names that are given, as the server takes them.
function M.names(given)
  return ((given.name or ""):gsub("[,%s]+", " "):match "^ ?(.-) ?$")
end

--- Sets the limits that are given, by the server's names of them.
function M.set_limits(given, to)
  for _, limit in ipairs(M.LIMITS) do
    to[limit[2]] = given[files.field(limit[1])]
  end
end

return M
