-- SPDX-License-Identifier: Apache-2.0
--- Memory that outlives a cache's process: a holder (native/cache/hold.c) keeps
-- the descriptors of slabs and of the directory's pieces, and the next process
-- of that cache goes on with them. It finds what was sealed. Reservations,
-- leases, TTLs' entries, chains and groups are gone, and epochs are new.
--
-- Nobody can write to a slab of old any more, as it is sealed against that: its
-- entries are read where they are, and new ones come to new slabs. Until it is
-- empty, space in it that has become free is lost; a full cache empties whole
-- slabs of old first.
--
-- Names that the holder has begin with the number of a life. A life that is
-- whole has the name "NUMBER.whole"; others were killed while they took over.
--
--   the holder has     event                                becomes
--   nothing, or lives  the new life's memory is there       those, and the new
--   that are not whole                                      one
--   one that is whole  its entries are in the new life,     both are whole
--                      all of whose memory is held
--   both are whole     what is of older lives is dropped    one that is whole
local failure = require "perigee.cache.failure"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"

local ffi = require "ffi"
local C = native.C
local system = require "perigee.native"
local core, close, uptime = system.C, system.close, system.uptime

local M = {}

local Keep = {}
Keep.__index = Keep

local PIECE = C.PERIGEE_CACHE_PIECE
local name_t = ffi.typeof(("char[%d]"):format(C.PERIGEE_CACHE_HELD_NAME))

-- ---- What is held ----------------------------------------------------------

-- Takes all that is held: a list of { life, kind, number, length, fd, name }.
local function take_all(self)
  local name, fd = name_t(), ffi.new "int[1]"
  local list, take = {}, C.perigee_cache_hold_take
  while take(self.fd, #list, name, fd) == core.PERIGEE_OK do
    local text = ffi.string(name)
    local life, kind, number, length =
      text:match "^(%d+)%.(%a+)%.?(%d*)%.?(%d*)$"
    list[#list + 1] = { life = tonumber(life), kind = kind, name = text,
                        number = tonumber(number), length = tonumber(length),
                        fd = fd[0] }
  end
  return list
end

-- The newest life that is whole, or nil.
local function newest(list)
  local life
  for _, each in ipairs(list) do
    if each.kind == "whole" and (not life or each.life > life) then
      life = each.life
    end
  end
  return life
end

-- A holder that has failed once is not asked again: each question may take a
-- second then.
local function hold(self, name, fd)
  if self.lost then return false end
  local status = C.perigee_cache_hold_put(self.fd,
    ("%.0f.%s"):format(self.life, name), fd)
  if status < 0 then
    self.lost = true
    log.write("error", ("%s: what it keeps for its next process is not "
      .. "complete any more: %s"):format(self.store.text,
      failure.of(status, "keeping " .. name).message))
  end
  return status >= 0
end

local function slab_name(number, length)
  return ("slab.%.0f.%.0f"):format(number, length)
end

--- Keeps a slab, a piece of the directory; or drops a slab.
function Keep:slab(number, region)
  return hold(self, slab_name(number, region.length), region:file())
end

function Keep:piece(number, region)
  return hold(self, ("piece.%.0f"):format(number), region:file())
end

function Keep:drop(number, length)
  if self.lost then return end
  C.perigee_cache_hold_drop(self.fd, ("%.0f.%s"):format(self.life,
    slab_name(number, length)))
end

-- ---- Going on --------------------------------------------------------------

-- Adopts the pieces of a life's directory. Returns a view of it and its
-- regions; or nil: it is of another version, or not complete.
local function see(store, pieces)
  local view = ffi.gc(C.perigee_cache_view_open(), C.perigee_cache_view_close)
  local regions = {}
  for number = 0, #pieces do
    local region = pieces[number]
      and store.engine:adopt(pieces[number].fd, PIECE)
    if not region or C.perigee_cache_view_piece(view, number, region.pointer)
      < 0 then
      return nil, regions
    end
    regions[#regions + 1] = region
  end
  return view, regions
end

-- Has the store read a life's slabs. Returns their old numbers and new ones,
-- and how many.
local function read_slabs(store, slabs)
  local from, to = ffi.new("uint32_t[?]", #slabs + 1),
                   ffi.new("uint32_t[?]", #slabs + 1)
  local n = 0
  for _, each in ipairs(slabs) do
    local number = store:adopt(each.fd, each.length)
    if number then
      from[n], to[n], n = each.number, number, n + 1
    end
  end
  return from, to, n
end

-- Puts a life's entries into the store; returns how many.
local function revive(store, pieces, slabs)
  local view, regions = see(store, pieces)
  local came = 0
  if view and store:grow(#regions) then
    local from, to, n = read_slabs(store, slabs)
    came = tonumber(C.perigee_cache_revive(store.cache, view, from, to, n,
                                           loop.now()))
    for i = 0, n - 1 do C.perigee_cache_retire(store.cache, to[i]) end
  end
  for _, region in ipairs(regions) do region:close(0) end
  return came
end

-- The pieces (by number) and slabs of a life.
local function of_life(list, life)
  local pieces, slabs = {}, {}
  for _, each in ipairs(list) do
    if each.life == life and each.kind == "piece" then
      pieces[each.number] = each
    elseif each.life == life and each.kind == "slab" then
      slabs[#slabs + 1] = each
    end
  end
  return pieces, slabs
end

local function drop_others(self, list)
  for _, each in ipairs(list) do
    close(each.fd)
    if each.life ~= self.life then
      C.perigee_cache_hold_drop(self.fd, each.name)
    end
  end
end

-- Has all memory of the store held.
local function hold_all(self)
  local fine = true
  for number, region in pairs(self.store.slabs) do
    fine = self:slab(number, region) and fine
  end
  for i, region in ipairs(self.store.pieces) do
    fine = self:piece(i - 1, region) and fine
  end
  return fine and hold(self, "whole", self.store.pieces[1]:file())
end
jit.off(hold_all)

--- Goes on with what the holder at a path has, and has it keep what the store
-- has from now on, for `seconds` after the end of this process. Returns it, and
-- how many entries are there; or nil and an error.
function M.open(store, path, seconds)
  local fd = C.perigee_cache_hold(path, seconds * 1e9)
  if fd < 0 then
    return nil, failure.of(fd, ("keeping %s: the holder at %s"):format(
      store.text, path))
  end
  local self = setmetatable({ store = store, fd = fd, lost = false,
                              life = math.floor(uptime() * 1e-3) }, Keep)
  local list = take_all(self)
  local life, came = newest(list), 0
  if life then came = revive(store, of_life(list, life)) end
  if not hold_all(self) then
    for _, each in ipairs(list) do close(each.fd) end
    self:close()
    return nil, failure.of(core.PERIGEE_PEER_LOST, "keeping " .. store.text)
  end
  drop_others(self, list)
  return self, came
end

--- Ends the holder: nothing is kept.
function Keep:forget()
  C.perigee_cache_hold_end(self.fd)
  self:close()
end

function Keep:close()
  if self.fd then close(self.fd) end
  self.fd = false
end

return M
