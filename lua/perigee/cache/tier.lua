-- SPDX-License-Identifier: Apache-2.0
--- The file below a store. What is near its eviction from memory is written to
-- the file, and read back when it is asked for. The core has the file
-- (native/cache/file.h); here is what is moved, and when. Nothing waits on the
-- loop for the disk.
--
--   a value is     event                                      becomes
--   in memory      memory is nearly full, and it is cold      being written
--   in memory      the same, and memory is a GPU's            on its way
--   on its way     its bytes are in host memory               being written
--   on its way     the copy has failed                        in memory, if it
--                                                             is there still
--   being written  it is in the file                          in both
--   in both        it is evicted from memory                  in the file
--   in the file    it is asked for                            being read
--   being read     its bytes are there, and their sum is      in both
--                  right; a GPU's memory has got them
--   being read     the sum is wrong                           gone
--   any            its key is put or deleted                  not in the file
--   any            the file fails                             not in the file
--
-- A value that is evicted before it is written is gone, as without a file.
--
-- After a restart the file's directory is read, which may take seconds. It may
-- show older values meanwhile, and such as were put or deleted since. So nobody
-- is told of any of it before all is read, and those are forgotten.
--
-- Slabs in memory of a GPU are never read or written here: the engine copies
-- (moves.lua) between them and regions of host memory, on the way to the file
-- and back. A lease, or a reservation, keeps the place in the slab until the
-- copy is over. What is evicted, replaced or deleted on its way is not written.
--
-- Long values are summed and copied by pieces, and the loop runs in between.
local bytes = require "perigee.cache.bytes"
local colds = require "perigee.cache.cold"
local errors = require "perigee.runtime.errors"
local failure = require "perigee.cache.failure"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local descriptor = require "perigee.descriptor"
local native = require "perigee.cache.native"
local ready = require "perigee.runtime.ready"
local tasks = require "perigee.runtime.task"

local ffi = require "ffi"
local C = native.C
local core = require "perigee.native".C

local M = {}

local Tier = {}
Tier.__index = Tier

-- ENDS: of one poll. PAUSE: seconds between polls if the descriptor tells
-- nothing; MOMENT: ms, of such a one while it is closed. LAST: ns for which it
-- is waited for then. MEMORY: regions that are kept for values on their way, of
-- LARGE bytes at most. WAY: bytes of a GPU's memory that may be on their way,
-- in as much of the host's. FETCHED: the part of the memory that values which
-- come back may take besides. VOID: keys that the file is still to forget.
-- LATE: ns for which a value with a TTL may be on its way back, which it lives
-- longer, besides SLOW for each byte, which it lives shorter in memory.
local ENDS, PAUSE, MEMORY, LARGE, WAY = 64, 0.25, 8, 2 ^ 23, 2 ^ 28
local MOMENT, LAST = 20, 5e9
local FETCHED, VOID, LATE, SLOW = 1 / 8, 2 ^ 18, 1e8, 1
local OK = core.PERIGEE_OK
local ends_t = ffi.typeof("struct perigee_cache_file_end[?]")
local ends, place = ends_t(ENDS), native.place_t()
local state = ffi.new "struct perigee_cache_file_state"
local counters = native.counters_t()

-- The time of day in ns, for TTLs that outlive this process.
local function wall() return os.time() * 1e9 end

-- ---- Ends ------------------------------------------------------------------

-- Begins what has an end: f(file, token) returns a status. done(status) is told
-- of the end. Returns the status.
local function begin(self, done, f, ...)
  local token = self.tokens + 1
  local status = f(self, token, ...)
  if status == OK then
    self.tokens, self.done[token] = token, done
    self:drive()
  end
  return status
end

local function poll(self)
  local n
  repeat
    n = tonumber(C.perigee_cache_file_poll(self.file, loop.now(), wall(), ends,
                                           ENDS))
    for i = 0, n - 1 do
      local token = tonumber(ends[i].token)
      local done = self.done[token]
      self.done[token] = nil
      if done then done(tonumber(ends[i].status)) end
    end
  until n < ENDS or not self.file
end
jit.off(poll)

-- Is there anything to poll for: ends, or what was in the file before?
local function is_busy(self)
  if not self.file then return false end
  C.perigee_cache_file_state(self.file, state)
  return state.ready == 0 or state.under_way > 0
end

-- ---- What is void ----------------------------------------------------------

