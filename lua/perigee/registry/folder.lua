-- SPDX-License-Identifier: Apache-2.0
--- The registry of names on one host: a private folder for each scope, in it
-- for each live name a lock, held for life, and a socket.
--
--   $XDG_RUNTIME_DIR/perigee/SCOPE/, or without that variable
--   $TMPDIR or /tmp, then perigee-UID/SCOPE/
local errors = require "perigee.errors"
local native = require "perigee.native"

local C = native.C

local M = {}

-- Somebody who gives the last name back may remove the folder between our
-- making it and our taking a name in it.
local ATTEMPTS = 10

--- The folder of all scopes of a user (nil: this one) in an environment.
function M.base(getenv, uid)
  local runtime = getenv("XDG_RUNTIME_DIR")
  if runtime and runtime:sub(1, 1) == "/" then return runtime .. "/perigee" end
  local temporary = getenv("TMPDIR")
  if not temporary or temporary:sub(1, 1) ~= "/" then temporary = "/tmp" end
  return ("%s/perigee-%d"):format((temporary:gsub("/+$", "")),
                                  uid or native.uid())
end

--- The folder of a scope, whether it is there or not.
function M.path(scope)
  return M.base(os.getenv) .. "/" .. scope
end

--- Where the agent of that name listens.
function M.address(scope, name)
  return "unix:" .. M.path(scope) .. "/" .. name .. ".sock"
end

local function folder(path)
  local status = C.perigee_folder(path)
  if status >= 0 then return true end
  local why = status == C.PERIGEE_DENIED
    and "it must be a folder of this user's, with no access for others"
    or status == C.PERIGEE_SYSTEM and "it cannot be made or looked at"
    or errors.text(status)
  return nil, errors.new(errors.kind(status),
    ("the registry's folder %s: %s"):format(path, why), false)
end

--- Makes or checks the scope's folder: true, or nil and an error (kind denied).
function M.prepare(scope)
  local fine, err = folder(M.base(os.getenv))
  if not fine then return nil, err end
  return folder(M.path(scope))
end

--- Takes name in scope for this process: what release takes and the address to
-- listen at; or nil and an error (kind name_taken while a live owner has it,
-- too_large if the address is).
function M.hold(scope, name)
  local address = M.address(scope, name)
  local doing = ("taking the name %s in scope %s"):format(name, scope)
  local length = #address - #"unix:"
  if length > C.PERIGEE_ADDRESS_MAX then
    return nil, errors.new("too_large", ("%s: the path of its socket has %d "
      .. "bytes, more than %d: %s"):format(doing, length,
        tonumber(C.PERIGEE_ADDRESS_MAX), address), false)
  end
  local descriptor
  for _ = 1, ATTEMPTS do
    local fine, err = M.prepare(scope)
    if not fine then return nil, err end
    descriptor = C.perigee_name_hold(M.path(scope), name)
    if descriptor ~= C.PERIGEE_SYSTEM then break end
  end
  if descriptor < 0 then
    local why = descriptor == C.PERIGEE_NAME_TAKEN
      and "a live process holds it" or errors.text(descriptor)
    return nil, errors.new(errors.kind(descriptor), doing .. ": " .. why, false)
  end
  return descriptor, address
end

--- Gives a name back; its files go, and the scope's folder with its last name.
function M.release(scope, descriptor)
  C.perigee_name_release(descriptor)
  os.remove(M.path(scope))              -- a folder goes only if it is empty
end

return M
