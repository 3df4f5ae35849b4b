-- SPDX-License-Identifier: Apache-2.0
--- Reads and writes the entries of names in a folder. A holder's entry is in
-- the lock file of its name, so that it ends with the name.
local codec = require "perigee.typed.codec"
local entries = require "perigee.registry.entry"
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"

local ffi = require "ffi"
local C = native.C

local M = {}

local buffer, bytes = native.bytes_t(65536), 65536

local function grow(least)
  bytes = math.max(least, 2 * bytes)
  buffer = native.bytes_t(bytes)
end

-- ---- Writing ---------------------------------------------------------------

--- Writes entry to the descriptor of its name. True; or nil, a kind and why.
-- `since` is written as the monotonic time at which it began.
function M.write(descriptor, entry)
  local out = codec.acquire()
  local began = entry.since or 0
  entry.since = native.clock() - began * 1e9
  local why = entries.encode(out, entry)
  entry.since = began
  local status = C.PERIGEE_OK
  if not why then
    local pointer, length = out:ref()
    status = C.perigee_entry_write(descriptor, pointer, length)
  end
  codec.release(out)
  if why then return nil, "protocol", "its entry has " .. why end
  if status == C.PERIGEE_INVALID then
    return nil, "too_large", ("its entry has more than %d bytes")
      :format(tonumber(C.PERIGEE_ENTRY_MAX))
  end
  if status < 0 then return nil, errors.kind(status), errors.text(status) end
  return true
end

-- ---- Reading ---------------------------------------------------------------

local function text_length(path, name)
  local length = tonumber(C.perigee_entry_read(path, name, buffer, bytes))
  if length ~= C.PERIGEE_TOO_LARGE then return length end
  grow(tonumber(C.PERIGEE_ENTRY_MAX))
  return tonumber(C.perigee_entry_read(path, name, buffer, bytes))
end

--- The entry of name's holder; true if the holder lives but has no valid entry
-- (or none yet); nil if no process has the name; or nil, a kind and why it
-- cannot be read.
function M.read(path, scope, name)
  local length = text_length(path, name)
  if length == C.PERIGEE_NOT_FOUND then return nil end
  if length == C.PERIGEE_NO_MEMORY then return nil, errors.told(length) end
  local value = length >= 0 and entries.decode(buffer, length)
  local entry = value and entries.trusted(value, scope, name)
  if not entry then return true end
  if entry.since then
    entry.since = math.max(0, (native.clock() - entry.since) * 1e-9)
  end
  return entry
end

local function listed(list, path)
  local length = tonumber(C[list](path, buffer, bytes))
  if length == C.PERIGEE_NO_MEMORY then return nil, errors.told(length) end
  if length > bytes then
    grow(length)
    return listed(list, path)
  end
  return ffi.string(buffer, math.max(0, length)):gmatch "[^\n]+"
end

--- An iterator over the names in a folder, those of dead processes included; or
-- nil, a kind and why.
function M.names(path) return listed("perigee_names", path) end

--- An iterator over the scopes that have a folder in this one; returns as
-- M.names does.
function M.scopes(base) return listed("perigee_scopes", base) end

--- The entries of all live holders that have written one; or nil, a kind and
-- why.
function M.all(path, scope)
  local list, names = {}, { M.names(path) }
  if not names[1] then return unpack(names, 1, 3) end
  for name in names[1] do
    local entry, kind, why = M.read(path, scope, name)
    if kind then return nil, kind, why end
    if type(entry) == "table" then list[#list + 1] = entry end
  end
  return list
end

return M
