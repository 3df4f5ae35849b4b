-- SPDX-License-Identifier: Apache-2.0
--- The registry of names on one host: a private folder for each scope, in it
-- for each live name a lock, held for life, and a socket. A name is a place
-- here: who holds it listens at its socket, and is found there. So agents whose
-- names are in another registry have a place in the folder, too, without a name
-- that anybody would look for.
--
--   $XDG_RUNTIME_DIR/perigee/SCOPE/, or without that variable
--   $TMPDIR or /tmp, then perigee-UID/SCOPE/, or where that is another's
--   $HOME/.cache/perigee/HOST/SCOPE/
--
-- Anybody can write where temporary files are, and may make our folder there
-- first; nobody else can at home, which other hosts may share. All processes of
-- a user choose alike, whenever they look:
--
--   the temporary one   and home's    is chosen
--   is this user's      as it may be  the temporary one
--   is missing          is missing    the temporary one, to be made
--   is missing          is there      home's
--   is another's        as it may be  home's
--
-- So once home's is there, to take the other's folder away calls nobody back.
local errors = require "perigee.errors"
local log = require "perigee.log"
local native = require "perigee.native"

local C = native.C

local M = {}

-- Somebody who gives the last name back may remove the folder between our
-- making it and our taking a name in it; others may make theirs meanwhile.
local ATTEMPTS = 10

-- ---- Choosing ---------------------------------------------------------------

local LOOKS = { [C.PERIGEE_OK] = "own", [C.PERIGEE_NOT_FOUND] = "missing",
                [C.PERIGEE_DENIED] = "other" }

local function host()
  local file = io.open "/proc/sys/kernel/hostname"
  local name = file and file:read "*l" or ""
  if file then file:close() end
  return name
end

--- What a choice is made by: getenv(name), uid, host() and look(path), which is
-- "own" (a folder of this user's), "missing" or "other".
M.system = {
  getenv = os.getenv, uid = native.uid(), host = host,
  look = function(path) return LOOKS[C.perigee_folder_look(path)] end,
}

local function absolute(world, name)
  local path = world.getenv(name)
  return path and path:sub(1, 1) == "/" and path or nil
end

local function temporary(world)
  local path = absolute(world, "TMPDIR") or "/tmp"
  return ("%s/perigee-%d"):format((path:gsub("/+$", "")), world.uid)
end

-- nil: there is no home, or it is another's.
local function at_home(world)
  local home = absolute(world, "HOME")
  if not home or world.look(home .. "/.") ~= "own" then return nil end
  local name = world.host():match "^[^.]*":gsub("[^%w_-]", "_")
  return ("%s/.cache/perigee/%s"):format(home:gsub("/+$", ""), name)
end

--- The folder of all scopes in a world (nil: this one), and, if it is not there
-- that it would be, but for another's: where.
function M.base(world)
  world = world or M.system
  local runtime = absolute(world, "XDG_RUNTIME_DIR")
  if runtime then return runtime .. "/perigee" end
  local first = temporary(world)
  local there = world.look(first)
  if there == "own" then return first end
  local home = at_home(world)
  if not home or there == "missing" and world.look(home) ~= "own" then
    return first
  end
  return home, first
end

-- ---- Folders ----------------------------------------------------------------

--- The folder of a scope, whether it is there or not.
function M.path(scope)
  return M.base() .. "/" .. scope
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

-- Makes or checks one: its path, or nil, a kind (denied) and why.
local function folder(path)
  local status = C.perigee_folder(path)
  if status >= 0 then return path end
  local why = status == C.PERIGEE_DENIED
    and "it must be a folder of this user's, with no access for others (or "
      .. "name another, by XDG_RUNTIME_DIR)"
    or status == C.PERIGEE_SYSTEM and "it cannot be made or looked at"
    or errors.text(status)
  return nil, errors.kind(status), ("the registry's folder %s: %s"):format(path,
                                                                           why)
end

local warned

local function warn(base, instead_of)
  if not instead_of or warned then return end
  warned = true
  log.write("warning", ("%s is another user's, or was: names of agents are in "
    .. "%s"):format(instead_of, base))
end

-- Who has just made the temporary folder while somebody went home goes there,
-- too. In between others may have made theirs: then once more.
local function made()
  local base, instead_of, fine, kind, why
  for _ = 1, ATTEMPTS do
    base, instead_of = M.base()
    local home = not instead_of and M.system.look(base) == "missing"
      and base == temporary(M.system) and at_home(M.system)
    fine, kind, why = folder(base)
    if fine and home and M.system.look(home) == "own" then os.remove(base) end
    if base == M.base() then break end
  end
  if not fine then return nil, kind, why end
  warn(base, instead_of)
  return base
end

-- Makes or checks a scope's: as folder().
local function prepare(scope)
  local base, kind, why = made()
  if not base then return nil, kind, why end
  return folder(base .. "/" .. scope)
end

-- ---- Names ------------------------------------------------------------------

local held = {}                         -- by descriptor: the folder

--- How names begin that nobody will ever take again: what those leave that a
-- signal ended is removed by the next agent of their scope.
M.ANONYMOUS = "anonymous-"

local TAKEN = "a live process holds it"

-- A descriptor and the address, or the core's status, or nil, a kind and why.
local function hold(scope, name)
  local path, kind, why = prepare(scope)
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

--- Takes entry.name in entry.scope for this process: what release takes and the
-- address at which to listen; or nil, a kind and why (name_taken while a live
-- owner has it, too_large if the address is).
function M:hold(entry)
  local descriptor, address, why
  for _ = 1, ATTEMPTS do
    descriptor, address, why = hold(entry.scope, entry.name)
    local gone = descriptor == C.PERIGEE_SYSTEM
      or not descriptor and address == "unsupported"
    if not gone then break end
  end
  if not descriptor then return nil, address, why end
  if descriptor >= 0 then return descriptor, address end
  if descriptor == C.PERIGEE_NAME_TAKEN then return nil, "name_taken", TAKEN end
  return nil, errors.kind(descriptor), errors.text(descriptor)
end

--- Gives a name back; its files go, and the scope's folder with its last name.
function M:release(descriptor)
  C.perigee_name_release(descriptor)
  os.remove(held[descriptor])           -- a folder goes only if it is empty
  held[descriptor] = nil
end

--- Is there something of that path on this host?
function M.is_there(path)
  return M.system.look(path) ~= "missing"
end

--- Where who has that name listens, who may have died. Nil if nobody does.
function M:lookup(scope, name)
  local address = socket(M.path(scope), name)
  local kind, why = too_long(address)
  if kind then return nil, kind, why end
  if not M.is_there(address:match "^unix:(.*)$") then return nil end
  return { name = name, scope = scope, addresses = { address } }
end

return M
