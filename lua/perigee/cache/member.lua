-- SPDX-License-Identifier: Apache-2.0
--- One cache, as a client sees it: a proxy of its service, and what belongs to
-- the session that the proxy has now: slabs, leases, the map of the directory.
-- A later session begins with none of these. Here is how values are got;
-- putting.lua and asking.lua have its other methods.
--
-- A value comes by the first of these ways that can tell:
--
-- 1. the map (mapped.lua), without a request; or else a copy here (near.lua),
--    without one mostly;
-- 2. a lease that is kept from before: one transfer;
-- 3. a request, with which a small value comes along; a larger one is leased,
--    and is a transfer more.
--
-- A lease runs from when its request was sent, by the clock here, and the clock
-- is looked at again when the bytes are there: if the lease is over, they are
-- dropped. It is kept for later only if what it brings may be stale; then it is
-- never older than one that this client has put or got.
local asking = require "perigee.cache.asking"
local bytes = require "perigee.cache.bytes"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local failure = require "perigee.cache.failure"
local futures = require "perigee.runtime.future"
local leases = require "perigee.cache.leases"
local loop = require "perigee.runtime.loop"
local maps = require "perigee.cache.mapped"
local native = require "perigee.cache.native"
local new_table = require "table.new"
local putting = require "perigee.cache.putting"
local ring = require "perigee.cache.ring"
local slices = require "perigee.memory.slice"
local transfer = require "perigee.transfer"
local views = require "perigee.cache.view"
local wire = require "perigee.cache.wire"

local C = native.C
local core = require "perigee.native".C
local now = loop.now

local M = {}

local Member = {}
Member.__index = Member
putting.add(Member)
asking.add(Member)

local OK, NOT_FOUND, AGAIN = core.PERIGEE_OK, core.PERIGEE_NOT_FOUND,
                             core.PERIGEE_AGAIN
local TOO_LARGE = core.PERIGEE_TOO_LARGE
local SMALL_KIB = wire.SMALL / 1024
-- USED: keys that were used without a request, after which the cache is told,
-- and ns until it is. LOOKS: uses between two looks at the clock, if these are
-- less than OFTEN ns apart. THERE: ns between two looks whether the cache whose
-- memory is read is still there.
-- TRIES: of a value whose lease was over when it was there. LASTS: ns for
-- which a lease has to last for a new view.
local USED, USED_FOR, LOOKS, TRIES, TIMEOUT, LASTS = 128, 5e8, 32, 3, 30, 2e9
local OFTEN, THERE = 1e8, 2.5e8

--- Makes the member of a cache by its name. Nothing is asked of it yet.
function M.new(agent, name, options)
  return setmetatable({
    agent = agent, name = name, hash = ring.hash(name),
    weight = options.weight or 1, timeout = options.timeout or TIMEOUT,
    nanoseconds = check.nanoseconds(options.timeout or TIMEOUT),
    reconnect = options.reconnect,
    checks = options.checksum or false, maps = options.map ~= false,
    text = ("cache %s"):format(name),
    proxy = false, by = {}, below = false, spills = false, where = false,
    session = false, map = false, leases = false, used = {}, uses = 0,
    used_at = 0, looks = 0, looked_at = 0, there_at = 0,
    refuses_small = false, nears = options.near or false, near = false,
    stale = (options.stale or 0) * 1e9,
    epoch = false, closed = false,
  }, Member)
end

-- ---- Its session -----------------------------------------------------------

-- Readers of answers (wire.lua), and how long an answer may be.
local READERS = { located = wire.ONE, places = wire.ROOM, stats = wire.ROOM,
                  flags = 8 + wire.KEYS, count = 8, status = 64,
                  statuses = wire.ROOM, sealed = 64, listed = wire.ROOM,
                  told = wire.ROOM, counted = 1024 }

-- A function that gives leases back to this life of the cache alone: the next
-- one gives the same numbers to others. Nobody waits for that.
local function giver(proxy, session)
  local of_life = proxy:with { epoch = session.epoch, reader = wire.statuses,
                               capacity = READERS.statuses }
  return function(request) futures.leave(of_life.async:release(request)) end
end

-- Copies of another life of the cache are not of its versions.
local function begin_near(self, epoch)
  if not self.nears or self.epoch == epoch then return end
  if self.near then self.near:close() end
  self.near = require "perigee.cache.near".new(self.agent.engine, self.nears)
    or false
end

