-- SPDX-License-Identifier: Apache-2.0
--- The registry of names on one host: a private folder for each scope, in it
-- for each live name a lock, held for life, and a socket. A name is a place
-- here: who holds it listens at its socket, and is found there. So agents whose
-- names are in another registry have a place in the folder, too, without a name
-- that anybody would look for.
--
--   $XDG_RUNTIME_DIR/perigee/SCOPE/, or one of those that folder/where tells
--
-- A name has no lease: it is its holder's until that ends, and is free at once
-- then. What a holder tells of itself lies in the lock's file
-- (folder/entries), and who watches is told by the kernel (folder/news).
local entries = require "perigee.registry.folder.entries"
local entry_of = require "perigee.registry.entry"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local native = require "perigee.native"
local news = require "perigee.registry.folder.news"
local signals = require "perigee.signal"
local where = require "perigee.registry.folder.where"

local C = native.C

--- places: agents listen in it.
local M = { places = true, base = where.base, system = where.system }

-- Somebody who gives the last name back may remove the folder between our
-- making it and our taking a name in it; others may make theirs meanwhile.
local ATTEMPTS = 10

-- ---- Folders ----------------------------------------------------------------

--- The folder of a scope, whether it is there or not.
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

-- Nothing, or why a socket cannot be there.
local function too_long(address)
  local length = #address - #"unix:"
  if length <= C.PERIGEE_ADDRESS_MAX then return end
  return "too_large", ("the path of its socket has %d bytes, more than %d: %s")
    :format(length, tonumber(C.PERIGEE_ADDRESS_MAX), address)
end

-- Makes or checks a scope's: as folder().
local function prepare(self, scope)
  local base, kind, why = self.root
  if not base then base, kind, why = where.made() end
  if not base then return nil, kind, why end
  return where.folder(base .. "/" .. scope)
end

-- ---- Names ------------------------------------------------------------------

local held = {}                         -- by descriptor: the folder

--- How names begin that nobody will ever take again: what those leave that a
-- signal ended is removed by the next agent of their scope.
M.ANONYMOUS = entry_of.ANONYMOUS

local TAKEN = "a live process holds it"

-- A descriptor and the address, or the core's status, or nil, a kind and why.
local function hold(self, scope, name)
  local path, kind, why = prepare(self, scope)
  if not path then return nil, kind, why end
  local address = socket(path, name)
  kind, why = too_long(address)
  if kind then return nil, kind, why end
  local descriptor = C.perigee_name_hold(path, name)
  if descriptor >= 0 then
    held[descriptor] = path
    C.perigee_names_sweep(path, M.ANONYMOUS)
  end
  return descriptor, address
end

-- Who has it, as far as that is known.
local function taken(self, entry)
  local other = entries.read(self:path(entry.scope), entry.scope, entry.name)
  if type(other) ~= "table" or not other.pid then return TAKEN end
  return ("process %d on %s holds it"):format(other.pid, other.host or "?")
end

local function told(self, descriptor, entry)
  if not entry.addresses or not entry.addresses[1] then return true end
  local fine, kind, why = entries.write(descriptor, entry)
  if not fine then self:release(descriptor) end
  return fine, kind, why
end

--- Takes entry.name in entry.scope for this process: what release takes and the
-- address at which to listen; or nil, a kind and why (name_taken while a live
-- owner has it, too_large if the address is). What the entry tells is told from
-- now on if it has addresses, else by the first renew.
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
    return nil, errors.kind(descriptor), errors.text(descriptor)
  end
  local fine, kind
  fine, kind, why = told(self, descriptor, entry)
  if not fine then return nil, kind, why end
  return descriptor, address
end

--- Tells entry, in place of what was told before. Without one there is nothing
-- to do: a lock needs no renewal.
function M:renew(descriptor, entry)
  if not entry then return true end
  return entries.write(descriptor, entry)
end

--- Gives a name back; its files go, and the scope's folder with its last name.
function M:release(descriptor)
  C.perigee_name_release(descriptor)
  os.remove(held[descriptor])           -- a folder goes only if it is empty
  held[descriptor] = nil
end

-- ---- Asking ----------------------------------------------------------------

--- Is there something of that path on this host?
function M.is_there(path)
  return M.system.look(path) ~= "missing"
end

--- What who has that name tells; where it listens, if it has told nothing yet.
-- Nil if nobody alive has it.
function M:lookup(scope, name)
  local path = self:path(scope)
  local address = socket(path, name)
  local kind, why = too_long(address)
  if kind then return nil, kind, why end
  local entry = entries.read(path, scope, name)
  if entry ~= true then return entry end
  return { name = name, scope = scope, addresses = { address } }
end

--- The entries of the living, as a filter asks for them.
function M:list(scope, filter)
  return entry_of.select(entries.all(self:path(scope), scope), filter)
end

local function everything(path, scope, watch, filter)
  return { revision = news.revision(watch),
           entries = entry_of.select(entries.all(path, scope), filter) }
end

local function changes(path, scope, watch, names)
  local list = {}
  for i, name in ipairs(names) do
    local entry = entries.read(path, scope, name)
    list[i] = { name = name, entry = type(entry) == "table" and entry or nil }
  end
  return { revision = news.revision(watch), changes = list }
end

-- The future of what has changed, once something has.
local function next_changes(path, scope, watch, from)
  local future, next = futures.new(false, "watching " .. path), news.next(watch)
  future.inner = next
  signals.attach(next, signals.new(1, function()
    local fine, kind, why = futures.results(next)
    if not fine then return futures.settle(future, nil, kind, why) end
    futures.settle(future, changes(path, scope, watch,
                                   news.since(watch, from) or {}))
  end))
  return future
end

--- All there is, or what has changed since filter.from, once something has.
function M:watch(scope, filter)
  local path, kind, why = prepare(self, scope)
  if not path then return nil, kind, why end
  local watch
  watch, kind, why = news.open(path)
  if not watch then return nil, kind, why end
  local from = filter.from
  local names = from and news.since(watch, from)
  if not names then return everything(path, scope, watch, filter) end
  if #names > 0 then return changes(path, scope, watch, names) end
  return next_changes(path, scope, watch, from)
end

return M
