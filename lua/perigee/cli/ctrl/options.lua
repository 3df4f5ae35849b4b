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

-- Limits: the option's name, the server's name of it, the least that it may be,
-- and what it is.
M.LIMITS = {
  { "connections", "connections", 1, "Connections at most (4096)." },
  { "per-host", "per_host", 0, "Connections of one address at most (all)." },
  { "head", "head", 1, "Bytes of a request's head at most (2048)." },
  { "body", "body", 0, "Bytes of a request's body at most (1048576)." },
  { "patience", "patience", 1, "Seconds for a whole request to come (30)." },
  { "queued", "queued", 0,
    "Bytes that a watcher may be behind at most (4194304)." },
  { "backlog", "backlog", 0,
    "Bytes that all watchers may be behind together (67108864)." },
  { "rate", "rate", 0, "Requests of a token in a second at most (no limit)." },
}

-- What reads a limit, as options.count does.
local function limit_from(least)
  return function(text)
    local value = tonumber(text)
    if value and value >= least and value % 1 == 0 and value < 2 ^ 31 then
      return value
    end
    return nil, ("%q is no number from %d on"):format(text, least)
  end
end

local KNOWN = { insecure = files.flag, page = files.flag }
for _, name in ipairs { "listen", "store", "tls-cert", "tls-key", "log", "pid",
                        "name" } do
  KNOWN[name] = files.text
end
for _, limit in ipairs(M.LIMITS) do KNOWN[limit[1]] = limit_from(limit[3]) end

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
    parser:option("--" .. limit[1], limit[4]):argname "N"
      :convert(KNOWN[limit[1]])
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
