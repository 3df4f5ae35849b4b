-- SPDX-License-Identifier: Apache-2.0
--- The options of a cache that is served, which a file may have, too
-- (cli/server/files).
local failure = require "perigee.cli.failure"
local files = require "perigee.cli.server.files"
local life = require "perigee.cli.server.life"
local listen = require "perigee.cli.server.listen"
local options = require "perigee.cli.options"

local M = {}

M.HTTP = "http://127.0.0.1:8765"
local NAME, MEMORY, LEASE, DRAIN, BODY = "cache:0", "1G", "10s", 10, 2 ^ 20
local LEAST = 2 ^ 20                    -- bytes of a scope

local function evict(text)
  if text == "lru" or text == "lfu" then return text end
  return nil, ("%q is not lru or lfu"):format(text)
end

local function node(text)
  local value = text:match "^%d+$" and tonumber(text)
  if value and value <= 1023 then return value end
  return nil, ("%q is no number of a NUMA node, 0 to 1023"):format(text)
end

local function body(text)
  local value, why = options.size(text)
  if value and value <= 2 ^ 30 then return value end
  return nil, why or ("%s is more than a value may have, 1G"):format(text)
end

-- Options with a value: name, kind, what the value is called, what it is.
local VALUES = {
  { "name", files.text, "NAME", "Its name; default: " .. NAME .. "." },
  { "listen", files.all, "ADDRESS", "An address to listen at, as in "
    .. "tcp://0.0.0.0:7471. May be given again. Each of several scopes "
    .. "listens by itself: tcp://0.0.0.0:0." },
  { "advertise", files.all, "ADDRESS", "An address that others are told in "
    .. "place of those. May be given again." },
  { "memory", options.size, "SIZE", "Memory for values; default: " .. MEMORY
    .. "." },
  { "slab", options.size, "SIZE", "Memory that values of one size share, a "
    .. "power of two; default: a 64th of the memory, 256K to 256M, or a 512th "
    .. "of 128G and more." },
  { "kind", files.text, "KIND", "The kind of that memory: host, or a GPU's, "
    .. "as in cuda:0; default: host." },
  { "node", node, "N", "The NUMA node that its memory comes from." },
  { "lease", options.positive, "TIME", "How long a client may read what it "
    .. "has located; default: " .. LEASE .. "." },
  { "evict", evict, "lru|lfu", "What goes first if it is full: the least "
    .. "recently, or the least often used; default: lru." },
  { "file", files.text, "PATH", "A file for what memory evicts, from which it "
    .. "comes back; of several scopes each has one, PATH.SCOPE." },
  { "file-size", options.size, "SIZE", "Its size, which is taken at once; "
    .. "default: eight times the memory." },
  { "spill", options.size, "SIZE", "Memory of the host for what a GPU's "
    .. "memory (--kind) evicts, in place of a file." },
  { "keep", options.positive, "TIME", "How long its memory stays after its "
    .. "process has ended, for the next one of that name." },
  { "scope", files.all, "SCOPE[=SIZE]", "A scope of names that it serves, with "
    .. "so much of the memory; else scopes have equal parts of the rest. May "
    .. "be given again. Default: $PERIGEE_SCOPE, or default." },
  { "secret", files.all, "SCOPE=FILE", "The secret of a scope, in a file that "
    .. "others cannot read; default: PERIGEE_SECRET, for all of them. May be "
    .. "given again." },
  { "registry", files.text, "URL", "The registry that holds its name; "
    .. "default: $PERIGEE_REGISTRY, or this host's folder." },
  { "drain", options.seconds, "TIME", "How long leases and calls may go on "
    .. ("after SIGTERM; default: %g s."):format(DRAIN) },
  { "http", files.text, "URL", "Serve its entries by HTTP, too, as at "
    .. M.HTTP:gsub("^%w+://", "") .. "." },
  { "http-names", files.text, "HOST,...", "Hosts, joined by commas, by which "
    .. "clients' URLs name the server, besides addresses, localhost and those "
    .. "of the certificate." },
  { "body", body, "SIZE", "The longest value by HTTP, 1G at most; default: "
    .. "1M." },
  { "tokens", files.text, "FILE", "Clients by HTTP need one of the tokens that "
    .. "perigee ctrl token new --store FILE has made." },
}
local FLAGS = {
  { "checksum", "Make a checksum of each value, for clients that check it." },
  { "populate", "All pages of the memory are made at once, so that no "
    .. "put waits." },
  { "huge", "The same, in huge pages of 2M, if the system gives them." },
  { "share", "Processes of this host map memory of --kind cuda, and could "
    .. "write to it." },
  { "insecure", "Serve others than this host by HTTP without TLS and tokens." },
}

