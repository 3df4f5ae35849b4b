-- SPDX-License-Identifier: Apache-2.0
--- A tenant's store, where a cache runs: perigee/cache.so with its memory and
-- its clients. Slabs and pieces of the directory are named regions of the
-- tenant's agent, which peers may only read. What the core cannot decide is
-- here: when memory is given and taken back, which session is which client, who
-- waits for a key.
--
--   a session   event                          becomes
--   unknown     its first request              a client
--   client      it has ended, and its pulls    unknown: reservations are
--                                              aborted, leases given back
--
-- A reservation has a token, and belongs to the session that made it.
--
--   a reservation   event                           becomes
--   reserved        bytes for it come               filling (a count)
--   filling         they are there, or never come   reserved
--   reserved        seal, abort                     over
--   filling         seal, abort                     filling: refused
--   any             its session has ended           over
local check = require "perigee.runtime.check"
local failure = require "perigee.cache.failure"
local futures = require "perigee.runtime.future"
local keeps = require "perigee.cache.keep"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local moves = require "perigee.cache.moves"
local native = require "perigee.cache.native"
local signals = require "perigee.runtime.signal"
local spills = require "perigee.cache.spill"
local tiers = require "perigee.cache.tier"
local timers = require "perigee.runtime.timers"
local units = require "perigee.runtime.units"
local wire = require "perigee.cache.wire"

local ffi = require "ffi"
local C = native.C
local process = require "perigee.native"
local core = process.C
local tonumber = tonumber

local M = {}

local Store = {}
Store.__index = Store
M.Store = Store

-- TURN: seconds between turns of a store that has nothing more to do. STEPS: of
-- a turn, of a microsecond or two each. FEEDS: times that memory is given for
-- one request.
local TURN, STEPS, FEEDS = 0.1, 256, 3
-- CLIENTS: of a store, by default. OWN_CLIENTS: of what is below it. One more
-- moves values to what is below (cold.lua).
local CLIENTS, OWN_CLIENTS = 1024, 8
-- ns for which a reservation stays that nobody writes to or seals.
local UNUSED = 60e9
-- ns for which the system is not asked again for memory that it has not given.
local SHORT = 2e9
-- ns between two messages that entries were evicted.
local EVICTIONS = 60e9
local WANTS = native.C.PERIGEE_CACHE_WANTS
local FORGETS = native.C.PERIGEE_CACHE_FORGETS
local OK, NO_MEMORY, STALE = core.PERIGEE_OK, core.PERIGEE_NO_MEMORY,
                             core.PERIGEE_STALE
local PUT = C.PERIGEE_CACHE_PUT
local want, place, put = native.want_t(), native.place_t(), native.put_t()

-- The time in ns. A function that ends in a call of C or of tonumber is not
-- compiled by itself, unless brackets make it an ordinary call.
local function time(self) return (core.perigee_now(self.engine.handle)) end

-- ---- Memory ----------------------------------------------------------------

--- Names of regions, which clients look up. A store below another one, which
-- is `spilled`, has other numbers of slabs, and a directory that nobody maps.
function M.slab_name(number) return ("cache.slab.%.0f"):format(number) end
function M.piece_name(number) return ("cache.directory.%.0f"):format(number) end

-- Allocates in huge pages, if they are asked for. When the system does not give
-- them, all that follows is in small ones, which is told.
local function alloc(self, length, name, kind)
  local options = { name = name, access = "r", kind = kind, node = self.node,
                    populate = self.populate, huge = self.huge,
                    share = self.share }
  local region, err = self.engine:alloc(length, options)
  if region or not self.huge then return region, err end
  options.huge = nil
  local small, why = self.engine:alloc(length, options)
  if not small then return nil, why end
  self.huge = nil
  log.write("warning", ("%s: its memory is in small pages from now on: %s")
    :format(self.text, err.message))
  return small
end

-- A slab has come (1) or gone (-1).
local function count_huge(self, region, sign)
  if not region.huge then return end
  self.in_huge = self.in_huge + sign * region.length
  C.perigee_cache_huge(self.cache, self.in_huge)
end

