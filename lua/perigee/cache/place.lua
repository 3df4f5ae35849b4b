-- SPDX-License-Identifier: Apache-2.0
--- A value that is put piece by piece (`CacheClient:reserve`). It is the
-- client's until it is sealed or aborted, the session with the cache ends, or
-- nothing was written for a minute.
--
-- * `key`, `length`: as they were reserved
-- @classmod Place
local check = require "perigee.runtime.check"
local slices = require "perigee.memory.slice"

local M = {}

local Place = {}
Place.__index = Place

--- Makes the place that a member (member.lua) has reserved by a proxy.
function M.new(member, proxy, key, length, token)
  return setmetatable({ member = member, proxy = proxy, key = key,
                        length = length, token = token }, Place)
end

local function over(place, what)
  if not place.token then
    error(("place:%s: it was sealed or aborted"):format(what), 3)
  end
end

--- Returns what stands for a value: a string, or a slice or a List of an
-- engine's memory; raises at level.
function M.value(value, what, level, engine)
  if type(value) == "string" then return value, #value end
  local place, why = slices.place(value)
  if place then
    slices.check_own(place, what, level + 1, engine)
    return place, place.length
  end
  error(("%s: a value is a string, a slice or a list of slices: %s"):format(
    what, why), level + 1)
end

--- Writes a part of the value. The cache fetches it.
-- @function Place:write
-- @tparam string|Slice bytes a string, a slice of own memory, or a list
-- @tparam[opt=0] number offset
-- @treturn boolean true; or nil and an error
-- @errors `stale`: the session with the cache has ended
-- @waits yes
-- @usage
-- local place = assert(blocks:reserve("write.1", 8))
-- assert(place:write("half", 4))
-- assert(place:write(region:slice(0, 4):write "one,", 0))
-- print(place:seal(), blocks:get "write.1")                --> true one,half
function Place:write(bytes, offset)
  over(self, "write")
  local value, length = M.value(bytes, "place:write", 2,
                                self.member.agent.engine)
  offset = offset or 0
  check.value(offset, check.count, "place:write's offset", 2)
  if offset + length > self.length then
    error(("place:write: %.0f bytes at %.0f do not fit into %.0f"):format(
      length, offset, self.length), 2)
  end
  local fine, err = self.member:write(self.proxy, self.token, value, offset)
  return fine, err
end

--- Ends the writing: the value is complete, and all see it.
-- @function Place:seal
-- @treturn boolean true; or nil and an error
-- @errors `stale`: the session with the cache has ended; `no_memory`: a write
--   is under way
-- @waits yes
-- @usage
-- local place = assert(blocks:reserve("seal.1", 3))
-- assert(place:write "one")
-- print(blocks:has { "seal.1" }[1])                            --> false
-- print(place:seal(), blocks:get "seal.1")                     --> true one
function Place:seal()
  over(self, "seal")
  local fine, err = self.member:seal(self.proxy, self.key, self.token)
  if not fine then return nil, err end
  self.token = false
  return true
end

--- Gives the place up. Idempotent.
-- @function Place:abort
-- @treturn boolean true; or nil and an error
-- @errors those of all functions that ask a cache
-- @waits yes
-- @usage
-- local place = assert(blocks:reserve("abort.1", 3))
-- print(place:abort(), blocks:has { "abort.1" }[1])            --> true false
function Place:abort()
  if not self.token then return true end
  local fine, err = self.member:abort(self.proxy, self.key, self.token)
  if not fine then return nil, err end
  self.token = false
  return true
end

check.colons(Place, "place", "abort seal write")

return M
