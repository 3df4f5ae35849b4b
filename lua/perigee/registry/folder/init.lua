-- SPDX-License-Identifier: Apache-2.0
--- The registry of names on one host: a private folder for each scope. Each
-- live name has a lock file there, which its holder keeps locked for life, and
-- a socket. The holder of a name listens at the name's socket, and peers find
-- it there. Agents whose names are in another registry also hold a name in the
-- folder, for the socket, but one that nobody looks up.
--
--   $XDG_RUNTIME_DIR/perigee/SCOPE/, or a folder that folder/where describes
--
-- A name has no lease: its holder has it until the holder ends, and then it is
-- free at once. A holder writes its entry into the lock file (folder/entries),
-- and watchers learn of changes from the kernel (folder/news).
local entries = require "perigee.registry.folder.entries"
local entry_of = require "perigee.registry.entry"
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"
local news = require "perigee.registry.folder.news"
local where = require "perigee.registry.folder.where"

local C = native.C

--- places: agents listen at sockets in this registry.
local M = { places = true, base = where.base, system = where.system }

-- The number of tries of hold(). A process that releases the last name removes
-- the folder. It may do so after this process has made the folder and before
-- this process has taken a name in it.
local ATTEMPTS = 10

-- ---- Folders ----------------------------------------------------------------

--- The path of a scope's folder, whether it exists or not.
function M:path(scope)
  return (self.root or M.base()) .. "/" .. scope
end

--- The registry that is in a folder at root, an absolute path.
function M.at(root)
  return setmetatable({ root = root }, { __index = M })
end

local function socket(path, name)
  return "unix:" .. path .. "/" .. name .. ".sock"
end

-- Nothing, or a kind and why a socket cannot have this address.
local function too_long(address)
  local length = #address - #"unix:"
  if length <= C.PERIGEE_ADDRESS_MAX then return end
  return "too_large", ("the path of its socket has %d bytes, more than %d: %s")
    :format(length, tonumber(C.PERIGEE_ADDRESS_MAX), address)
end

-- Makes or checks the folder of a scope; returns as where.folder does.
local function prepare(self, scope)
  local base, kind, why = self.root
  if not base then base, kind, why = where.made() end
  if not base then return nil, kind, why end
  return where.folder(base .. "/" .. scope)
end

-- ---- Names ------------------------------------------------------------------

local held = {}                         -- { path, term }, by descriptor

--- The prefix of names that are never taken a second time. The next agent in
-- the scope removes the files of such a name if a signal has killed its holder.
M.ANONYMOUS = entry_of.ANONYMOUS