-- The region of a slab that is of no use closes when nobody is inside.
local function remove_slab(self, number)
  if C.perigee_cache_remove(self.cache, number) < 0 then return false end
  local region = self.slabs[number]
  self.slabs[number] = nil
  if self.moves then self.moves:forget(region.name) end
  count_huge(self, region, -1)
  self.closing[region] = true
  if self.keep then self.keep:drop(number, region.length) end
  return true
end

-- Gives the store a region as its slab of this number, which is the next one's.
local function use_as_slab(self, region, number)
  local added = C.perigee_cache_add(self.cache, region.pointer, region.length)
  if added ~= number then
    region:close(0)
    return nil, failure.of(added, "adding a slab")
  end
  self.slabs[number] = region
  count_huge(self, region, 1)
  if self.keep then self.keep:slab(number, region) end
  return number
end

local function add_slab(self, length, number)
  local told = number + (self.spilled and C.PERIGEE_CACHE_SPILLED or 0)
  local region, err = alloc(self, length, M.slab_name(told), self.kind)
  if not region then return nil, err end
  return use_as_slab(self, region, number)
end

--- Gives the store a slab of another life (keep.lua). Returns its number; or
-- nil and an error.
function Store:adopt(fd, length)
  C.perigee_cache_wants(self.cache, want)
  local number = want.next
  local region, err = self.engine:adopt(fd, length, {
    name = M.slab_name(number), access = "r" })
  if not region then return nil, err end
  return use_as_slab(self, region, number)
end

local function add_piece(self)
  local number = #self.pieces
  local region, err = alloc(self, C.PERIGEE_CACHE_PIECE,
                            not self.spilled and M.piece_name(number) or nil)
  if not region then return nil, err end
  local added = C.perigee_cache_grow(self.cache, region.pointer)
  if added ~= number then
    region:close(0)
    return nil, failure.of(added, "growing the directory")
  end
  self.pieces[number + 1] = region
  if self.keep then self.keep:piece(number, region) end
  return true
end

--- Gives the directory more pieces. Returns true; or nil and an error.
function Store:grow(pieces)
  local fine, err = true, nil
  for _ = 1, pieces do
    if fine then fine, err = add_piece(self) end
  end
  return fine, err
end

-- Tells once for each reason that the system gives no memory. For a while the
-- store has to do with the slabs that it has, so that old entries go.
local function starve(self, err)
  local slabs = self:counters().slabs
  if slabs > 0 then
    C.perigee_cache_quota(self.cache, slabs)
    self.short_till = loop.now() + SHORT
  end
  if self.starved ~= err.message then
    self.starved = err.message
    log.write("warning", ("%s: %s"):format(self.text, err.message))
  end
  return false
end

--- Gives the memory that the store wants, and takes back what it does not.
-- Returns false if there is none to be had.
function Store:feed()
  local fine, err = true, nil
  C.perigee_cache_wants(self.cache, want)
  while want.idle >= 0 and remove_slab(self, tonumber(want.idle)) do
    C.perigee_cache_wants(self.cache, want)
  end
  local length, number, pieces = tonumber(want.slab), want.next, want.pieces
  if pieces > 0 then fine, err = add_piece(self) end
  if fine and length > 0 then fine, err = add_slab(self, length, number) end
  if not fine then return starve(self, err) end
  self.starved = false
  return true
end

-- ---- Clients ---------------------------------------------------------------

local function client_gone(self, id, client)
  self.clients[id] = nil
  if not self.cache then return end
  for token, each in pairs(self.reserved) do
    if each.session == id then self.reserved[token] = nil end
  end
  C.perigee_cache_client_gone(self.cache, client)
  self:changed_all()
end
jit.off(client_gone)

local function new_client(self, id)
  local session = self.engine.sessions[id]
  if not session or not session.handle then return nil, STALE end
  local client = tonumber(C.perigee_cache_client(self.cache))
  if client < 0 then return nil, C.PERIGEE_CACHE_CLIENTS end
  self.clients[id] = client
  signals.attach(session:ended(), signals.new(1, function()
    client_gone(self, id, client)
  end))
  return client
end

--- Returns the number of a session's client; or nil and a status. (A function
-- that makes a closure is not compiled.)
function Store:client(id)
  local client = self.clients[id]
  if client then return client end
  return new_client(self, id)
end

-- ---- Reservations ----------------------------------------------------------

