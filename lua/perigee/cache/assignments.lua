-- SPDX-License-Identifier: Apache-2.0
--- Values that belong together, found by who has stored them and a number, in
-- place of keys: field `assignments` of a client of caches. A program that
-- hands out work stores what it is about, and tells others two small words.
--
-- They are entries as others: each value has a key, "OWNER/VERSION/N" behind
-- `PREFIX`, and a list of lengths has the key "OWNER/VERSION". The list is put
-- last, and deleted first, so nobody finds what is not all there. They may be
-- evicted, together. The cache fetches the values: nobody writes into its
-- memory, and what was stored does not change. Who knows owner and version may
-- load them, and delete them, as any entry of the scope.
-- @classmod CacheAssignments
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local places = require "perigee.cache.place"
local slices = require "perigee.memory.slice"

local C = require "perigee.native".C

local M = { PREFIX = "assignments/" }

local Assignments = {}
Assignments.__index = Assignments

-- MOST: values of one store, which are a group with their list. LARGEST: bytes
-- of a value.
local MOST, LARGEST = 1023, 2 ^ 30
local OPTIONS = { ttl = check.seconds }
local stored = 0                        -- by this process

--- Makes those of a client (client.lua) of an agent's.
function M.new(client, agent)
  return setmetatable({ client = client, agent = agent }, Assignments)
end

local function key_of(owner, version, n)
  local key = ("%s%s/%.0f"):format(M.PREFIX, owner, version)
  return n and key .. "/" .. n or key
end

local function check_names(owner, version, what)
  check.value(owner, check.name, what .. "'s owner", 3)
  check.value(version, check.count, what .. "'s version", 3)
end

-- A number that no other life of the agent has.
local function next_version(agent)
  stored = stored + 1
  return tonumber(C.perigee_epoch(agent.engine.handle) % 2 ^ 32) * 2 ^ 20
    + stored
end

-- The places of values, whose lengths are a list of numbers.
local function places_of(owner, version, lengths)
  local told = {}
  for n, length in ipairs(lengths) do
    told[n] = { key = key_of(owner, version, n), length = length }
  end
  return told
end

local function remove(self, told)
  for _, place in ipairs(told) do self.client:delete(place.key) end
end

--- Stores values together.
-- @function CacheAssignments:store
-- @tparam {string|Slice,...} list 1 to 1023 values, as of `CacheClient:put`
-- @tparam[opt] table options
-- @tparam[opt] number options.ttl seconds that they live at most
-- @treturn string the owner: the agent's name; or nil and an error
-- @treturn number the version: which of the owner's they are
-- @treturn table the places: for each { key, length }
-- @errors as of `CacheClient:put`. What was put is deleted then
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 26 })
-- local stored = assert(agent:cache "cache:9").assignments
-- local owner, version, places = assert(stored:store { "one", "three" })
-- print(owner == agent.name, version > 0, places[2].length)    --> true true 5
-- cache:close()
function Assignments:store(list, options)
  check.value(list, check.table, "assignments:store's list", 2)
  options = check.options(options, OPTIONS, "assignments:store")
  if #list < 1 or #list > MOST then
    error(("assignments:store takes 1 to %d values"):format(MOST), 2)
  end
  local lengths = {}
  for n, value in ipairs(list) do
    lengths[n] = select(2, places.value(value, "assignments:store", 2,
                                        self.agent.engine))
  end
  local owner, version = self.agent.name, next_version(self.agent)
  local told, items = places_of(owner, version, lengths), {}
  for n, place in ipairs(told) do
    items[n] = { key = place.key, value = list[n], group = version,
                 ttl = options.ttl }
    lengths[n] = ("%.0f"):format(lengths[n])
  end
  local fine, err = true, nil
  for _, put in ipairs(self.client:put_many(items)) do
    if put ~= true then fine, err = nil, put end
  end
  if fine then
    fine, err = self.client:put(key_of(owner, version),
      table.concat(lengths, " "), { group = version, ttl = options.ttl })
  end
  if fine then return owner, version, told end
  remove(self, told)
  return nil, err
