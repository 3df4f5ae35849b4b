-- SPDX-License-Identifier: Apache-2.0
--- How a client puts values into one cache (member.lua). A small one goes along
-- with its request; the cache pulls a larger one, and the parts of one that was
-- reserved (place.lua).
local bytes = require "perigee.cache.bytes"
local core = require "perigee.native".C
local failure = require "perigee.cache.failure"
local native = require "perigee.cache.native"
local places = require "perigee.cache.place"
local wire = require "perigee.cache.wire"

local C = native.C

local M = {}

local OK = core.PERIGEE_OK

-- A request about no key.
local NOTHING = wire.keys(C.PERIGEE_CACHE_MATCH, 0, {}, 1, 0)

local PINS = { soft = C.PERIGEE_CACHE_SOFT, hard = C.PERIGEE_CACHE_HARD,
               copy = C.PERIGEE_CACHE_COPY }
local NONE, coded = {}, {}

local function put_small(self, key, from, length, asked)
  asked = asked or NONE
  coded.group, coded.ttl = asked.group or 0, asked.ttl or 0
  coded.pin, coded.parent = PINS[asked.pin] or 0, asked.parent
  coded.if_absent = asked.if_absent
  local status, version = self:ask("sealed", wire.put(key, from, length, coded,
                                                      asked.checksum or 0))
  if status == nil then return nil, version end
  if status == core.PERIGEE_UNSUPPORTED then self.refuses_small = true end
  if status ~= OK then return nil, status end
  return version
end

-- What methods tell: a version or a token, and that they are done.
local function a_number(value)
  if type(value) ~= "number" then return "a number" end
end

local function done(value)
  if value ~= true then return "true" end
end

-- Calls a method of the service with a slice of a value, which the cache pulls.
local function pulled(self, proxy, method, wrong, value, ...)
  local region, err
  if type(value) == "string" then
    region, err = self.agent.engine:alloc(math.max(#value, 1))
    if not region then return nil, err end
    region:slice(0, #value):write(value)
  end
  local slice, result = region and region:slice(0, #value) or value
  result, err = self:told(wrong, proxy[method](proxy, slice, ...))
  if failure.is_full(result, err) and self.leases:flush() then
    result, err = self:told(wrong, proxy[method](proxy, slice, ...))
  end
  if region then region:close() end
  return result, err
end

--- Adds these methods to the class of members.
function M.add(Member)

--- Puts a value: a string, a slice or a List. asked: as the service's `put`
-- takes it, or nil. Returns the entry's version; or nil and an error.
function Member:put(key, value, asked)
  local fine, err = self:ready()
  if not fine then return nil, err end
  local from, length = bytes.of(value)
  local version, by = nil, self.by.sealed
  if from and length <= wire.SMALL and not self.refuses_small then
    version, err = put_small(self, key, from, length, asked)
    if not version and err == core.PERIGEE_UNSUPPORTED then from = nil end
  end
  if not (from and length <= wire.SMALL) or self.refuses_small then
    by = self.proxy
    version, err = pulled(self, by, "put", a_number, value, key, asked)
  end
  self:changed(key, version, err)
  self:moved(by)
  if version then return version end
  return self:fails(err, "putting", key, failure.of_put)
end

--- Reserves a place. Returns it (place.lua); or nil and an error. The place has
-- a proxy of its own, which reaches this life of the cache alone: the next one
-- gives the same tokens to others.
function Member:reserve(key, length, asked)
  local proxy = self.proxy:with { epoch = self.session.epoch }
  local token, err = self:told(a_number, proxy:reserve(key, length, asked))
  if token then return places.new(self, proxy, key, length, token) end
  local session = self.proxy[1].session
  if err.kind == "stale" and self.proxy:ask(NOTHING)
    and (self:moved(self.proxy) or self.proxy[1].session ~= session) then
    return self:reserve(key, length, asked)
  end
  return nil, err
end

function Member:write(proxy, token, value, offset)
  return pulled(self, proxy, "write", done, value, token, offset)
end

function Member:seal(proxy, key, token)
  local version, err = self:told(a_number, proxy:seal(token))
  self:changed(key, version, err)
  if version then return version end
  return self:fails(err, "sealing", key)
end

--- Aborts a reservation, if it is one still.
function Member:abort(proxy, key, token)
  local fine, err = self:told(done, proxy:abort(token))
  if fine or err.kind == "stale" then return true end
  return self:fails(err, "aborting", key)
end

end

return M