local NONE = {}
local PINS = { soft = C.PERIGEE_CACHE_SOFT, hard = C.PERIGEE_CACHE_HARD,
               copy = C.PERIGEE_CACHE_COPY }

-- Fills `put` from what a client sent, which may be anything. Returns what must
-- stay alive, or nil and a status.
local function put_of(client, length, asked)
  asked = type(asked) == "table" and asked or NONE
  local parent = asked.parent
  local group, ttl = tonumber(asked.group) or 0, tonumber(asked.ttl) or 0
  if not (check.is_count(length) and check.is_count(group)
          and ttl >= 0 and ttl < 2 ^ 62)
    or parent ~= nil and type(parent) ~= "string" then
    return nil, core.PERIGEE_INVALID
  end
  put.length, put.group, put.ttl, put.client = length, group, ttl, client
  put.parent, put.parent_length = parent, parent and #parent or 0
  put.if_absent = asked.if_absent and 1 or 0
  put.pin = PINS[asked.pin] or C.PERIGEE_CACHE_UNPINNED
  return true
end

-- Has f(self, ...) tried again, which returned status, after memory was given.
local function feed_for(self, status, f, ...)
  for _ = 1, FEEDS do
    if status ~= WANTS or not self:feed() then break end
    status = f(self, ...)
  end
  return status
end

-- Makes room that the next try may find.
local function make_room(self)
  C.perigee_cache_turn(self.cache, time(self), STEPS)
  self:feed()
end

local function reserve_once(self, key)
  return (C.perigee_cache_reserve(self.cache, key, #key, put, time(self),
                                  place))
end

-- Reserves a place for a client; returns a status. again: for a value that was
-- here before.
local function reserve(self, client, key, length, asked, again)
  local fine, status = put_of(client, length, asked)
  if not fine then return status end
  put.again = again and 1 or 0
  status = feed_for(self, reserve_once(self, key), reserve_once, key)
  if status ~= NO_MEMORY and status ~= WANTS then return status end
  make_room(self)
  return feed_for(self, reserve_once(self, key), reserve_once, key)
end

--- Reserves a place for a session. Returns the reservation: token, entry, slice
-- (the place); or nil and a status.
function Store:reserve(id, key, length, asked)
  local client, status = self:client(id)
  if not client then return nil, status end
  if type(key) ~= "string" then return nil, core.PERIGEE_INVALID end
  if self.tier and self.tier.full then return nil, FORGETS end
  status = reserve(self, client, key, length, asked)
  if status < 0 then return nil, status end
  local region = self.slabs[tonumber(place.slab)]
  self.tokens = self.tokens + 1
  local one = { token = self.tokens, session = id, entry = place.entry,
                filling = 0, put = false, key = key, length = length,
                at = loop.now(),
                slice = region:slice(tonumber(place.offset), length) }
  self.reserved[one.token] = one
  return one
end

--- Reserves a place for a value that was here before, for a client of this
-- process, also while another writer has its key reserved. Returns its entry,
-- and the place as a slice; or nil and a status. It is to be sealed only if
-- nothing newer was.
function Store:place_again(client, key, length, asked)
  local status = reserve(self, client, key, length, asked, true)
  if status < 0 then return nil, status end
  local region = self.slabs[tonumber(place.slab)]
  return place.entry, region:slice(tonumber(place.offset), length)
end

--- Seals it, when all its bytes are there; returns a status.
function Store:seal_again(entry, key, checksum, version)
  local status = C.perigee_cache_seal_again(self.cache, entry, checksum,
                                            version, time(self))
  self:changed(key)
  return status < 0 and tonumber(status) or OK
end

--- Gives it up, when nobody writes to it any more.
function Store:give_up(entry)
  if self.cache then C.perigee_cache_abort(self.cache, entry) end
end

--- Returns a session's reservation; nil: it has none of that token. The place
-- of a put that is under way is none: a write to it could end after the seal.
function Store:reservation(id, token)
  local one = self.reserved[token]
  return one and one.session == id and not one.put and one or nil
end

--- Seals a reservation. Returns the version; or nil and a status.
function Store:seal(one, checksum)
  if one.filling > 0 then return nil, core.PERIGEE_AGAIN end
  if self.reserved[one.token] ~= one then return nil, STALE end
  self.reserved[one.token] = nil
  if self.tier then self.tier:forget(one.key) end
  local version = C.perigee_cache_seal(self.cache, one.entry, checksum or 0,
                                       time(self))
  if version < 0 then return nil, (tonumber(version)) end
  if self.tier then self.tier:sealed() end
  self:changed(one.key)
  return (tonumber(version))