-- Begins with the session that a proxy has.
local function begin(self, proxy)
  local session = proxy[1].session
  begin_near(self, session.epoch)
  self.epoch = session.epoch
  self.session, self.map = session, false
  self.leases = leases.new(session, giver(proxy, session), self.stale)
  if self.maps then
    local map = maps.open(session, self.timeout)
    if self.session == session and not self.closed then
      self.map = map or false
    elseif map then
      map:close()
    end
  end
end

local function open(self)
  local proxy, err = self.agent:proxy(self.name, "cache",
                                      { version = 1, timeout = self.timeout,
                                        reconnect = self.reconnect })
  if not proxy then return nil, err end
  self.proxy = proxy
  for name, capacity in pairs(READERS) do
    self.by[name] = proxy:with { capacity = capacity, reader = wire[name] }
  end
  return true
end
jit.off(open)

-- Takes what the service tells of itself; where: by whether it is below.
local function learn(self, told)
  local is_host = (told.kind or "host") == "host"
  self.below, self.spills = told.file == true, told.spill == true
  self.where = { [false] = is_host and "memory" or "gpu",
                 [true] = self.below and "file" or "memory" }
end

-- `about` tells that there is something.
local function something(value)
  if not value then return "something" end
end

--- What a typed method of the cache has told (failure.lua).
function Member:told(wrong, result, err)
  return failure.told(self.text, wrong, result, err)
end

--- Has a session with the cache. Returns true; or nil and an error.
function Member:ready()
  local session = self.session
  if session and session.handle then return true end
  if not self.proxy then
    local fine, err = open(self)
    if not fine then return nil, err end
  end
  local told, err = self:told(something, self.proxy:about())
  if not told then return nil, err end
  learn(self, type(told) == "table" and told or {})
  session = self.proxy[1].session
  if self.session ~= session then begin(self, self.proxy) end
  return true
end

--- A call of a proxy goes on with another session if the cache drains, while
-- the session before is there still. Returns true if it has: what it told is
-- not of the session before, whose values are those of before, too.
function Member:moved(proxy)
  local session = proxy[1].session
  if session == self.session or not session.handle then return false end
  begin(self, proxy)
  return true
end

--- What was being done, for messages.
function Member:doing(what, key)
  return ("%s %q of %s"):format(what, #key > 64 and key:sub(1, 61) .. "..."
    or key, self.text)
end

function Member:fails(status, what, key, of)
  if errors.is_error(status) then return nil, failure.came(status) end
  return nil, (of or failure.of)(status, self:doing(what, key))
end

--- Asks a request, and reads the answer by the reader of that name. Returns
-- what that returns; or nil and an error.
function Member:ask(reader, request)
  local fine, err = self:ready()
  if not fine then return nil, err end
  return self.by[reader]:ask(request)
end

--- What a put, a seal or a deletion by this client means for its key. One that
-- the cache has refused has changed nothing; of one that was not heard of that
-- is not known.
function Member:changed(key, version, err)
  if err and not version
    and not (errors.is_error(err) and not err.remote) then return end
  self.leases:answered(key, version or nil)
  self.leases:tidy()
  if self.near then self.near:forget(key) end
end

--- The cache has told of a version of a key: a copy of an older one goes.
function Member:told_of(key, version)
  local near = self.near
  if near and (near:version(key) or version) < version then near:forget(key) end
end

-- ---- Uses ------------------------------------------------------------------

