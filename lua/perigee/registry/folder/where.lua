-- SPDX-License-Identifier: Apache-2.0
--- Chooses the folder of all names on a host:
--
--   $XDG_RUNTIME_DIR/perigee/SCOPE/; without that variable
--   $TMPDIR or /tmp, then perigee-UID/SCOPE/; if that is another user's
--   $HOME/.cache/perigee/HOST/SCOPE/
--
-- Any user can write to the directory of temporary files, and may make our
-- folder there first. Nobody else can write to the home directory, but other
-- hosts may share it. All processes of a user choose the same folder at any
-- time:
--
--   temporary folder    home's folder   is chosen
--   is this user's      any state       the temporary one
--   is missing          is missing      the temporary one, which is made
--   is missing          is there        home's
--   is another's        any state       home's
--
-- So when home's folder exists and the other user's folder is removed,
-- processes stay with home's.
--
-- C programs choose by native/agent/scope.c. The choice is made here once more,
-- because `perigee doctor` asks for that of a machine which its specs make up.
local errors = require "perigee.runtime.errors"
local log = require "perigee.runtime.log"
local native = require "perigee.native"

local C = native.C

local M = {}

-- The number of tries of made(), as others may make a folder between a look and
-- the making.
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

--- The inputs of a choice: getenv(name), uid, host() and look(path), which
-- returns "own" (a folder of this user's), "missing" or "other".
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

-- The folder under the home directory; nil if that is missing or another
-- user's.
local function at_home(world)
  local home = absolute(world, "HOME")
  if not home or world.look(home .. "/.") ~= "own" then return nil end
  local name = world.host():match "^[^.]*":gsub("[^%w_-]", "_")
  return ("%s/.cache/perigee/%s"):format(home:gsub("/+$", ""), name)
end

--- The folder of all scopes, chosen by the inputs of world (default M.system).
-- Also returns the temporary folder that it replaces, if it is home's.
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

--- Makes or checks a folder: its path, or nil, a kind (denied, unsupported) and
-- why.
function M.folder(path)
  local status = C.perigee_folder(path)
  if status >= 0 then return path end
  return nil, errors.kind(status), ("the registry's folder %s: %s (or name "
    .. "another, by XDG_RUNTIME_DIR or PERIGEE_REGISTRY)"):format(path,
                                                          native.detail())
end

local warned

local function warn(base, instead_of)
  if not instead_of or warned then return end
  warned = true
  log.write("warning", ("%s is another user's, or was: names of agents are in "
    .. "%s"):format(instead_of, base))
end

--- Makes or checks the folder of all names; returns as M.folder does.
--
-- Another process may make home's folder while this one makes the temporary
-- folder. Then this one removes its own folder and uses home's, too. It tries
-- again if the choice has changed meanwhile.
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