end

--- Aborts a reservation, if it is one still. Returns a status.
function Store:abort(one)
  if one.filling > 0 then return core.PERIGEE_AGAIN end
  if self.reserved[one.token] ~= one then return STALE end
  self.reserved[one.token] = nil
  C.perigee_cache_abort(self.cache, one.entry)
  return OK
end

-- ---- Requests --------------------------------------------------------------

local function answer(self, client, request, reply)
  return (tonumber(C.perigee_cache_answer(self.cache, client, request.pointer,
    request.length, reply.pointer, reply.length, time(self))))
end

-- Has a PUT found no memory, and done nothing: is that all that its answer, of
-- n bytes, tells? It may be put after a turn.
local function is_full(reply, n)
  return n == 20 and ffi.cast("int32_t *", reply.pointer + 8)[0] == NO_MEMORY
end

-- Answers a PUT, for which memory may have to be given.
local function answer_put(self, client, request, reply, n)
  n = feed_for(self, n, answer, client, request, reply)
  if n == WANTS or is_full(reply, n) then
    make_room(self)
    n = feed_for(self, answer(self, client, request, reply), answer, client,
                 request, reply)
  end
  if n >= 12 and next(self.waiting) ~= nil then
    for _, key in ipairs(wire.asked(request)) do self:changed(key) end
  end
  return n
end

-- Is a request one that puts or deletes?
local function may_change(request)
  local what = request.length > 8 and request.pointer[1]
  return what == PUT or what == C.PERIGEE_CACHE_DELETE
end

-- What a request has put or deleted is void in the file. n: the length of its
-- answer, or a status: of a request that is none in its midst nobody knows what
-- it has done.
function Store:void(request, reply, n)
  if not may_change(request) or n == WANTS then return end
  local puts = request.pointer[1] == PUT
  for i, key in ipairs(wire.asked(request)) do
    if n < 0 or not puts or wire.has_put(reply, n, i) then
      self.tier:forget(key)
    end
  end
end
jit.off(Store.void)

--- Answers a raw request of a session into a reply's loan; returns the length.
function Store:answer(id, request, reply)
  local client, status = self:client(id)
  if not client then return wire.refuse(reply, status) end
  if self.tier then request = wire.private(request) end -- is looked at again
  if not request then return wire.refuse(reply, core.PERIGEE_TOO_LARGE) end
  if self.tier and self.tier.full and may_change(request) then
    return wire.refuse(reply, FORGETS)
  end
  local n = answer(self, client, request, reply)
  if n == WANTS or n >= 12 and reply.pointer[1] == PUT then
    n = answer_put(self, client, request, reply, n)
  end
  if self.tier then self:void(request, reply, n) end
  if n < 0 then return wire.refuse(reply, n) end
  return n
end

--- The same for a RELEASE alone; who is no client has nothing to release.
function Store:release(id, request, reply)
  if not self.clients[id] then return wire.refuse(reply, STALE) end
  request = wire.private(request)
  if not request or request.length < 2
    or request.pointer[1] ~= C.PERIGEE_CACHE_RELEASE then
    return wire.refuse(reply, core.PERIGEE_PROTOCOL)
  end
  return self:answer(id, request, reply)
end

