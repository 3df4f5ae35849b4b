-- SPDX-License-Identifier: Apache-2.0
--- A cache of this host as its client sees it without any request: the
-- directory and the slabs, mapped for reading only. A value is looked up,
-- copied, and looked up again: if it is still the same, the copy is its bytes
-- (native/cache/seen.c). So no lease is needed, and the cache learns nothing;
-- what was used is told to it now and then (`Member:use`).
--
-- A map is of one session. Nothing of it is touched once the session has ended:
-- its memory is there until the loop has said so.
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

-- Returns a region of the cache's and where it is mapped; or nil and whether it
-- is there, but cannot be mapped.
local function mapped(session, name, timeout)
  local remote, err = session:region(name, { timeout = timeout })
  if not remote then return nil, err end
  if not remote.handle then             -- it has ended since it was looked up
    return nil, session:gone("looking up " .. remote:text())
  end
  local pointer = core.perigee_remote_pointer(remote.handle)
  if pointer == nil then return remote end
  return remote, pointer
end

-- Returns where a piece of the directory is mapped; nil: it is not, or it is
-- shorter than what is read there: the cache may lie.
local function mapped_piece(session, number, timeout)
  local remote, pointer = mapped(session, stores.piece_name(number), timeout)
  if remote and type(pointer) == "cdata"
    and remote.length >= C.PERIGEE_CACHE_PIECE then return pointer end
end

--- Returns the map of a session's cache; nil: the cache is not of this host.
-- Waits.
function M.open(session, timeout)
  local pointer = mapped_piece(session, 0, timeout)
  if not pointer then return nil end
  local view = ffi.gc(C.perigee_cache_view_open(), C.perigee_cache_view_close)
  if C.perigee_cache_view_piece(view, 0, pointer) < 0 then return nil end
  return setmetatable({ session = session, view = view, pieces = 1,
                        timeout = timeout, slabs = {}, growing = false }, Map)
end

-- Maps the pieces that the directory has meanwhile.
local function grow(self)
  while self.session.handle
    and self.pieces < tonumber(C.perigee_cache_view_pieces(self.view)) do
    local pointer = mapped_piece(self.session, self.pieces, self.timeout)
    if not pointer or C.perigee_cache_view_piece(self.view, self.pieces,
                                                 pointer) < 0 then return end
    self.pieces = self.pieces + 1
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

--- Returns a slab, { remote, pointer }; or nil and an error. Waits if it is not
-- known.
function M.slab(slabs, session, number, timeout)
  local slab = slabs[number]
  if slab then return slab end
  local remote, pointer = mapped(session, stores.slab_name(number), timeout)
  if not remote then return nil, pointer end
  slab = { remote = remote, pointer = pointer or false }
  slabs[number] = slab
  return slab
end

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
  if not fine then return nil, err.kind == "stale" and AGAIN or err end
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
  if offset + length > slab.remote.length then return nil, AGAIN end
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

return M
