-- SPDX-License-Identifier: Apache-2.0
--- A cache of this host as its client sees it without any request: the
-- directory and the slabs, mapped for reading only. A value is looked up,
-- copied, and looked up again: if it is still the same, the copy is its bytes
-- (native/cache/seen.c). So no lease is needed, and the cache learns nothing;
-- what was used is told to it now and then (`Member:use`).
--
-- A map is of one session. Nothing of it is touched once the session has ended:
-- its memory is there until the loop has said so.
--
-- The cache cannot free a slab's memory while this process has it mapped. So a
-- slab that the cache has closed is left here as soon as that is known: because
-- a read of it was stale, or another slab has its index. Views keep it until
-- they close. All regions are looked up for this client alone, so that no one
-- else closes what is mapped.
local native = require "perigee.cache.native"
local slices = require "perigee.memory.slice"
local stores = require "perigee.cache.store"
local tasks = require "perigee.runtime.task"

local ffi = require "ffi"
local C = native.C
local core = require "perigee.native".C
local copy, text = ffi.copy, ffi.string
local tonumber = tonumber

local M = {}

local Map = {}
Map.__index = Map

local OK, NOT_FOUND, AGAIN = core.PERIGEE_OK, core.PERIGEE_NOT_FOUND,
                             core.PERIGEE_AGAIN
-- COPIED: bytes up to which this thread copies at once; more is read as any
-- other transfer, in pieces. TRIES: of a value that changes meanwhile.
local COPIED, TRIES = 2 ^ 18, 3
local place = native.place_t()
-- The session of a map that was closed.
local NONE = { handle = false }

-- Returns a region of the cache's and where it is mapped; or nil and whether it
-- is there, but cannot be mapped.
local function mapped(session, name, timeout)
  local remote, err = session:region_apart(name, timeout)
  if not remote then return nil, err end
  if not remote.handle then             -- it has ended since it was looked up
    return nil, session:gone("looking up " .. remote:text())
  end
  local pointer = core.perigee_remote_pointer(remote.handle)
  if pointer == nil then return remote end
  return remote, pointer
end

-- Maps a piece of the directory, which is kept with the map. Returns false if
-- it is not to be mapped, or is shorter than what is read there: the cache may
-- lie.
local function map_piece(self, number)
  local remote, pointer = mapped(self.session, stores.piece_name(number),
                                 self.timeout)
  if not remote then return false end
  if self.session.handle and type(pointer) == "cdata"
    and remote.length >= C.PERIGEE_CACHE_PIECE
    and C.perigee_cache_view_piece(self.view, number, pointer) >= 0 then
    self.directory[number + 1], self.pieces = remote, number + 1
    return true
  end
  remote:close()
  return false
end

--- Returns the map of a session's cache; nil: the cache is not of this host.
-- Waits. It is closed by its owner.
function M.open(session, timeout)
  local view = ffi.gc(C.perigee_cache_view_open(), C.perigee_cache_view_close)
  local self = setmetatable({ session = session, view = view, pieces = 0,
                              timeout = timeout, directory = {},
                              slabs = M.slabs(), growing = false }, Map)
  return map_piece(self, 0) and self or nil
end

-- Maps the pieces that the directory has meanwhile.
local function grow(self)
  while self.session.handle
    and self.pieces < tonumber(C.perigee_cache_view_pieces(self.view)) do
    if not map_piece(self, self.pieces) then return end
  end
end

-- The directory cannot tell: it may have pieces that are not mapped.
local function unsure(self)
  if not self.growing
    and C.perigee_cache_view_pieces(self.view) > self.pieces then
    self.growing = true
    tasks.spawn(function()
      grow(self)
      self.growing = false
    end)
  end
  return AGAIN
end