--- Is a key there, in memory?
function Store:has(key)
  return C.perigee_cache_stat(self.cache, key, #key, time(self), place) == OK
end

-- The same, or below.
local function has(self, key)
  return self:has(key) or self.tier and self.tier:has(key)
end

-- ---- Waiting for keys ------------------------------------------------------

--- A key was sealed: who waits for it looks again.
function Store:changed(key)
  local waiting = self.waiting[key]
  if not waiting then return end
  self.waiting[key] = nil
  futures.settle(waiting.future, true)
end

--- All that wait look again.
function Store:changed_all()
  local waiting = self.waiting
  self.waiting = {}
  for _, each in pairs(waiting) do futures.settle(each.future, true) end
end
jit.off(Store.changed_all)

-- Waits for a change of a key, at most `seconds`.
local function wait_for(self, key, seconds)
  local waiting = self.waiting[key]
    or { future = futures.shared(self, "waiting for a key"), waits = 0 }
  self.waiting[key], waiting.waits = waiting, waiting.waits + 1
  waiting.future:wait(seconds)
  waiting.waits = waiting.waits - 1
  if waiting.waits == 0 and self.waiting[key] == waiting then
    self.waiting[key] = nil
  end
end

--- Waits until a key is there, at most `seconds`, or a session has ended;
-- returns whether it is. Returns nil and a status if the session may not.
function Store:wait(id, key, seconds)
  local client, status = self:client(id)
  if not client then return nil, status end
  local deadline = loop.deadline(seconds)
  while self.cache and not has(self, key) do
    local left = loop.left(deadline)
    if left == 0 or self.ending or self.clients[id] ~= client then
      return false
    end
    wait_for(self, key, left)
  end
  return self.cache ~= false
end

--- Nobody waits for keys any more.
function Store:end_waits()
  self.ending = true
  self:changed_all()
end

-- ---- Its life --------------------------------------------------------------

-- A timer rather than a task: it outlives a stop of the loop.
local function turn_in(self, seconds)
  self.timer = signals.new(1, function() self:turn() end)
  self.timer.at = loop.now() + seconds * 1e9
  timers.add(self.timer)
end

-- Aborts reservations that were left: their keys are others' to put.
local function abort_unused(self)
  local before = loop.now() - UNUSED
  for _, one in pairs(self.reserved) do
    local left = one.at < before and one.filling == 0 and not one.put
    if left then self:abort(one) end
  end
end
jit.off(abort_unused)

-- Tells, if that is asked for, that entries went because there was no room: of
-- the first, and then once in a while.
local function note_evictions(self)
  local now = loop.now()
  if now < self.evictions.at or not log.wants("info", self) then return end
  local n = self:counters()
  local more = n.evicted - self.evictions.told
  if more == 0 then return end
  self.evictions.at, self.evictions.told = now + EVICTIONS, n.evicted
  log.note("info", self, "%s has evicted %d entries since it last said so: %s "
    .. "of its %s are in use", self.text, more, units.format_size(n.used),
    units.format_size(n.quota))
end

--- Does what is to be done now, and again soon.
function Store:turn()
  if not (self.cache and self.engine.handle) then return end
  if self.short_till and self.short_till <= loop.now() then
    self.short_till = false
    C.perigee_cache_quota(self.cache, self.memory)
  end
  local more = C.perigee_cache_turn(self.cache, time(self), STEPS) == 1
  self:feed()
  if self.tier then self.tier:turn() end
  if self.keep then self.keep:turn() end
  abort_unused(self)
  note_evictions(self)
  for region in pairs(self.closing) do
    if region:close(0) then self.closing[region] = nil end
  end
  turn_in(self, more and 0 or TURN)
end
jit.off(Store.turn)

--- The size of an ordinary slab: there are 64 of them, but none is longer than
-- 256 MiB, unless there were more than 512 then; 1 GiB at most. Each is a
-- region, of which an engine has thousands at most.
function M.slab_of(memory)
  local slab = native.power_of_two(
    math.min(math.max(memory / 64, 2 ^ 18), 2 ^ 28))
  while slab < memory / 512 and slab < C.PERIGEE_CACHE_LARGEST do
    slab = slab * 2
  end
  return slab
end

-- Is that the memory of the host, which the CPU reads and writes?
local function is_host(kind) return kind == nil or kind == "host" end

local function nanoseconds(seconds) return seconds and seconds * 1e9 or 0 end

-- Bytes of hard pins, if there may be none: the core takes 0 for its default.
local NO_PINS = 1

local function core_options(options)
  local mover = (options.file or options.spill) and 1 or 0
  return native.options_t {
    quota = options.memory,
    slab = options.slab or M.slab_of(options.memory),
    hard = options.hard == 0 and NO_PINS or options.hard or 0,
    lease = nanoseconds(options.lease),
    margin = nanoseconds(options.margin), decay = nanoseconds(options.decay),
    clients = (options.clients or CLIENTS) + mover,
    leases = options.leases or 0,
    reserved_each = options.reservations or 0,
    high = options.high or 0, low = options.low or 0,
    sums = options.checksum and 1 or 0,
    lfu = options.evict == "lfu" and 1 or 0,
  }
end

-- Is there memory of the kind that slabs are to have? Returns true; or nil and
-- an error. A GPU is in use from here on, before there is any peer: then puts
-- from shared memory of a GPU are one copy, but for the first of a region.
local function try_kind(self)
  local region, err = self.engine:alloc(1, { kind = self.kind })
  if not region then return nil, err end
  region:close(0)
  return true
end

-- A copy to or from slabs in memory of a GPU has failed: the value is where it
-- was, or nowhere. Counts it, and tells it once for each reason; not if the
-- store is being closed.
local function copy_failed(self, err)
  if not self.cache then return end
  C.perigee_cache_failed(self.cache)
  if self.copy_failed == err.kind then return end
  self.copy_failed = err.kind
  log.write("error", ("%s: a value was not copied to memory of its GPU, or "
    .. "from there: %s"):format(self.text, err.message))
end

-- Puts a store in memory of the host below it. It reads for the same clients,
-- for which a few of its own are added. Returns true; or nil and an error.
local function open_spill(self, agent, options)
  local more = {}
  for _, name in ipairs { "lease", "margin", "decay", "evict", "high", "low",
                          "leases", "populate", "huge", "node" } do
    more[name] = options[name]
  end
  more.memory, more.spilled = options.spill, true
  more.clients = (options.clients or CLIENTS) + OWN_CLIENTS
  local below, err = M.open(agent, more)
  if not below then return nil, err end
  self.tier = spills.new(self, below)
  return true
end

-- Has what the store consists of. Returns true; or nil and an error.
local function open_all(self, agent, options)
  local fine, err = try_kind(self)
  if fine then fine, err = add_piece(self) end
  if fine and options.keep then
    self.keep, self.revived = keeps.open(self, options.hold, options.keep)
    fine, err = self.keep, self.revived
  end
  if fine and options.file then
    self.tier, err = tiers.open(self, options)
    fine = self.tier
  end
  if fine and options.spill then
    fine, err = open_spill(self, agent, options)
  end
  return fine, err
end

--- Opens the store of an agent. options as of `perigee.cache`; spilled: it is
-- to be below another one. Returns it; or nil and an error.
function M.open(agent, options)
  local out = native.cache_out_t()
  local text = ("the %scache of %s"):format(
    options.spilled and "host memory of the " or "", tostring(agent))
  local status = C.perigee_cache_open(core_options(options), loop.now(), out)
  if status < 0 then
    return nil, failure.of(status, "opening " .. text)
  end
  -- Versions grow from one life to the next: no life seals 10^6 a second.
  C.perigee_cache_versions(out[0], process.wall() / 1e3)
  local self = setmetatable({
    cache = out[0], engine = agent.engine, text = text, kind = options.kind,
    populate = options.populate or nil, share = options.share or nil,
    huge = options.huge or nil, in_huge = 0, node = options.node,
    sums = options.checksum or false,
    slabs = {}, pieces = {}, clients = {},
    reserved = {}, landed = {}, tokens = 0, waiting = {}, starved = false,
    closing = {}, timer = false, ending = false, tier = false, keep = false,
    moves = false, copy_failed = false, spilled = options.spilled or false,
    evictions = { at = 0, told = 0 }, revived = 0, memory = options.memory,
    short_till = false,
  }, Store)
  if not is_host(options.kind) then
    self.moves = moves.new(agent, function(why) copy_failed(self, why) end)
  end
  local fine, err = open_all(self, agent, options)
  if not fine then
    self:close()
    return nil, err
  end
  turn_in(self, TURN)
  return self
end

--- Tells its counters, a table of numbers.
function Store:counters()
  local n = native.counters_t()
  C.perigee_cache_count(self.cache, n)
  return wire.named_counters(n)
end

--- Closes it; its memory goes with the agent's engine.
function Store:close()
  local cache = self.cache
  if not cache then return end
  if self.tier then self.tier:close() end
  if self.keep then self.keep:close() end
  self.cache, self.reserved = false, {}
  if self.moves then self.moves:close() end
  if self.timer then timers.remove(self.timer) end
  self:changed_all()
  C.perigee_cache_close(cache)
end

return M
