-- SPDX-License-Identifier: Apache-2.0
--- The options of `perigee ctrl`, which a file may have, too: lines of an
-- option's name without dashes, and its value. The command line goes first.
local failure = require "perigee.cli.failure"
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

local KNOWN = { listen = true, store = true, ["tls-cert"] = true,
                ["tls-key"] = true, log = true, pid = true, insecure = true,
                name = true }
for _, limit in ipairs(M.LIMITS) do KNOWN[limit[1]] = true end

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
  parser:option("--tls-cert", "Its certificate, a file in PEM.")
    :argname "FILE"
  parser:option("--tls-key", "Its key, a file in PEM that others cannot read.")
    :argname "FILE"
  parser:option("--name", "Hosts, joined by commas, that clients' URLs name it "
                .. "by besides addresses, localhost, the host of --listen and "
                .. "those of its certificate. It refuses a client that names "
                .. "another.")
    :argname "HOST,..."
  parser:option("--log", "The file that its messages are added to; by default "
                .. "stderr, of start STORE.log."):argname "FILE"
  parser:option("--pid", "The file that holds its process's number while it "
                .. "runs, beside FILE.state, from which stop and status know "
                .. "it; by default STORE.pid, or in the folder perigee if "
                .. "STORE is no file."):argname "FILE"
  parser:option("--config", "A file with lines NAME VALUE of these options.")
    :argname "FILE"
  parser:flag("--insecure", "Serve others than this host without TLS, and "
              .. "let all who have no token write if there are no tokens.")
  for _, limit in ipairs(M.LIMITS) do
    parser:option("--" .. limit[1], limit[3]):argname "N":convert(tonumber)
  end
end

-- ---- Reading ---------------------------------------------------------------

--- Ends the command in one sentence where the server's libraries are missing.
function M.check_libraries()
  for _, name in ipairs { "perigee.net.native", "cjson.safe" } do
    local fine, why = pcall(require, name)
    if not fine then
      failure.misuse("%s", name ~= "cjson.safe" and why
        or "the control server needs lua-cjson: apt-get install lua-cjson")
    end
  end
end

local function field(name) return (name:gsub("-", "_")) end

local function set(given, name, value)
  local key = field(name)
  if given[key] ~= nil then return end
  given.configured[key] = true
  if name == "insecure" then value = value ~= "no" end
  for _, limit in ipairs(M.LIMITS) do
    if limit[1] == name then value = tonumber(value) or -1 end
  end
  given[key] = value
end

local function read_config(given)
  local file, why = io.open(given.config)
  if not file then failure.misuse("reading --config: %s", why) end
  local n = 0
  given.configured = {}
  for line in file:lines() do
    n = n + 1
    local name, value = line:match "^%s*([%w-]+)%s*=?%s*(.-)%s*$"
    if name and KNOWN[name] then
      set(given, name, value)
    elseif not line:find "^%s*#" and not line:find "^%s*$" then
      failure.misuse("%s:%d: there is no option of that name", given.config, n)
    end
  end
  file:close()
end

local function state_folder()
  local state = os.getenv "XDG_STATE_HOME"
  if state and state:sub(1, 1) == "/" then return state .. "/perigee" end
  local home = os.getenv "HOME"
  if home and home:sub(1, 1) == "/" then
    return home .. "/.local/state/perigee"
  end
  failure.misuse "there is no home folder; give --store PATH"
end

-- Makes the folder, if need be.
local function made_folder()
  local folder = state_folder()
  os.execute("mkdir -p -m 700 " .. M.quoted(folder))
  return folder
end

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end
M.quoted = quoted

-- Has the store as an absolute path or an address, as one that may be told
-- (`shown`), and where files of the server's are (`beside`).
local function complete_store(given)
  local store = given.store or made_folder() .. "/ctrl.db"
  if storages.is_shared(store) then
    given.shown = storages.shown(store)
    given.beside = ("%s/ctrl-%s"):format(made_folder(),
      (given.shown:gsub("[^%w.,-]+", "_"):sub(1, 200)))
  elseif store:find "^%a[%w+]*://" then
    failure.misuse("--store is the path of a file, or an address of redis:// "
      .. "or etcd://")
  elseif store:sub(1, 1) ~= "/" then
    local pipe = assert(io.popen "pwd -P")
    store = pipe:read "*l" .. "/" .. store
    pipe:close()
  end
  given.store, given.shown = store, given.shown or store
  given.beside = given.beside or store
  given.mark = given.beside .. ".tokens"
end

--- Completes options by those of the file and the defaults.
function M.complete(given)
  if given.config then read_config(given) end
  complete_store(given)
  given.listen = given.listen or M.LISTEN
  given.pid = given.pid or given.beside .. ".pid"
  for _, limit in ipairs(M.LIMITS) do
    local value = given[field(limit[1])]
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

--- The limits that are given, by the server's names of them.
function M.limits(given)
  local all = {}
  for _, limit in ipairs(M.LIMITS) do
    all[limit[2]] = given[field(limit[1])]
  end
  return all
end

--- The parts of a URL: { tls, host, port }.
function M.address(url)
  local scheme, rest = url:match "^(https?)://([^/]+)/?$"
  local host, port = (rest or ""):match "^%[([%x:.]+)%]:?(%d*)$"
  if not host then host, port = (rest or ""):match "^([%w._-]+):?(%d*)$" end
  port = port == "" and 7470 or tonumber(port)
  if not host or not port or port > 65535 then
    failure.misuse("--listen must be a URL as %s, not %s", M.LISTEN, url)
  end
  return { tls = scheme == "https", host = host, port = port,
           loopback = host:find "^127%." ~= nil or host == "::1"
             or host == "localhost" }
end

return M
