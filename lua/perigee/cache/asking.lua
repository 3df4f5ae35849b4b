-- SPDX-License-Identifier: Apache-2.0
--- What a client asks of one cache (member.lua) without a value: how much of a
-- chain is there, entries, versions, counters, events, lists of keys.
local check = require "perigee.runtime.check"
local core = require "perigee.native".C
local errors = require "perigee.runtime.errors"
local failure = require "perigee.cache.failure"
local native = require "perigee.cache.native"
local wire = require "perigee.cache.wire"

local C = native.C

local M = {}

-- Answers without a key that a list may take: of 2^28 buckets, 1024 a time,
-- in memory and in the file.
local EMPTY = 2 ^ 19

-- The result of an answer; or nil and an error.
local function told(self, result, err)
  if result then return result end
  return nil, errors.is_error(err) and err or failure.of(err, "asking "
    .. self.text)
end

-- No events, but where those begin that were told.
local function before(list)
  return { next = list[1] and list[1].number or list.next, lost = list.lost }
end

--- Adds these methods to the class of members.
function M.add(Member)

--- Tells how many keys of a chain are there, from the first on.
function Member:match(keys)
  local found, first = 0, 1
  while first <= #keys do
    local last = math.min(first + wire.KEYS - 1, #keys)
    local count, err = self:ask("count", wire.keys(C.PERIGEE_CACHE_MATCH, 0,
                                                   keys, first, last))
    if not count then return self:fails(err, "matching", keys[first]) end
    found = found + math.min(count, last - first + 1)
    if count < last - first + 1 then break end
    first = last + 1
  end
  return found
end

--- Tells of an entry; or nil and an error.
function Member:stat(key)
  local list, err = self:ask("stats", wire.key(C.PERIGEE_CACHE_STAT, 0, key))
  local found = list and list[1]
  if type(found) == "table" then
    return { length = found.length, version = found.version,
             checksum = found.checksum, cache = self.name,
             where = self.where[found.below] }
  end
  return self:fails(found or err or core.PERIGEE_PROTOCOL, "looking up", key)
end

--- Asks for the version of a key's value. Returns `length`, `version` and
-- `checksum`, of the session that this has now; or nil, if that is not certain.
-- Answers come in another order than requests: what was heard meanwhile counts.
function Member:version(key)
  local session, once = self.session, self.leases.once
  local there = self:stat(key)
  if not there or self:moved(self.by.stats) or self.session ~= session
    or self.leases.once ~= once then
    return nil
  end
  self.leases:answered(key, there.version)
  self.leases:tidy()
  self:told_of(key, there.version)
  return there
end

--- Tells the counters of the cache.
function Member:counters()
  return told(self, self:ask("counted", wire.counters()))
end

--- Tells of events from where the last ones have ended, { number, epoch }, or
-- from a number on. Numbers of another life of the cache are none.
function Member:events(from, most)
  local none = most == 0               -- in a request 0 is as many as fit
  if none then most = 1 end
  local number, epoch = from, nil
  if type(from) == "table" then number, epoch = from.number, from.epoch end
  local list, err = self:ask("told", wire.events(number, most))
  local now_of = self.by.told and self.by.told[1].session.epoch
  local other = epoch and epoch ~= now_of
  if list and other then
    list, err = self:ask("told", wire.events(0, most))
  end
  if not list then return told(self, nil, err) end
  if none then list = before(list) end
  list.lost = list.lost or other or false
  list.next = { number = list.next, epoch = now_of }
  return list
end

--- Calls f(key, where) for each key that begins with a prefix, while that
-- returns true; where: as stat tells. Returns true; or nil and an error. A
-- cache that goes back, or gives nothing more often than any has to, lies.
function Member:list(prefix, most, f)
  local cursor, empty = 0, 0
  while cursor do
    local list, more = self:ask("listed", wire.list(cursor, prefix, most))
    if not list then return told(self, nil, more) end
    local where = self.where[cursor >= wire.LIST_BELOW]
    for _, key in ipairs(list) do
      if not f(key, where) then return true end
    end
    if #list == 0 then empty = empty + 1 end
    if more and more <= cursor or empty > EMPTY then
      return told(self, nil, core.PERIGEE_PROTOCOL)
    end
    cursor = more
  end
  return true
end

--- Waits at the cache until a key is there, at most `seconds`; returns whether
-- it is; or nil and an error.
function Member:wait(key, seconds)
  local patient = self.proxy:with { timeout = seconds + self.timeout }
  return self:told(check.boolean, patient:wait(key, seconds))
end

end

return M
