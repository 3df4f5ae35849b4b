-- SPDX-License-Identifier: Apache-2.0
--- Entries of registries: what is one, which of them are asked for, and when
-- two are the same. For the backends, and for who asks them.
local codec = require "perigee.codec"
local native = require "perigee.native"

local C = native.C

local M = {}

--- How names begin that nobody is to find: they are listed for those only who
-- ask for names that begin so.
M.ANONYMOUS = "anonymous-"

-- ---- What is one -----------------------------------------------------------

local function is_addresses(value)
  if type(value) ~= "table" then return false end
  for _, address in ipairs(value) do
    if type(address) ~= "string" then return false end
  end
  return value[1] ~= nil
end

--- Is it a table with addresses?
function M.is_entry(value)
  return type(value) == "table" and is_addresses(value.addresses)
end

local FIELDS = { kind = "string", epoch = "string", services = "table",
                 regions = "table", metadata = "table", weight = "number",
                 state = "string", host = "string", pid = "number",
                 since = "number" }

--- An entry of name in scope, of what somebody else has written: without
-- fields of other types than theirs; or nil if it is none of that name.
function M.trusted(value, scope, name)
  if not M.is_entry(value) or value.name ~= name or value.scope ~= scope then
    return nil
  end
  for field, kind in pairs(FIELDS) do
    if type(value[field]) ~= kind then value[field] = nil end
  end
  return value
end
jit.off(M.trusted)

-- ---- Which are asked for ---------------------------------------------------

--- Is it one that a filter { kind, prefix, service } asks for?
function M.matches(entry, filter)
  local prefix, name = filter.prefix or "", entry.name
  if name:sub(1, #prefix) ~= prefix then return false end
  if prefix == "" and name:sub(1, #M.ANONYMOUS) == M.ANONYMOUS then
    return false
  end
  if filter.kind and entry.kind ~= filter.kind then return false end
  local services = entry.services
  return not filter.service
    or type(services) == "table" and services[filter.service] ~= nil
end

local function by_name(a, b) return a.name < b.name end

--- Those of a list that a filter { kind, prefix, service, after, limit } asks
-- for, by name.
function M.select(list, filter)
  local chosen = {}
  table.sort(list, by_name)
  for _, entry in ipairs(list) do
    if #chosen >= (filter.limit or math.huge) then break end
    if (not filter.after or entry.name > filter.after)
      and M.matches(entry, filter) then
      chosen[#chosen + 1] = entry
    end
  end
  return chosen
end

-- ---- The same --------------------------------------------------------------

--- Are two values the same, all that is in them? Each table is gone through
-- once, however deep it is nested: others write what is compared here.
function M.same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in pairs(a) do
    if not M.same(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end
jit.off(M.same)

--- Do two entries tell the same? How long they have been there is nothing new.
function M.unchanged(a, b)
  local since = a.since
  a.since = b.since
  local same = M.same(a, b)
  a.since = since
  return same
end

-- ---- As text ---------------------------------------------------------------

--- Appends an entry to a buffer; what of it cannot be written, or nil.
function M.encode(out, entry)
  return (codec.pack(out, entry))
end

--- What length bytes at pointer say, or nil if that is nothing. Never raises.
function M.decode(pointer, length)
  if C.perigee_typed_scan(pointer, length) < 0 then return nil end
  local fine, value = pcall(codec.unpack, pointer, length)
  return fine and value or nil
end

return M