-- Tells the cache which keys were used.
local function tell_used(self)
  local list = {}
  for key in pairs(self.used) do list[#list + 1] = key end
  self.used, self.uses = {}, 0
  if #list > 0 then
    futures.leave(self.by.statuses.async:ask(wire.keys(C.PERIGEE_CACHE_TOUCH, 0,
                                                       list, 1, #list)))
  end
end
jit.off(tell_used)

-- The loop tells of the end of a session; but gets that it does not run for
-- would go on in the memory of a cache that is gone.
local function look_there(self, time)
  self.there_at = time
  local session = self.session
  if session.handle and core.perigee_session_alive(session.handle) == 0 then
    self.map = false
  end
end

-- Does what is to be done now and then while no requests are made. Only after
-- some uses is the clock looked at, unless they are far apart.
local function look_around(self)
  local time = now()
  self.looks = time - self.looked_at < OFTEN and LOOKS or 0
  self.looked_at = time
  if time - self.there_at > THERE then look_there(self, time) end
  return time
end

-- Notes that a key was used without a request.
local function use(self, key)
  local is_new = not self.used[key]
  if not is_new and self.looks > 0 then
    self.looks = self.looks - 1
    return
  end
  local time = look_around(self)
  if is_new then
    self.used[key], self.uses = true, self.uses + 1
    if self.uses == 1 then self.used_at = time end
  end
  if self.uses >= USED or time - self.used_at > USED_FOR then
    tell_used(self)
  end
end

-- ---- Leases ----------------------------------------------------------------

--- Locates a key. Returns a lease; false, a small value, its checksum and its
-- version; or nil and a status or an error. along: may a value come along?
function Member:locate(key, along)
  local sent, session = now(), self.session
  local status, value, told, version =
    self:ask("located", wire.key(C.PERIGEE_CACHE_LOCATE,
                                 along and SMALL_KIB or 0, key))
  if status == nil then return nil, value end
  if self:moved(self.by.located) or self.session ~= session then
    return self:locate(key, along)      -- whose answer it is is not known
  end
  if status == AGAIN and self.leases:clear() then -- they may be this client's
    return self:locate(key, along)
  end
  if status ~= OK then return nil, status end
  if value and along then
    self.leases:answered(key, version)
    self:told_of(key, version)
    return false, value, told, version
  end
  if value then return nil, core.PERIGEE_PROTOCOL end
  self:told_of(key, told.version)
  return self.leases:add(key, told, sent)
end

-- Does an error mean that a place has gone: that its key is to be located
-- again?
local function has_moved(err)
  return err.kind == "stale" or err.kind == "not_found"
end

local function place_lost(lease, err)
  if not has_moved(err) then return nil, err end
  maps.lost(lease.among.slabs, lease.slab)
  lease.till = 0
  return nil, AGAIN
end

-- Returns the slice of the cache's memory that a lease is of; or nil and a
-- status or an error.
local function leased(self, lease)
  if lease.from and lease.from.owner.handle then return lease.from end
  local among = lease.among
  local slab, err = maps.slab(among.slabs, among.session, lease.slab,
                              self.timeout)
  if not slab then return place_lost(lease, err) end
  if lease.length > C.PERIGEE_CACHE_LARGEST
    or lease.offset + lease.length > slab.remote.length then
    return nil, errors.new("protocol", self.text
      .. " told of a place outside of its memory", true)
  end
  lease.from = slab.remote:slice(lease.offset, lease.length)
  return lease.from
end

-- ---- Getting ---------------------------------------------------------------

-- Reads what is leased. Returns the filled part; or nil and a status or an
-- error.
local function read(self, lease, into)
  if into.length < lease.length then return nil, TOO_LARGE, lease.length end
  local part = slices.first(into, lease.length)
  local from, err = leased(self, lease)
  if not from then return nil, err end
  if lease.length > 0 then
    local fine
    fine, err = transfer.read(lease.among.session, from, part,
                               self.nanoseconds):wait()
    if not fine then return place_lost(lease, err) end
  end
  if lease.till > now() then return part end
  lease.till = 0
  return nil, AGAIN
end

-- Puts a small value, which came as a string, where it is wanted.
local function placed(value, into, sum, version)
  if not into then return value, sum, version end
  if into.length < #value then return nil, TOO_LARGE, #value end
  local part = slices.first(into, #value)
  slices.copy_from(part, value)
  return part, sum, version
end

-- Reads what is leased as a string.
local function read_text(self, lease)
  local from, err = leased(self, lease)
  if not from then return nil, err end
  local region
  region, err = self.agent.engine:alloc(math.max(lease.length, 1))
  if not region then return nil, err end
  local part, why, length = read(self, lease, region:slice())
  local value = part and part:string()
  region:close()
  if value then return value end
  return nil, why, length
end

local function by_request(self, key, into)
  for _ = 1, TRIES do
    -- One that is kept may be older than what was found in the map.
    local lease = not self.map and self.leases:kept(key)
    if not lease then
      local value, sum, version
      lease, value, sum, version = self:locate(key, true)
      if lease == false then return placed(value, into, sum, version) end
      if not lease then return nil, value end
    else
      use(self, key)
    end
    local part, why, length
    if into then
      part, why, length = read(self, lease, into)
    else
      part, why, length = read_text(self, lease)
    end
    lease.among:was_read(key, lease)
    lease.among:tidy()
    if part then
      if self.near and lease.among == self.leases and lease.again
        and (lease.kept or self.stale == 0) then -- nothing newer is known
        self.near:put(key, part, lease.version, lease.sent + self.stale)
      end
      return part, lease.checksum, lease.version
    end
    if why ~= AGAIN then return nil, why, length end
  end
  return nil, errors.new("stale", ("%s: its lease was over each time that "
    .. "the bytes were there"):format(self:doing("getting", key)), true)
end

local function no_room(self, key, length, into)
  return nil, errors.new("too_large", ("%s: it has %.0f bytes, and into %.0f")
    :format(self:doing("getting", key), length, into.length), true)
end

-- by_request may have kept a copy of it, which would not be compared again.
local function broken(self, key)
  if self.near then self.near:forget(key) end
  return nil, errors.new("protocol", self:doing("getting", key)
    .. ": its bytes are not those that were put", true)
end

-- Gets the copy that this client has of a value, if it is that of the cache
-- still; nil: there is none, or not for this place.
local function find_near(self, key, into)
  local near, sent = self.near, now()
  local version, fresh = near:version(key)
  if version and not fresh then
    local there = self:stat(key)
    if there then self:moved(self.by.stats) end
    if self.near ~= near then return nil end -- it was closed meanwhile
    if not there or there.version ~= version then
      return near:forget(key)
    end
    near:refresh(key, sent + self.stale)
    version = near:version(key)         -- it may have gone meanwhile
  end
  return version and near:get(key, into)
end

-- Gets a value by the first way that can tell. Returns it, its checksum, and
-- its version if a request or a lease has told it; or nil, a status or an
-- error, and maybe a length.
local function find(self, key, into)
  local copy = self.near and not self.map and find_near(self, key, into)
  if copy then return copy, 0 end
  local map, part, why, length = self.map, nil, AGAIN, nil
  if map then part, why, length = map:get(key, into) end
  if part then
    use(self, key)
    return part, why
  elseif why == AGAIN or why == NOT_FOUND and self.spills then
    return by_request(self, key, into)
  end
  return nil, why, length
end

--- Has a value be in memory that a file of the cache's has. Returns whether it
-- is; or nil and an error.
function Member:fetch(key)
  if not self.below then return false end
  local there, err = self:told(check.boolean, self.proxy:fetch(key))
  if failure.is_full(there, err) and self.leases:flush() then
    there, err = self:told(check.boolean, self.proxy:fetch(key))
  end
  return there, err
end

-- Calls f(self, key, ...), which has told NOT_FOUND, after the file's value was
-- brought to memory. Others may have evicted it again by the time that f looks
-- for it, so this is done up to TRIES times. Returns what f does; or nil and a
-- status or an error.
local function brought(self, key, doing, f, ...)
  for _ = 1, TRIES do
    local there, err = self:fetch(key)
    if not there then return nil, err or NOT_FOUND end
    local result, why, last = f(self, key, ...)
    if result or why ~= NOT_FOUND then return result, why, last end
  end
  return nil, errors.new("stale", ("%s: it was evicted each time that it had "
    .. "been brought from the file"):format(self:doing(doing, key)), true)
end
jit.off(brought)

--- Gets a value as `Member:get` does. Returns it, and its version if that is
-- known; or nil and an error.
function Member:get_version(key, into)
  local fine, err = self:ready()
  if not fine then return nil, err end
  local part, why, last = find(self, key, into)
  if why == NOT_FOUND and self.below then
    part, why, last = brought(self, key, "getting", find, into)
  end
  if part and self.checks and not bytes.is_whole(part, why) then
    return broken(self, key)
  elseif part then
    return part, last
  elseif why == TOO_LARGE and last and into then
    return no_room(self, key, last, into)
  end
  return self:fails(why, "getting", key)
end

--- Gets a value into a slice or a List, or as a string without one. Returns the
-- filled part, or the string; or nil and an error.
function Member:get(key, into)
  local part, err = self:get_version(key, into)
  if part then return part end
  return nil, err
end

-- ---- Many ------------------------------------------------------------------

-- Asks about list[first] to list[last] as often as answers are short of room,
-- and calls f(i, item) for each.
function Member:each(what, flags, reader, list, f)
  local first = 1
  while first <= #list do
    local last = math.min(first + wire.KEYS - 1, #list)
    local items, err = self:ask(reader, wire.keys(what, flags, list, first,
                                                  last))
    if not items then
      return nil, errors.is_error(err) and err or failure.of(err, self.text)
    end
    if #items == 0 or #items > last - first + 1 then
      return nil, failure.of(core.PERIGEE_PROTOCOL, self.text)
    end
    for i = 1, #items do f(first + i - 1, items[i]) end
    first = first + #items
  end
  return true
end

-- Locates the keys of items whose result is not known yet. Returns a list of
-- leases by the items' indexes.
local function locate_many(self, items, results)
  local most, n = #items, 0
  local keys, of, leased_of = new_table(most, 0), new_table(most, 0),
                              new_table(most, 0)
  for i, item in ipairs(items) do
    local lease = results[i] == nil and not self.map
      and self.leases:kept(item.key)
    if lease then
      leased_of[i] = lease
    elseif results[i] == nil then
      n = n + 1
      keys[n], of[n] = item.key, i
    end
  end
  local sent, session = now(), self.session
  local fine, err = self:each(C.PERIGEE_CACHE_LOCATE, 0, "places", keys,
    function(k, place_of)
      local i, key = of[k], keys[k]
      if type(place_of) == "table" then
        self:told_of(key, place_of.version)
        leased_of[i] = self.leases:add(key, place_of, sent)
      elseif place_of ~= AGAIN and not (place_of == NOT_FOUND
                                        and self.below) then
        -- else it is tried again by itself
        results[i] = select(2, self:fails(place_of, "getting", key))
      end
    end)
  if not fine then return nil, err end
  if self:moved(self.by.places) or self.session ~= session then return {} end
  return leased_of
end

-- Returns both sides of an item that is leased: from and to. Or nil, and its
-- result; nil: it is tried again by itself.
local function both_sides(self, item, lease)
  local into, from, err = item.into, leased(self, lease)
  if into.length < lease.length then
    return nil, select(2, no_room(self, item.key, lease.length, into))
  elseif not from then
    return nil, err ~= AGAIN and err or nil
  elseif lease.length == 0 then
    return nil, 0
  end
  return from, slices.first(into, lease.length)
end

-- Which items can be read, by their indexes, and the sides of all of them. The
-- leases of others are let go.
local function readable(self, items, leased_of, results)
  local of, both, n = new_table(#items, 0), new_table(2 * #items, 0), 0
  for i = 1, #items do
    local lease = leased_of[i]
    if lease then
      local from, to = both_sides(self, items[i], lease)
      if from then
        n = n + 1
        of[n], both[2 * n - 1], both[2 * n] = i, from, to
      else
        results[i] = to
        lease.among:was_read(items[i].key, lease)
      end
    end
  end
  return of, both
end

-- Reads all that is leased by one operation.
local function read_many(self, items, leased_of, results)
  local of, both = readable(self, items, leased_of, results)
  if #of == 0 then return self.leases:tidy() end
  local among = leased_of[of[1]].among
  local fine, err = transfer.read_all(among.session, both,
                                      self.nanoseconds):wait()
  local time = now()
  for n, i in ipairs(of) do
    local lease, to = leased_of[i], both[2 * n]
    if fine and lease.till > time
      and (not self.checks or bytes.is_whole(to, lease.checksum)) then
      results[i] = to.length
    else
      lease.till = 0                    -- by itself, it is tried again
      if not fine and not has_moved(err) then results[i] = err end
    end
  end
  for _, i in ipairs(of) do
    among:was_read(items[i].key, leased_of[i])
  end
  among:tidy()
end

-- What the map can tell at once.
local function map_many(self, items, results)
  for i, item in ipairs(items) do
    local part, why = self.map:get(item.key, item.into)
    if part and not (self.checks and not bytes.is_whole(part, why)) then
      results[i] = part.length
      use(self, item.key)
    elseif why == NOT_FOUND and not (self.below or self.spills) then
      results[i] = select(2, self:fails(why, "getting", item.key))
    end
  end
end

--- Gets values by few requests and one transfer. items: a list of { key =, into
-- = (a slice or a List) }. Returns a list of lengths and errors.
function Member:get_many(items)
  local fine, err = self:ready()
  local results, leased_of = new_table(#items, 0), nil
  if fine and self.map then map_many(self, items, results) end
  if fine then leased_of, err = locate_many(self, items, results) end
  if leased_of then read_many(self, items, leased_of, results) end
  for i, item in ipairs(items) do
    if results[i] == nil and leased_of then
      local part
      part, err = self:get(item.key, item.into)
      results[i] = part and part.length or err
    elseif results[i] == nil then
      results[i] = err
    end
  end
  return results
end

--- Tells which keys are there: a list of booleans; or nil and an error.
function Member:has(keys)
  local fine, err = self:ready()
  if not fine then return nil, err end
  if self.looks > 0 then self.looks = self.looks - 1 else look_around(self) end
  local results, rest, of = {}, {}, {}
  for i, key in ipairs(keys) do
    if self.map then results[i] = self.map:has(key) end
    if (self.below or self.spills) and not results[i] then
      results[i] = nil                  -- it may be below
    end
    if results[i] == nil then rest[#rest + 1], of[#of + 1] = key, i end
  end
  local first = 1
  while first <= #rest do
    local last = math.min(first + wire.KEYS - 1, #rest)
    local flags
    flags, err = self:ask("flags", wire.keys(C.PERIGEE_CACHE_HAS, 0, rest,
                                             first, last))
    if not flags or #flags == 0 then
      return self:fails(err or core.PERIGEE_PROTOCOL, "looking for", rest[1])
    end
    for i = 1, math.min(#flags, last - first + 1) do
      results[of[first + i - 1]] = flags:byte(i) == 1
    end
    first = first + #flags
  end
  return results
end

-- Asks for a change once. Returns true; or nil and a status or an error.
local function change(self, key, what, flags)
  local status, err = self:ask("status", wire.key(what, flags, key))
  if what == C.PERIGEE_CACHE_DELETE then self:changed(key) end
  if status then self:moved(self.by.status) end
  if status == OK then return true end
  return nil, status or err
end

--- Changes an entry by a request whose answer is a status. Returns true; or nil
-- and an error. A value that is to be used or pinned comes to memory.
function Member:change(key, what, flags, doing)
  local fine, err = change(self, key, what, flags)
  if err == NOT_FOUND and self.below and what ~= C.PERIGEE_CACHE_DELETE then
    fine, err = brought(self, key, doing, change, what, flags)
  end
  if fine then return true end
  return self:fails(err, doing, key)
end

-- ---- Views -----------------------------------------------------------------

-- Is a lease that is kept of the value that its key has now, or of one that
-- will do? Without a map the cache is asked: then the lease may have been given
-- back meanwhile, or be nearly over.
local function is_current(self, key, lease)
  if self.map then return self.map:version(key) == lease.version end
  if self.leases:will_do(key, lease) then return true end
  local there = self:version(key)
  return there and there.version == lease.version
    and self.leases:find(key, LASTS) == lease
end

-- Returns a lease of a key for a view: one that is kept, if it is of the value
-- that the key has now and lasts for a while.
local function lease_for_view(self, key)
  local lease = self.leases:find(key, LASTS)
  if lease and is_current(self, key, lease) then
    use(self, key)
    return lease
  end
  local err
  lease, err = self:locate(key, false)
  if not lease then return nil, err end
  self.leases:keep(key, lease)
  return lease
end

-- Makes a view of a lease, which nobody gives back meanwhile; waits. Returns
-- it; or nil, and what `leased` returns.
local function view_of(self, lease)
  lease.views = lease.views + 1
  local from, why = leased(self, lease)
  local slab = from and lease.among.slabs[lease.slab]
  if slab and slab.pointer then
    lease.views = lease.views - 1       -- the view counts itself
    return views.new(lease, slab.pointer + lease.offset)
  end
  lease.among:leave(lease)
  return nil, from, why
end

--- Leases an entry where it lies in this host's memory. Returns a view
-- (view.lua); or nil and an error.
function Member:view(key)
  local fine, err = self:ready()
  if not fine then return nil, err end
  for _ = 1, TRIES do
    local lease
    lease, err = lease_for_view(self, key)
    if err == NOT_FOUND and self.below then
      lease, err = brought(self, key, "viewing", lease_for_view)
    end
    if not lease then return self:fails(err, "viewing", key) end
    local view, from, why = view_of(self, lease)
    if view then
      return view
    elseif from then
      return nil, errors.new("unsupported", self:doing("viewing", key)
        .. ": it is not in memory that this process has mapped", true)
    elseif why ~= AGAIN then
      return nil, why
    end
  end
  return self:fails(AGAIN, "viewing", key)
end

--- Gives back all that is kept, and tells what was used.
function Member:close()
  self.closed = true
  if self.session and self.session.handle then
    tell_used(self)
    self.leases:clear()
  end
  if self.map then self.map:close() end
  if self.leases then maps.close(self.leases.slabs) end
  if self.near then self.near:close() end
  self.map, self.near, self.epoch = false, false, false
end

return M