local function is_anonymous(name)
  return name:sub(1, #M.ANONYMOUS) == M.ANONYMOUS
end

local TAKEN = "a live process holds it"

-- The number of a taking: the microseconds since the host began. No two takings
-- of a name share one, as it takes longer to release a name.
local function term() return math.floor(native.uptime() * 1e-3) end

-- Tries once to take a name: a descriptor (or a negative status of the core)
-- and the socket's address; or nil, a kind and why.
local function hold(self, scope, name)
  local path, kind, why = prepare(self, scope)
  if not path then return nil, kind, why end
  local address = socket(path, name)
  kind, why = too_long(address)
  if kind then return nil, kind, why end
  local descriptor = C.perigee_name_hold(path, name)
  if descriptor >= 0 then
    held[descriptor] = { path = path, term = term() }
    C.perigee_names_sweep(path, M.ANONYMOUS)
  end
  return descriptor, address
end

-- Text that says which process holds the name, as far as that is known.
local function taken(self, entry)
  local other = entries.read(self:path(entry.scope), entry.scope, entry.name)
  if type(other) ~= "table" or not other.pid then return TAKEN end
  return ("process %d on %s holds it"):format(other.pid, other.host or "?")
end

local function told(self, descriptor, entry)
  entry.term = held[descriptor].term
  if not entry.addresses or not entry.addresses[1] then return true end
  local fine, kind, why = entries.write(descriptor, entry)
  if not fine then self:release(descriptor) end
  return fine, kind, why
end

--- Takes entry.name in entry.scope for this process. Returns the descriptor for
-- release and the address at which to listen; or nil, a kind and why
-- (name_taken while a live process has it, too_large if the address is too
-- long). Publishes the entry if it has addresses; else the first renew does.
function M:hold(entry)
  local descriptor, address, why
  for _ = 1, ATTEMPTS do
    descriptor, address, why = hold(self, entry.scope, entry.name)
    local gone = descriptor == C.PERIGEE_SYSTEM
      or not descriptor and address == "unsupported"
    if not gone then break end
  end
  if not descriptor then return nil, address, why end
  if descriptor == C.PERIGEE_NAME_TAKEN then
    return nil, "name_taken", taken(self, entry)
  end
  if descriptor < 0 then
    return nil, errors.told(descriptor)
  end
  local fine, kind
  fine, kind, why = told(self, descriptor, entry)
  if not fine then return nil, kind, why end
  return descriptor, address
end

--- Publishes entry in place of the one before. Without an entry it does
-- nothing, since a lock needs no renewal. Any agent may take the name of one
-- that drains.
function M:renew(descriptor, entry)
  if not entry then return true end
  entry.term = held[descriptor].term
  local fine, kind, why = entries.write(descriptor, entry)
  if kind == "too_large" then return true, kind, why end
  if fine and entry.state == "draining" and not is_anonymous(entry.name) then
    C.perigee_name_yield(descriptor)
  end
  return fine, kind, why
end

--- Releases a name and removes its files, and the scope's folder after the last
-- name.
function M:release(descriptor)
  C.perigee_name_release(descriptor)
  C.perigee_names_end(held[descriptor].path)
  held[descriptor] = nil
end

-- ---- Asking ----------------------------------------------------------------

--- Does a path exist on this host?
function M.is_there(path)
  return M.system.look(path) ~= "missing"
end

--- The entry of a name's holder; only its address if it has published nothing
-- yet. Nil if no live process has the name.
function M:lookup(scope, name)
  local path = self:path(scope)
  local address = socket(path, name)
  local kind, why = too_long(address)
  if kind then return nil, kind, why end
  local entry
  entry, kind, why = entries.read(path, scope, name)
  if entry ~= true then return entry, kind, why end
  return { name = name, scope = scope, addresses = { address } }
end

-- The entries of live processes that match filter; or nil, a kind and why.
local function chosen(path, scope, filter)
  local all, kind, why = entries.all(path, scope)
  if not all then return nil, kind, why end
  return entry_of.select(all, filter)
end

--- The entries of live processes that match filter.
function M:list(scope, filter)
  return chosen(self:path(scope), scope, filter)
end

local function everything(path, scope, watch, filter)
  local revision = watch.changes:revision()
  local list, kind, why = chosen(path, scope, filter)
  if not list then return nil, kind, why end
  return { revision = revision, entries = list }
end

local function changes(path, scope, watch, from)
  local list = {}
  for i, name in ipairs(watch.changes:since(from) or {}) do
    local entry, kind, why = entries.read(path, scope, name)
    if kind then return nil, kind, why end
    list[i] = { name = name, entry = type(entry) == "table" and entry or nil }
  end
  return { revision = watch.changes:revision(), changes = list }
end

--- All entries; or with filter.from, what has changed since that revision, as
-- soon as something has.
function M:watch(scope, filter)
  local path, kind, why = prepare(self, scope)
  if not path then return nil, kind, why end
  local watch
  watch, kind, why = news.open(path)
  if not watch then return nil, kind, why end
  local from = filter.from
  local names = from and watch.changes:since(from)
  if not names then return everything(path, scope, watch, filter) end
  if #names > 0 then return changes(path, scope, watch, from) end
  return watch.changes:next(changes, path, scope, watch, from)
end

return M
