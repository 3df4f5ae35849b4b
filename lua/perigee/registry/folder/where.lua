-- SPDX-License-Identifier: Apache-2.0
--- Where the folder of all names on a host is:
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

-- Others may make theirs between our look and our making.
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

-- ---- Making ---------------------------------------------------------------

--- Makes or checks a folder: its path, or nil, a kind (denied) and why.
function M.folder(path)
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

--- Makes or checks that of all names: as M.folder.
--
-- Who has just made the temporary folder while somebody went home goes there,
-- too. In between others may have made theirs: then once more.
function M.made()
  local base, instead_of, fine, kind, why
  for _ = 1, ATTEMPTS do
    base, instead_of = M.base()
    local home = not instead_of and M.system.look(base) == "missing"
      and base == temporary(M.system) and at_home(M.system)
    fine, kind, why = M.folder(base)
    if fine and home and M.system.look(home) == "own" then os.remove(base) end
    if base == M.base() then break end
  end
  if not fine then return nil, kind, why end
  warn(base, instead_of)
  return base
end

return M
