-- SPDX-License-Identifier: Apache-2.0
--- The records of a server that has a file of its own (control/state), outside
-- of Lua's heap. In Lua's heap 100,000 of them took 110 MiB. The heap stayed as
-- large when they were gone, and the collector went through it again and again.
--
-- A record has the fields that other modules know a record by: collection,
-- name, text (JSON of an object, without its last brace), kind, epoch, term and
-- services, which are as it was made; revision, ttl (seconds, or 0), began,
-- deadline and slot (of its lease), which are numbers and may be set.
--
-- A record is its maker's, who frees it. So nobody keeps one beyond the request
-- that he has found it for.
local control = require "perigee.net.native"

local ffi = require "ffi"
local json = require "cjson.safe"
local C = control.C

local M = {}

local PART = { name = C.PERIGEE_KNOWN_NAME, text = C.PERIGEE_KNOWN_TEXT,
               kind = C.PERIGEE_KNOWN_KIND, epoch = C.PERIGEE_KNOWN_EPOCH }
local SERVICES = C.PERIGEE_KNOWN_SERVICES

local from = ffi.new "struct perigee_known_from"

-- Collections by number, as long as somebody else has them.
local collections = setmetatable({}, { __mode = "v" })
local numbers = setmetatable({}, { __mode = "k" })
local last = 0

-- Tables of services by their text: many agents have the same ones.
local services = setmetatable({}, { __mode = "v" })

local function part_of(record, part)
  local length = record.length[part]
  if length < 0 then return nil end
  return ffi.string(record.bytes + record.at[part], length)
end

local function services_of(record)
  local text = part_of(record, SERVICES)
  if not text then return nil end
  local found = services[text] or json.decode(text)
  services[text] = found
  return found
end

ffi.metatype("struct perigee_known", { __index = function(record, field)
  local part = PART[field]
  if part then return part_of(record, part) end
  if field == "collection" then return collections[record.of] end
  if field == "services" then return services_of(record) end
  if field == "term" and record.taken > 0 then return record.taken end
end })

local function number_of(collection)
  local number = numbers[collection]
  if number then return number end
  last = last + 1
  collections[last], numbers[collection] = collection, last
  return last
end

local function fill(part, text)
  local is_there = type(text) == "string"
  from.part[part] = is_there and text or nil
  from.length[part] = is_there and #text or 0
end

--- A record of a collection. text: as above; value: the same as a table, of
-- which it has kind, epoch, term and services. Others may have written it.
function M.new(collection, name, text, value)
  local all = value.services and json.encode(value.services) or nil
  fill(PART.name, name)
  fill(PART.text, text)
  fill(PART.kind, value.kind)
  fill(PART.epoch, value.epoch)
  fill(SERVICES, all)
  local record = C.perigee_known_new(from)
  if record == nil then error("there is no memory for a record", 0) end
  record.of = number_of(collection)
  record.taken = type(value.term) == "number" and value.term or 0
  return record
end

--- Frees a record; nil is none.
function M.free(record)
  if record then C.perigee_known_free(record) end
end

--- Gives memory that was freed back to the system.
function M.trim() C.perigee_known_trim() end

return M