-- Looks a key up; returns a status.
local function look(self, key)
  local status = C.perigee_cache_seen(self.view, key, #key, place)
  if status == AGAIN then return unsure(self) end
  return status
end

-- ---- Slabs -----------------------------------------------------------------

-- The lower bits of a slab's number: the cache has one of them at a time
-- (perigee_cache_add). What is spilled has indexes of its own.
local function index_of(number)
  local spilled = number >= C.PERIGEE_CACHE_SPILLED
  return number % 2 ^ 16 + (spilled and 2 ^ 16 or 0)
end

--- Returns a table of slabs by their numbers, which is empty. at: the number of
-- the slab of each index.
function M.slabs() return { at = {} } end

--- The cache has closed a slab, which may be known.
function M.lost(slabs, number)
  local slab = slabs[number]
  if not slab then return end
  slabs[number], slabs.at[index_of(number)] = nil, nil
  slab.lost = true
  if slab.views == 0 then slab.remote:leave() end
end

--- Closes all slabs that are known; those that have views, when these have
-- closed. What is under way may look others up, which end with the session.
function M.close(slabs)
  for _, number in pairs(slabs.at) do M.lost(slabs, number) end
end
jit.off(M.close)

--- A view of a slab opens, which keeps it mapped. Returns the slab.
function M.enter(slabs, number)
  local slab = slabs[number]
  slab.views = slab.views + 1
  return slab
end

--- A view of a slab has closed.
function M.leave(slab)
  slab.views = slab.views - 1
  if slab.lost and slab.views == 0 then slab.remote:leave() end
end

-- Adds a slab, unless another task has looked it up, too.
local function add(slabs, number, remote, pointer)
  local known, index = slabs[number], index_of(number)
  if known then
    remote:close()
    return known
  end
  if slabs.at[index] then M.lost(slabs, slabs.at[index]) end
  local slab = { remote = remote, pointer = pointer or false, views = 0,
                 lost = false }
  slabs[number], slabs.at[index] = slab, number
  return slab
end

--- Returns a slab, { remote, pointer }; or nil and an error. Waits if it is not
-- known.
function M.slab(slabs, session, number, timeout)
  local slab = slabs[number]
  if slab then return slab end
  local remote, pointer = mapped(session, stores.slab_name(number), timeout)
  if not remote then return nil, pointer end
  return add(slabs, number, remote, pointer)
end

-- ---- Reading ---------------------------------------------------------------

--- Is a key there? True, false; or nil: ask the cache.
function Map:has(key)
  if not self.session.handle then return nil end
  local status = look(self, key)
  if status == OK then return true end
  if status == NOT_FOUND then return false end
  return nil
end

--- Returns the version of a key's value; nil: it is not there, or ask the
-- cache.
function Map:version(key)
  if not self.session.handle or look(self, key) ~= OK then return nil end
  return tonumber(place.version)
end

-- Is a value's place what it was when it was looked up?
local function same(self, key, at)
  return self.session.handle
    and C.perigee_cache_same(self.view, key, #key, at) == 1
end

-- Does a slice have one block, which this thread may write?
local function is_plain(into)
  return slices.is_slice(into) and into.count == 1 and into.pointer ~= nil
end

-- Reads a long value, or one to places that are not plain; waits. The place is
-- copied, for others look keys up meanwhile.
local function read(self, key, slab, into, length)
  local at = native.place_t(place)
  local part = slices.first(into, length)
  local fine, err = self.session:read {
    from = slab.remote:slice(tonumber(at.offset), length),
    to = part, timeout = self.timeout }:wait()
  if not fine then
    if err.kind ~= "stale" then return nil, err end
    M.lost(self.slabs, tonumber(at.slab))
    return nil, AGAIN
  end
  if not same(self, key, at) then return nil, AGAIN end
  return part, at.checksum
end

-- Copies what was looked up; returns the filled part of into, or a string; or
-- nil and a status or an error.
local function take(self, key, into)
  local length, number = tonumber(place.length), tonumber(place.slab)
  if into and into.length < length then
    return nil, core.PERIGEE_TOO_LARGE, length
  end
  local slab = self.slabs[number]
  if not slab then
    local err
    slab, err = M.slab(self.slabs, self.session, number, self.timeout)
    if not slab then return nil, err.kind == "not_found" and AGAIN or err end
    return nil, AGAIN                   -- it may have changed meanwhile
  end
  local offset = tonumber(place.offset)
  if length > C.PERIGEE_CACHE_LARGEST
    or offset + length > slab.remote.length then
    return nil, AGAIN
  end
  local from = slab.pointer and slab.pointer + offset
  if into and (length > COPIED or not from or not is_plain(into)) then
    return read(self, key, slab, into, length)
  elseif not from then
    return nil, AGAIN
  end
  local part
  if into then
    copy(into.pointer, from, length)
    part = slices.first(into, length)
  else
    part = text(from, length)
  end
  if not same(self, key, place) then return nil, AGAIN end
  return part, place.checksum
end

--- Gets a value into a slice, or as a string without one. Returns it and its
-- checksum; or nil and a status (NOT_FOUND; TOO_LARGE and the value's length;
-- AGAIN: ask the cache) or an error.
function Map:get(key, into)
  for _ = 1, TRIES do
    if not self.session.handle then return nil, AGAIN end
    local status = look(self, key)
    if status ~= OK then return nil, status end
    local part, why, length = take(self, key, into)
    if part or why ~= AGAIN then return part, why, length end
  end
  return nil, AGAIN
end

--- Ends it: whoever reads is told to ask the cache. Nothing stays mapped.
function Map:close()
  local directory = self.directory
  self.session, self.directory = NONE, {}
  for _, remote in ipairs(directory) do remote:close() end
  M.close(self.slabs)
end
jit.off(Map.close)

return M
