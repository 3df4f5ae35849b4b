-- SPDX-License-Identifier: Apache-2.0
--- The keys of a scope in etcd:
--
--   perigee/SCOPE/name/NAME   the entry as JSON, under its holder's lease
--
-- Characters that names cannot have are written as %XX, so the keys of
-- different names and scopes never clash, and the order of keys is that of
-- names.
local base64 = require "perigee.net.base64"
local percent = require "perigee.runtime.percent"
local text = require "perigee.registry.text"

local M = {}

local function escape(given) return percent.encode(given, "%w._:-") end

local function folder(scope) return "perigee/" .. escape(scope) .. "/name/" end

--- The key of a name, in base64.
function M.name(scope, name)
  return base64.encode(folder(scope) .. escape(name))
end

--- Returns the range of keys, in base64, of the names of a scope: the first
-- key, and the first one beyond. prefix, after: of the names, or nil.
function M.range(scope, prefix, after)
  local first = folder(scope) .. escape(prefix or "")
  local from = after and folder(scope) .. escape(after) .. "\0"
  return base64.encode(from and from > first and from or first),
         base64.encode(first .. "\255")
end

--- The name of which a key in base64 is; nil if it is no such key.
function M.name_of(key, scope)
  local plain, start = base64.decode(key), folder(scope)
  local name = plain and plain:sub(1, #start) == start and plain:sub(#start + 1)
  return name and name:find "^[%w._:-]+$" and name or nil
end

--- The key in base64 that comes next after the last one of a page, which began
-- at from; nil if that is no key behind from.
function M.after(last, from)
  local plain = base64.decode(last)
  return plain and plain >= base64.decode(from)
    and base64.encode(plain .. "\0") or nil
end

--- The entry of name in what a range or an event tells of a key; nil if it is
-- none. In a task: waits if it is long. Its term is the one that is written, by
-- who took the name from another or by a control server, or else the revision
-- that made the key.
function M.entry(found, scope, name, now)
  local entry = text.decode(base64.decode_long(found.value), scope, name, now)
  if not entry then return nil end
  entry.term = entry.term or tonumber(found.create_revision) or 0
  return entry
end

--- The value for an entry, in base64; or nil and why.
function M.value(entry, now)
  local made, why = text.encode(entry, now)
  return made and base64.encode(made), why
end

return M