-- Has the file forget a key. Returns a status: AGAIN, not now.
local function forget(self, key)
  local token = self.tokens + 1
  local status = C.perigee_cache_file_forget(self.file, key, #key, token)
  if status == 1 then                   -- it is durable at its end
    local counts = not self.shown
    if counts then self.owed = self.owed + 1 end
    self.tokens, self.done[token] = token, function()
      if counts then self.owed = self.owed - 1 end
    end
    self:drive()
  end
  return status
end

-- Notes that a key is void (1), or is so in the file by now (-1). While there
-- are too many the store refuses all that would make a key void.
local function note_void(self, key, sign)
  self.void[key] = sign == 1 or nil
  self.voids = self.voids + sign
  self.full = self.voids >= VOID
end

--- A key has another value, or none: the file's is void. The file's directory
-- has it no more, once that is read; on the disk it is void later. A key that
-- is void may have come to the directory again.
function Tier:forget(key)
  if not self.file then return end
  local is_void = self.void[key] ~= nil
  local again = forget(self, key) == core.PERIGEE_AGAIN
  if again ~= is_void then note_void(self, key, again and 1 or -1) end
end

-- Tries again what could not be forgotten.
local function forget_more(self)
  for key in pairs(self.void) do
    if forget(self, key) == core.PERIGEE_AGAIN then return end
    note_void(self, key, -1)
  end
end
jit.off(forget_more)

-- Has memory's requests find what the file has, once all of it is known and
-- nothing of it is to be forgotten. If the clock went back, versions begin
-- above those of the file only now.
local function show(self)
  C.perigee_cache_file_state(self.file, state)
  if self.shown or state.ready == 0 or self.voids > 0 then return end
  self.shown = true
  local below = C.perigee_cache_file_store(self.file)
  C.perigee_cache_count(below, counters)
  C.perigee_cache_versions(self.store.cache, counters.version)
  C.perigee_cache_below(self.store.cache, below)
end

-- Has the file be good for another life, once what was forgotten before it was
-- shown is so on the disk.
local function settle(self)
  if self.settled or not self.shown or self.owed > 0 then return end
  self.settled = true
  C.perigee_cache_file_settled(self.file)
end

-- ---- Memory for values on their way -----------------------------------------

-- Takes a region that was kept, or a new one. A GPU's engine reads it by its
-- name.
local function take_memory(self, length)
  for i, region in ipairs(self.memory) do
    if region.length >= length then return table.remove(self.memory, i) end
  end
  self.regions = self.regions + 1
  return self.store.engine:alloc(
    2 ^ math.ceil(math.log(math.max(length, 4096)) / math.log(2)),
    self.store.moves and { name = "cache.way." .. self.regions, access = "r" }
    or nil)
end

-- Takes memory for a value that comes back. takers: the futures of what
-- such fetches wait for, by their regions.
local function fetch_memory(self, length)
  local region = take_memory(self, length)
  if not region then return nil end
  self.taken = self.taken + region.length
  self.takers[region] = futures.new(self)
  return region
end

-- Memory that was taken is kept for the next values.
local function give_memory(self, region)
  if self.takers[region] then
    self.taken, self.takers[region] = self.taken - region.length, nil
    futures.settle(self.given, true)
  end
  if #self.memory < MEMORY and region.length <= LARGE then
    self.memory[#self.memory + 1] = region
    return
  end
  if self.store.moves then self.store.moves:forget(region.name) end
  region:close()
end

local function promise(self, doing)
  local future = futures.shared(self, doing)
  future.generation = loop.state.generation
  return future
end

-- Was the task that waits for such a future dropped by a stop of the loop?
local function is_dropped(future)
  return future.generation ~= loop.state.generation
end

-- Has a future say what a value that comes back waits for. entry: the place in
-- a GPU's memory that it is copied to, if it is.
local function comes_by(self, region, doing, entry)
  local future = promise(self, doing)
  future.entry, self.takers[region] = entry, future
  return future
end

-- Gives back what fetches had that a stop of the loop has dropped, once neither
-- the disk nor a GPU's engine touches it.
local function take_back(self)
  for region, arrived in pairs(self.takers) do
    if arrived.ended and is_dropped(arrived) then
      if arrived.entry then self.store:give_up(arrived.entry) end
      give_memory(self, region)
    end
  end
end
jit.off(take_back)

-- ---- From memory to the file -----------------------------------------------

local function write(self, token, key, value, at, sum, left)
  return C.perigee_cache_file_write(self.file, key, #key, value, at.length,
                                    at.version, sum, left, token)
end

-- Begins to write a value, whose sum is known; nil: its memory has gone. What
-- memory does not have any more by now is refused by the file, so the sum is of
-- that value. over() is called when its memory is not read any more. Returns a
-- status.
local function write_summed(self, key, part, at, sum, over)
  local status = core.PERIGEE_CLOSED
  if sum and self.file then
    local left = C.perigee_cache_left(self.store.cache, key, #key, loop.now())
    status = begin(self, over, write, key, part.pointer, at, sum, left)
  end
  if status ~= OK then over() end
  return status
end

-- Sums a value, maybe for a while, and begins to write it then. Returns a
-- status.
local function sum_and_write(self, key, part, at, over)
  local status = OK
  self.on_way[key] = true
  bytes.sum_in_turns(part, function(sum)
    self.on_way[key] = nil
    status = write_summed(self, key, part, at, sum, over)
  end)
  return status
end

-- Writes a value that is in a slab of the host's. Its lease keeps it where it
-- is meanwhile; if that should end before, the sum tells.
local function write_here(self, one, key, slab)
  local at, status = self.cold:lease(one)
  if not at then return status end
  local part = slab:slice(tonumber(at.offset), tonumber(at.length))
  local function over()
    self.cold:release(at)
    self.cold:over(at)
  end
  if at.checksum == 0 then return sum_and_write(self, key, part, at, over) end
  return write_summed(self, key, part, at, at.checksum, over)
end

-- Writes a value that was to be copied to a region, and is there or not. If its
-- lease was over before, its place may have been another's: then memory does
-- not have that version any more, and the file refuses it.
local function write_staged(self, part, key, at, there)
  local function over()
    give_memory(self, part.owner)
    self.cold:over(at)
  end
  if not (there and self.file) then return over() end
  sum_and_write(self, key, part, at, over)
end

-- Writes a value that is in memory of a GPU, by way of a region of the host's.
local function write_there(self, one, key, name)
  local at, status = self.cold:lease(one)
  if not at then return status end
  local length = tonumber(at.length)
  local region = take_memory(self, length)
  if not region then
    self.cold:release(at)
    self.cold:over(at)
    return core.PERIGEE_NO_MEMORY
  end
  local part = region:slice(0, length)
  self.on_way[key] = true
  self.store.moves:copy(name, tonumber(at.offset), part, function(fine)
    self.cold:release(at)
    self.on_way[key] = nil
    write_staged(self, part, key, at, fine)
  end)
  return OK
end

-- Writes a value that is cold. Returns a status.
local function write_one(self, one)
  local key = ffi.string(one.key, one.key_length)
  if self.on_way[key] then return OK end
  local slab = self.store.slabs[tonumber(one.place.slab)]
  if slab.pointer then return write_here(self, one, key, slab) end
  return write_there(self, one, key, slab.name)
end

-- Writes some of what is cold, once the file is ready.
local function write_cold(self)
  C.perigee_cache_file_state(self.file, state)
  if state.ready == 1 then self.cold:write(write_one, self) end
end

-- A file that cannot be written to any more may show forgotten values again, so
-- it is removed, and the cache goes on without it.
local function give_up(self)
  log.write("error", ("%s: its file %s cannot be written to any more, and is "
    .. "removed"):format(self.store.text, self.path))
  os.remove(self.path)
  self:close()
end

local function has_failed(self)
  C.perigee_cache_file_state(self.file, state)
  return state.failed ~= 0
end

-- Goes on with what has ended, and begins what is to follow.
local function go_on(self)
  poll(self)
  if self.file and has_failed(self) then give_up(self) end
  if not self.file then return end
  forget_more(self)
  show(self)
  settle(self)
  write_cold(self)
end

-- Goes on while something is under way. A task, which a stop of the loop drops;
-- the next operation, or turn, starts another.
function Tier:drive()
  if self.driver == loop.state.generation then return end
  self.driver = loop.state.generation
  tasks.spawn(function()
    while is_busy(self) do
      descriptor.readable(self.descriptor, PAUSE, true)
      if self.file then go_on(self) end
    end
    self.driver = false
  end)
end

--- Something was sealed: others may have to go soon.
function Tier:sealed()
  if self.file then write_cold(self) end
end

--- Does what is to be done now; called again and again.
function Tier:turn()
  if not self.file then return end
  take_back(self)
  go_on(self)
  if is_busy(self) then self:drive() end
end

-- ---- From the file to memory -----------------------------------------------

local function read(self, token, key, pointer, room)
  return C.perigee_cache_file_read(self.file, key, #key, pointer, room, token,
                                   place)
end

-- Returns the place of what a file has of a key, or nil.
local function find(self, key)
  local below = self.file and self.shown
    and C.perigee_cache_file_store(self.file)
  if not below or self.void[key]
    or C.perigee_cache_stat(below, key, #key, loop.now(), place) < 0 then
    return nil
  end
  return below
end

--- Does the file have a key's value?
function Tier:has(key) return find(self, key) ~= nil end

-- Reads a value; waits. Returns its length, sum and version; or nil and a
-- status. The region stays alive until the disk has done with it.
local function read_to(self, key, region)
  local pointer = region.pointer
  local arrived = comes_by(self, region, "reading from a file")
  local status = begin(self, function(ended)
    futures.settle(arrived, ended)
  end, read, key, pointer, region.length)
  if status < 0 then return nil, status end
  local length, sum, version = place.length, place.checksum, place.version
  status = arrived:wait()
  if not self.file then return nil, core.PERIGEE_CLOSED end -- nor the memory
  if status ~= OK then return nil, status or core.PERIGEE_CLOSED end
  length = tonumber(length)
  local found = bytes.sum(region:slice(0, length))
  if not (found and self.file) then return nil, core.PERIGEE_CLOSED end
  if found ~= sum then return nil, core.PERIGEE_PROTOCOL end
  return length, sum, version
end

-- Is a version of a key the file's still? What was put meanwhile had the file's
-- be forgotten. Returns the store that is the file's directory, or nil.
local function still(self, key, version)
  local below = self.store.cache and find(self, key)
  return below and place.version == version and below or nil
end

-- Has the engine copy what was read to a place in memory of a GPU; waits.
-- Returns whether that is done. Nobody else may have the place before.
local function carry(self, region, entry, slice)
  local there = comes_by(self, region, "copying to memory of a GPU", entry)
  self.store.moves:copy(region.name, 0, slice, function(fine)
    futures.settle(there, fine)
  end)
  return there:wait()
end

-- Copies what was read to a place in memory; waits. Returns whether that is
-- done. Whoever is dropped meanwhile has nobody touch the place any more.
local function copy(self, region, entry, slice)
  local there = comes_by(self, region, "copying to memory", entry)
  futures.settle(there, true)
  return bytes.copy(slice, region:slice(0, slice.length))
end

-- Puts into memory what was read, if it is the key's value still. Returns
-- whether it is there; or nil and a status.
local function keep(self, key, region, length, sum, version)
  local store = self.store
  if not (self.file and store.cache) then return nil, core.PERIGEE_CLOSED end
  if store:has(key) then return true end
  local below = still(self, key, version)
  if not below then return false end
  local left = C.perigee_cache_left(below, key, #key, loop.now())
  local late, ttl = math.huge, 0
  if left > 0 then
    late = loop.now() + LATE + SLOW * length
    ttl = math.max(tonumber(left) - SLOW * length, 1)
  end
  local entry, slice = store:place_again(self.cold.client, key, length,
                                         { ttl = ttl })
  if not entry then return nil, slice end
  local arrive = slice.pointer and copy or carry
  if not (arrive(self, region, entry, slice) and still(self, key, version))
    or loop.now() > late then
    store:give_up(entry)
    return false
  end
  local status = store:seal_again(entry, key, sum, version)
  if status < 0 then return nil, status end
  C.perigee_cache_mark(store.cache, key, #key, version, 1)
  return true
end

-- Waits until memory for a value may be taken: any, if none is.
local function await_memory(self, length)
  local most = self.store.memory * FETCHED
  while self.file and self.taken > 0 and self.taken + length > most do
    if self.given.ended then self.given = futures.shared(self, "fetching") end
    self.given:wait()
  end
end

-- Brings a value to memory; waits. Returns whether it is there; or nil and a
-- status. under_way.region: what it has taken.
local function bring(self, key, under_way)
  if not find(self, key) then return false end
  await_memory(self, tonumber(place.length))
  if not find(self, key) then return false end
  local region = fetch_memory(self, tonumber(place.length))
  if not region then return nil, core.PERIGEE_NO_MEMORY end
  under_way.region = region
  local length, sum, version = read_to(self, key, region)
  local there, status = false, nil
  if length then
    there, status = keep(self, key, region, length, sum, version)
  elseif sum == core.PERIGEE_PROTOCOL then
    self:forget(key)                    -- the disk has lost it
  elseif sum ~= core.PERIGEE_NOT_FOUND then
    there, status = nil, sum
  end
  under_way.region = nil
  give_memory(self, region)
  return there, status
end

-- Gives back what a fetch had that was raised out of: now, or once neither the
-- disk nor a GPU's engine touches it.
local function leave(self, region)
  local arrived = self.takers[region]
  if not (arrived and self.file) then return end
  if not arrived.generation then return give_memory(self, region) end
  arrived.generation = false            -- as if a stop had dropped it
  take_back(self)
end

--- Has a key's value be in memory, if the file has it; waits. Returns whether
-- it is there; or nil and a status.
function Tier:fetch(key)
  if not self.file then return self.store:has(key) end
  local under_way = self.fetching[key]
  if under_way and not is_dropped(under_way) then
    under_way:wait()
    if not self.store.cache then return nil, core.PERIGEE_CLOSED end
    -- It may have failed, or the value is evicted again.
    return self.store:has(key) or self:fetch(key)
  end
  under_way = promise(self, "fetching from a file")
  self.fetching[key] = under_way
  local fine, result, status = pcall(bring, self, key, under_way)
  self.fetching[key] = nil
  futures.settle(under_way, true)
  if fine then return result, status end
  if under_way.region then leave(self, under_way.region) end
  errors.pass(result)
  error(result, 0)
end

-- ---- Its life --------------------------------------------------------------

--- Opens the file of a store. options: file (a path), file_size (bytes).
-- Returns it; or nil and an error.
function M.open(store, options)
  local out = ffi.new "struct perigee_cache_file *[1]"
  local reason = ffi.new("char[256]")
  local status = C.perigee_cache_file_open(
    ffi.new("struct perigee_cache_file_options", {
      path = options.file, size = options.file_size }),
    store.cache, loop.now(), wall(), out, reason, 256)
  if status < 0 then
    return nil, failure.of(status, ("opening %s for %s"):format(options.file,
      store.text), reason[0] ~= 0 and ffi.string(reason) or nil)
  end
  local self = setmetatable({
    store = store, file = out[0], path = options.file, tokens = 0, done = {},
    driver = false, shown = false, settled = false, owed = 0,
    descriptor = C.perigee_cache_file_descriptor(out[0]), fetching = {},
    cold = colds.new(store, store.moves and WAY), void = {}, memory = {},
    on_way = {},
    voids = 0, full = false, regions = 0, taken = 0, takers = {},
    given = futures.done(true), patience = LAST,
  }, Tier)
  self:drive()
  return self
end

--- Tells the counters of the file: those of its directory, and its state.
function Tier:state()
  C.perigee_cache_file_state(self.file, state)
  return { failed = state.failed, ready = state.ready == 1,
           ring = state.ring == 1, direct = state.direct == 1 }
end

-- Goes on with a file that is being closed, until f(self) is true; sleeps while
-- it has nothing to tell. Returns whether that was so before the deadline.
local function await(self, f, deadline)
  while not f(self) do
    if loop.now() > deadline then return false end
    ready.look(self.descriptor, ready.IN, MOMENT)
    poll(self)
  end
  return true
end

-- Has the file forget all that is void; returns whether it has.
local function has_forgotten(self)
  forget_more(self)
  if next(self.void) ~= nil or self.owed > 0 then return false end
  C.perigee_cache_file_settled(self.file)
  return true
end

-- Closes the file, unless something is under way; returns whether it has. It is
-- removed first, if it may show forgotten values again.
local function has_closed(self)
  if next(self.void) ~= nil or has_failed(self) then os.remove(self.path) end
  return C.perigee_cache_file_close(self.file) ~= core.PERIGEE_AGAIN
end

--- Closes it, once nothing is under way. Blocks for what the disk was asked
-- for: milliseconds, mostly, and 5 s if it does not answer.
function Tier:close()
  if not self.file then return end
  descriptor.forget(self.descriptor)
  C.perigee_cache_below(self.store.cache, nil)
  local deadline = loop.now() + self.patience
  local forgotten = await(self, has_forgotten, deadline)
  local closed = await(self, has_closed, deadline)
  if not (forgotten and closed) then
    log.write("error", ("%s: its file does not answer, and is %s"):format(
      self.store.text, closed and "removed" or "left open"))
  end
  self.file, self.full = false, false
  futures.settle(self.given, true)
end

return M
