-- SPDX-License-Identifier: Apache-2.0
--- Entries of registries: checks, filters, compares and encodes them. Used by
-- the backends and by their callers.
local buffers = require "string.buffer"
local codec = require "perigee.typed.codec"
local errors = require "perigee.runtime.errors"
local native = require "perigee.native"
local printable = require "perigee.runtime.printable"

local C = native.C

local M = {}

--- The prefix of the names of agents that were given none. A filter without a
-- prefix does not match them.
M.ANONYMOUS = "anonymous-"

-- ---- Checks ----------------------------------------------------------------

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

-- Levels of tables in metadata, and bytes of them as they travel.
local DEEPEST, METADATA = 24, 4096

local function is_number(value) return value - value == 0 end
local function is_text(value) return printable.utf8(value) == value end

-- Checks of what is no table, by its type.
local PLAIN = { boolean = function() return true end, number = is_number,
                string = is_text }

-- Is a table a list without holes, or has it texts for keys?
local function is_regular(value)
  local n = #value
  for key in pairs(value) do
    local fits
    if n > 0 then
      fits = type(key) == "number" and key >= 1 and key <= n and key % 1 == 0
    else
      fits = type(key) == "string" and is_text(key)
    end
    if not fits then return false end
  end
  return true
end

local function travels(value, depth)
  if type(value) ~= "table" then
    local f = PLAIN[type(value)]
    return f ~= nil and f(value)
  end
  if depth == 0 or not is_regular(value) then return false end
  for _, each in pairs(value) do
    if not travels(each, depth - 1) then return false end
  end
  return true
end
jit.off(is_regular)
jit.off(travels)

--- Checks metadata, for all registries alike: what each of them keeps exactly.
-- Returns nil, or what it should be.
function M.wrong_metadata(value)
  if type(value) == "table" and #value == 0 and travels(value, DEEPEST) then
    local out = buffers.new()
    if not codec.pack(out, value) and #out <= METADATA then return end
  end
  return ("a table by texts of such tables, lists, booleans, finite numbers "
    .. "and texts in UTF-8, %d deep at most, in %d bytes")
    :format(DEEPEST, METADATA)
end

local FIELDS = { kind = "string", epoch = "string", services = "table",
                 regions = "table", metadata = "table", weight = "number",
                 state = "string", host = "string", pid = "number",
                 machine = "string", since = "number", term = "number" }

-- A term that no session can reach would have links dial for ever.
local function is_term(value) return is_number(value) and value >= 0 end

--- Checks a value that another process wrote: returns it as the entry of name
-- in scope, without fields that are wrong; or nil if it is not that entry.
function M.trusted(value, scope, name)
  if not M.is_entry(value) or value.name ~= name or value.scope ~= scope then
    return nil
  end
  for field, kind in pairs(FIELDS) do
    if type(value[field]) ~= kind then value[field] = nil end
  end
  if value.term and not is_term(value.term) then value.term = nil end
  return value
end
jit.off(M.trusted)

-- ---- Size ------------------------------------------------------------------

--- Bytes that an entry may have, in any registry that takes no fewer.
M.MOST = tonumber(C.PERIGEE_ENTRY_MAX)

-- A text's quotes and what follows it; a number with all its digits.
local TEXT, NUMBER = 6, 25

local function size_of_text(text)
  local _, long = text:gsub('[%c"/\\\127]', "")
  return #text + 5 * long + TEXT
end

--- Bytes that a value has at most, in every form in which registries keep it.
function M.size(value)
  if type(value) == "string" then return size_of_text(value) end
  if type(value) ~= "table" then return NUMBER end
  local sum = TEXT
  for key, each in pairs(value) do sum = sum + M.size(key) + M.size(each) end
  return sum
end
jit.off(M.size)

-- ---- Filters ---------------------------------------------------------------

--- Does an entry match a filter { kind, prefix, service }?
function M.matches(entry, filter)
  local prefix, name = filter.prefix or "", entry.name
  if name:sub(1, #prefix) ~= prefix then return false end
  if prefix == "" and name:sub(1, #M.ANONYMOUS) == M.ANONYMOUS then
    return false
  end
  if filter.kind and entry.kind ~= filter.kind then return false end
  if not filter.service then return true end
  local services = entry.services       -- a control server has to decode them
  return type(services) == "table" and services[filter.service] ~= nil
end

--- Returns an empty list, and a function that adds an entry (or nil) to the
-- list if the entry matches a filter { kind, prefix, service, limit }. The
-- function returns true once the list is full.
function M.choice(filter)
  local chosen, limit = {}, filter.limit or math.huge
  return chosen, function(entry)
    if entry and M.matches(entry, filter) then chosen[#chosen + 1] = entry end
    return #chosen >= limit
  end
end

local function by_name(a, b) return a.name < b.name end

--- The entries of a list that match a filter { kind, prefix, service, after,
-- limit }, sorted by name. Sorts list.
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

-- ---- Comparison ------------------------------------------------------------

--- Are two values equal, tables by their contents? Goes through each table
-- once, however deep it is nested, since others write what is compared here.
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

--- Are two entries equal, apart from `since`?
function M.unchanged(a, b)
  local since = a.since
  a.since = b.since
  local same = M.same(a, b)
  a.since = since
  return same
end

-- ---- As text ---------------------------------------------------------------

--- Appends an entry to a buffer. Returns what in it cannot be encoded, or nil.
function M.encode(out, entry)
  return (codec.pack(out, entry))
end

--- Decodes length bytes at pointer; nil if they are not valid. Raises nothing
-- but an interrupt.
function M.decode(pointer, length)
  if C.perigee_typed_scan(pointer, length) < 0 then return nil end
  local fine, value = pcall(codec.unpack, pointer, length)
  if fine then return value or nil end
  errors.pass(value)
  return nil
end

return M