-- The names of all, and their kinds.
local NAMES, KNOWN = { "tls-cert", "tls-key", "log", "pid", "config" }, {}
for i = 1, 4 do KNOWN[NAMES[i]] = files.text end
for _, each in ipairs(VALUES) do
  NAMES[#NAMES + 1], KNOWN[each[1]] = each[1], each[2]
end
for _, each in ipairs(FLAGS) do
  NAMES[#NAMES + 1], KNOWN[each[1]] = each[1], files.flag
end
M.NAMES = NAMES

--- Adds all options of a server.
function M.server(parser)
  for _, each in ipairs(VALUES) do
    local option = parser:option("--" .. each[1], each[4]):argname(each[3])
    if each[2] == files.all then
      option:count "*"
    else
      option:convert(each[2])
    end
  end
  for _, each in ipairs(FLAGS) do parser:flag("--" .. each[1], each[2]) end
  listen.tls(parser)
  life.options(parser, "stderr, of start cache-NAME.log in the folder perigee "
    .. "of $XDG_STATE_HOME or ~/.local/state", "cache-NAME.pid there")
end

--- Adds those that say which server is meant.
function M.which(parser)
  parser:option("--name", "The cache's name; default: " .. NAME .. ".")
    :argname "NAME"
  life.which(parser)
end

-- ---- Reading ---------------------------------------------------------------

-- A path beside the other files of the cache's.
local function beside(given, suffix)
  return ("%s/cache-%s%s"):format(files.made_folder("--pid and --log"),
                                  given.name, suffix)
end

-- Has `scope` as perigee.cache takes it: scope, or scopes.
local function scopes_of(given)
  local all, seen, n = {}, {}, 0
  for _, text in ipairs(given.scope or {}) do
    local name, size = text:match "^(.-)=(.*)$"
    local bytes, why = nil, nil
    if size then bytes, why = options.size(size) end
    if bytes and bytes < LEAST then why = "it needs 1M at least" end
    local check = require "perigee.runtime.check"
    why = why or check.name(name or text) and "its name must be "
      .. check.name(name or text)
    if seen[name or text] then why = "it is there twice" end
    if why then failure.misuse("--scope %s: %s", text, why) end
    n, seen[name or text] = n + 1, true
    if size then all[name] = bytes else all[#all + 1] = text end
  end
  return n > 0 and all or nil, n
end

-- The secrets of scopes, as perigee.cache takes them; nil: that of the
-- environment.
local function secrets_of(given)
  local all
  for _, text in ipairs(given.secret or {}) do
    local scope, path = text:match "^(.-)=(.+)$"
    if not scope then
      failure.misuse("--secret %s: it has to be SCOPE=FILE", text)
    end
    all = all or {}
    all[scope] = "file:" .. files.absolute(path)
  end
  return all
end

-- Returns the memory of the machine, or what control groups leave of it.
local function machine_memory()
  local machine = require "perigee.cli.doctor.machine".new()
  local kib = (machine:read "/proc/meminfo" or ""):match "MemTotal:%s*(%d+)"
  local limit = require "perigee.cli.doctor.cgroup".memory(machine)
  return math.min(kib and kib * 1024 or math.huge, limit or math.huge)
end

-- A cache takes its memory when values come: too much of it would end the
-- process long after it was started.
local function check_memory(given, scopes)
  local size = require "perigee.runtime.units".format_size
  local told, is_host = 0, (given.kind or "host") == "host"
  for name, bytes in pairs(scopes or {}) do
    told = told + (type(name) == "string" and bytes or 0)
  end
  if told > (given.memory or math.huge) then
    failure.misuse("--scope: they have %s, and --memory is %s", size(told),
                   size(given.memory))
  end
  local bytes = is_host and math.max(given.memory or 0, told) or given.spill
  local most = machine_memory()
  if bytes and bytes > most then
    failure.misuse("--%s %s: there are %s of memory here", is_host and "memory"
      or "spill", size(bytes), size(most))
  end
end

local function check_ports(given, count)
  for _, address in ipairs(count > 1 and given.listen or {}) do
    local port = address:match "^tcp://.*:(%d+)$"
    if port and port ~= "0" then
      failure.misuse("--listen %s: several scopes cannot share a port; give "
        .. "port 0, and clients find the cache by its name", address)
    end
  end
end

--- Completes options by those of the file and the defaults.
function M.complete(given)
  files.read_config(given, KNOWN)
  given.name = given.name or NAME
  local wrong = require "perigee.runtime.check".name(given.name)
  if wrong then failure.misuse("--name must be %s", wrong) end
  given.pid = given.pid or beside(given, ".pid")
  given.drain = given.drain or DRAIN
  given.body = given.body or BODY
  return given
end

--- The same for `start`, whose server has a log.
function M.complete_start(given)
  M.complete(given)
  given.log = given.log or beside(given, ".log")
  return given
end

--- The options of perigee.cache.
function M.of_cache(given)
  local scopes, count = scopes_of(given)
  check_ports(given, count)
  check_memory(given, scopes)
  local function some(list) return list and list[1] and list or nil end
  return {
    name = given.name, listen = some(given.listen),
    advertise = some(given.advertise), memory = given.memory,
    slab = given.slab, lease = given.lease, evict = given.evict,
    file = given.file and files.absolute(given.file),
    file_size = given.file_size, spill = given.spill, keep = given.keep,
    checksum = given.checksum,
    kind = given.kind, share = given.share, populate = given.populate,
    huge = given.huge, node = given.node,
    scopes = scopes, secret = secrets_of(given),
  }
end

--- Where it serves by HTTP; nil: it does not.
function M.address(given)
  return given.http and listen.address(given.http, "--http", M.HTTP, "http")
end

--- The hosts of --http-names, as the server takes them.
function M.names(given)
  return ((given.http_names or ""):gsub("[,%s]+", " "):match "^ ?(.-) ?$")
end

return M
