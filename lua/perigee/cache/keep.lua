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
--
-- The holder's answers are waited for only while all this happens, without
-- blocking the loop. Later it is told of what comes and goes, and its answers
-- are looked at now and then: one that owes an answer for long is given up.
local descriptor = require "perigee.descriptor"
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

-- PATIENCE: seconds until an answer of the holder's. SHORT: ms of these for
-- which the thread waits by itself: mostly it takes some microseconds. NONE: a
-- number that is never held.
local PATIENCE, SHORT, NONE = 1, 5, 2 ^ 32 - 1
local OK, AGAIN, NOT_FOUND = core.PERIGEE_OK, core.PERIGEE_AGAIN,
                             core.PERIGEE_NOT_FOUND
local PEER_LOST = core.PERIGEE_PEER_LOST
local PIECE = C.PERIGEE_CACHE_PIECE
local name = ffi.new("char[?]", C.PERIGEE_CACHE_HELD_NAME)
local fd = ffi.new "int[1]"

-- ---- The holder ------------------------------------------------------------

-- Waits for the answer to what was asked, of which `asked` is the status.
-- Returns its status, and leaves what it has in `name` and `fd`.
local function answer(self, asked)
  if asked < 0 then return asked end
  local deadline = loop.deadline(PATIENCE)
  local status = C.perigee_cache_hold_answer(self.fd, SHORT, name, fd)
  while status == AGAIN
    and descriptor.readable(self.fd, loop.left(deadline)) do
    status = C.perigee_cache_hold_answer(self.fd, 0, name, fd)
  end
  return status
end

-- A holder that has failed once is not asked again.
local function lose(self, status)
  self.lost = true
  log.write("error", ("%s: what it keeps for its next process is not complete "
    .. "any more: %s"):format(self.store.text,
                              failure.of(status, "its holder").message))
end

-- Looks at the answers that have come to what nobody waited for.
local function collect(self)
  while self.owed > 0 and not self.lost do
    local status = C.perigee_cache_hold_answer(self.fd, 0, name, fd)
    if status == AGAIN then return end
    self.owed, self.since = self.owed - 1, loop.now()
    if status < 0 and status ~= NOT_FOUND then lose(self, status) end
  end
end

-- Something was asked, of which `asked` is the status, and nobody waits.
local function owe(self, asked)
  if asked < 0 then return lose(self, asked) end
  if self.owed == 0 then self.since = loop.now() end
  self.owed = self.owed + 1
  collect(self)
end

--- Looks whether the holder answers; called again and again.
function Keep:turn()
  collect(self)
  if self.owed > 0 and not self.lost
    and loop.now() - self.since > PATIENCE * 1e9 then
    lose(self, PEER_LOST)
  end
end

-- ---- What is held ----------------------------------------------------------

-- Takes what is held: a list of { life, kind, number, length, fd, name }.
-- Returns whether that is all, too.
local function take_all(self)
  local list, take = {}, C.perigee_cache_hold_take
  local status = answer(self, take(self.fd, 0))
  while status == OK do
    local text = ffi.string(name)
    local life, kind, number, length =
      text:match "^(%d+)%.(%a+)%.?(%d*)%.?(%d*)$"
    list[#list + 1] = { life = tonumber(life), kind = kind, name = text,
                        number = tonumber(number), length = tonumber(length),
                        fd = fd[0] }
    status = answer(self, take(self.fd, #list))
  end
  return list, status == NOT_FOUND
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

-- Names of this life.
local function slab_name(self, number, length)
  return ("%.0f.slab.%.0f.%.0f"):format(self.life, number, length)
end

local function piece_name(self, number)
  return ("%.0f.piece.%.0f"):format(self.life, number)
end

--- Keeps a slab, a piece of the directory; or drops a slab.
function Keep:slab(number, region)
  if self.lost then return end
  owe(self, C.perigee_cache_hold_put(self.fd,
    slab_name(self, number, region.length), region:file()))
end

function Keep:piece(number, region)
  if self.lost then return end
  owe(self, C.perigee_cache_hold_put(self.fd, piece_name(self, number),
                                     region:file()))
end

function Keep:drop(number, length)
  if self.lost then return end
  owe(self, C.perigee_cache_hold_drop(self.fd,
                                      slab_name(self, number, length)))
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
      answer(self, C.perigee_cache_hold_drop(self.fd, each.name))
    end
  end
end

local function hold(self, text, region)
  return answer(self, C.perigee_cache_hold_put(self.fd, text, region:file()))
    == OK
end

-- Has all memory of the store held. Returns whether it is.
local function hold_all(self)
  local slabs, pieces, fine = self.store.slabs, self.store.pieces, true
  for number, region in pairs(slabs) do
    fine = fine and hold(self, slab_name(self, number, region.length), region)
  end
  for i, region in ipairs(pieces) do
    fine = fine and hold(self, piece_name(self, i - 1), region)
  end
  return fine and hold(self, ("%.0f.whole"):format(self.life), pieces[1])
end
jit.off(hold_all)

-- Connects to a holder that serves this process. Returns a descriptor or a
-- status: PERIGEE_PEER_LOST if the holder has hung up.
local function try(path, seconds)
  local holder = C.perigee_cache_hold(path, seconds * 1e9)
  if holder < 0 then return holder end
  local status = answer({ fd = holder },
                        C.perigee_cache_hold_take(holder, NONE))
  if status == NOT_FOUND then return holder end
  close(holder)
  return status == PEER_LOST and status or core.PERIGEE_NAME_TAKEN
end

-- The same; a holder that was about to end has another one after it.
local function connect(path, seconds)
  local holder = try(path, seconds)
  if holder == PEER_LOST then holder = try(path, seconds) end
  return holder == PEER_LOST and core.PERIGEE_NAME_TAKEN or holder
end

--- Goes on with what the holder at a path has, and has it keep what the store
-- has from now on, for `seconds` after the end of this process. Returns it, and
-- how many entries are there; or nil and an error.
function M.open(store, path, seconds)
  local holder = connect(path, seconds)
  if holder < 0 then
    return nil, failure.of(holder, ("keeping %s: the holder at %s"):format(
      store.text, path))
  end
  local self = setmetatable({ store = store, fd = holder, lost = false,
                              owed = 0, since = 0,
                              life = math.floor(uptime() * 1e-3) }, Keep)
  local list, all = take_all(self)
  local life, came = newest(list), 0
  if life and all then came = revive(store, of_life(list, life)) end
  if not (all and hold_all(self)) then
    for _, each in ipairs(list) do close(each.fd) end
    self:close()
    return nil, failure.of(PEER_LOST, "keeping " .. store.text)
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