end

-- The numbers of a list of lengths; nil: it is none, for anybody may put it.
local function lengths_of(text)
  local lengths = {}
  for digits in text:gmatch "%d+" do
    lengths[#lengths + 1] = tonumber(digits)
    if #lengths > MOST or lengths[#lengths] > LARGEST then return nil end
  end
  return text:find "^%d[%d ]*$" and lengths
end

local function query(self, owner, version)
  local text, err = self.client:get(key_of(owner, version))
  if not text then return nil, err end
  local lengths = lengths_of(text)
  if lengths then return places_of(owner, version, lengths) end
  return nil, errors.new("protocol", ("%q is no list of lengths"):format(
    key_of(owner, version)), true)
end

--- Tells where values are that were stored together.
-- @function CacheAssignments:query
-- @tparam string owner
-- @tparam number version
-- @treturn table the places: for each { key, length }; or nil and an error
-- @errors `not_found`: they were not stored, or are gone
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 26 })
-- local stored = assert(agent:cache "cache:9").assignments
-- local owner, version = assert(stored:store { "one", "three" })
-- print(#stored:query(owner, version))                         --> 2
-- cache:close()
function Assignments:query(owner, version)
  check_names(owner, version, "assignments:query")
  return query(self, owner, version)
end

--- Gets values that were stored together.
-- @function CacheAssignments:load
-- @tparam string owner
-- @tparam number version
-- @tparam {Slice,...} into where each goes, as of `CacheClient:get`
-- @treturn {number,...} their lengths; or nil and an error
-- @errors `not_found`: they were not stored, or are gone, or one of them is;
--   `too_large`: `into` has too few places, or too short ones
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 26 })
-- local stored = assert(agent:cache "cache:9").assignments
-- local owner, version = assert(stored:store { "one", "three" })
-- local lengths = assert(stored:load(owner, version, {
--   region:slice(0, 8), region:slice(8, 8) }))
-- print(lengths[2], region:slice(8, 5):string())               --> 5 three
-- cache:close()
function Assignments:load(owner, version, into)
  check_names(owner, version, "assignments:load")
  check.value(into, check.table, "assignments:load's into", 2)
  local list = {}
  for n, each in ipairs(into) do
    local place, why = slices.place(each)
    if not place then error("assignments:load's into: " .. why, 2) end
    slices.check_own(place, "assignments:load", 2, self.agent.engine)
    list[n] = place
  end
  local told, err = query(self, owner, version)
  if not told then return nil, err end
  if #list < #told then
    return nil, errors.new("too_large", ("loading %d values into %d places")
      :format(#told, #list), true)
  end
  local items = {}
  for n, place in ipairs(told) do
    items[n] = { key = place.key, into = list[n] }
  end
  local lengths = self.client:get_many(items)
  for _, length in ipairs(lengths) do
    if type(length) ~= "number" then return nil, length end
  end
  return lengths
end

--- Deletes values that were stored together.
-- @function CacheAssignments:delete
-- @tparam string owner
-- @tparam number version
-- @treturn boolean true; or nil and an error
-- @errors `not_found`: they were not stored, or are gone
-- @waits yes
-- @usage
-- local cache = assert(perigee.cache { name = "cache:9", memory = 2 ^ 26 })
-- local stored = assert(agent:cache "cache:9").assignments
-- local owner, version = assert(stored:store { "one", "three" })
-- print(stored:delete(owner, version))                         --> true
-- print(select(2, stored:query(owner, version)).kind)          --> not_found
-- cache:close()
function Assignments:delete(owner, version)
  check_names(owner, version, "assignments:delete")
  local told, err = query(self, owner, version)
  if not told then return nil, err end
  local fine
  fine, err = self.client:delete(key_of(owner, version))
  remove(self, told)
  if not fine then return nil, err end
  return true
end

check.colons(Assignments, "assignments", "delete load query store")

return M
