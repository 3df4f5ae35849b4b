-- SPDX-License-Identifier: Apache-2.0
--- Slices: parts of a region, of a peer's region or of a pooled block.
-- Transfers and calls take slices; a slice may consist of several blocks.
--
-- * `length`: bytes of all blocks together. (`#slice` is it only in a LuaJIT
--   that was built with the length operator of Lua 5.2, and otherwise 0)
-- * `offset`: of its first byte in its owner
-- * `pointer`: uint8_t * to its first byte; nil for a peer's memory, and for
--   memory that the CPU cannot touch (`kind` is not "host"). The pointer does
--   not keep the memory alive, the slice does
-- * `address`: the same as a number, also for a GPU's memory; nil for a peer's
-- * `kind`: of its memory, as `Region.kind`; nil for a peer's
-- * `block`, `count`, `stride`: its shape: count blocks of block bytes each,
--   whose starts lie stride bytes apart. The last block of a part that ends
--   inside a block has what is left of `length`
-- * `owner`: the region, remote region or pooled block; kept alive
--
-- Wherever a slice may stand (in a transfer, a message, a call, a reply, a
-- landing or `into`), a list of 1 to 4096 slices may stand: a table
-- `{ a, b, c }`. Bytes fill its places in order. It counts as one slice, and is
-- one operation with one end; what a list sends arrives as one slice.
--
-- * All slices of a list are own memory of one kind, or memory of one peer.
-- * The library reads the table at once, so that it may be changed afterwards.
-- * Places that bytes are written to may not overlap. Blocks that lie between
--   the blocks of another slice need the same `stride`.
-- * A slice that ends inside a block counts as two of the 4096.
-- * What was filled of a list comes as a list: the filled parts in order, and
--   `length`, their total. Its `string()` gives their bytes, `close()` ends
--   nothing.
-- @classmod Slice
-- @usage
-- local pages = { region:slice(0, 4096), region:slice(16384, 4096) }
-- store:put(region:slice(0, 5000), "key")
-- local got = store:with { into = pages }:get "key"
-- print(#got, got[2].length, got.length)                       --> 2 904 5000

-- An owner has `engine`, `length`, `handle` (false if closed or not attached to
-- the core yet), `base` (a pointer, nil for a peer's memory), `session` (only a
-- peer's region), `attach()` and `text()`.
local check = require "perigee.runtime.check"
local native = require "perigee.native"

local ffi = require "ffi"
local new_table = require "table.new"

local C = native.C
local is_count = check.is_count
local setmetatable, getmetatable, type = setmetatable, getmetatable, type
local tonumber = tonumber

local M = {}

local Slice, methods = {}, {}
local List = {}
List.__index = List
local LIST_MOST = 4096                  -- as in native/perigee.h
local LISTED = 2 ^ 52                   -- the same

local function make(owner, offset, length, block, count, stride)
  return setmetatable({ owner = owner, offset = offset, length = length,
                        block = block, count = count, stride = stride },
                      Slice)
end

local function is_slice(x)
  return type(x) == "table" and getmetatable(x) == Slice
end

--- Is x a slice?
M.is_slice = is_slice

--- May x stand where a slice is meant, as one or as a list of slices?
local function stands(x)
  if type(x) ~= "table" then return false end
  local class = getmetatable(x)
  return class == Slice or class == List or is_slice(rawget(x, 1))
end
M.stands = stands

--- What is wrong with a table of slices that has more than these, which would
-- be lost; nil of what is none, or has no more.
function M.beside(x)
  if type(x) ~= "table" or getmetatable(x) ~= nil then return nil end
  local n = #x
  for key in pairs(x) do
    if not (type(key) == "number" and key % 1 == 0 and key >= 1
            and key <= n) then
      return ("a list of slices has %s beside them"):format(tostring(key))
    end
  end
end
jit.off(M.beside)                       -- its loop over pairs(), see check.lua

--- Names a value that is no slice, for messages. An owner, whose class has
-- `slice` and `text`, is easily given in place of one.
function M.named(x)
  local class = type(x) == "table" and (getmetatable(x) or {}).__index
  if type(class) == "table" and rawget(class, "slice")
    and rawget(class, "text") then
    return x:text() .. ", of which region:slice() is all"
  end
  return "a " .. type(x)
end

--- The check of an option that takes a slice.
function M.check(x)
  if not stands(x) then
    return "a slice, as region:slice(), or a list of slices"
  end
  local why = not is_slice(x) and M.beside(x)
  return why and "a list without more: " .. why or nil
end

local SHAPE = { count = check.count, stride = check.count }

local function shape(owner, offset, block, options, level)
  check.options(options, SHAPE, "slice", level + 1)
  local count = options.count or 1
  local stride = options.stride or block
  if count < 1 or (count > 1 and stride < block) then
    error("a slice needs a count of at least 1 and a stride of at least its "
      .. "length", level + 1)
  end
  if block == 0 then count, stride = 1, 0 end -- no count that means a list
  local span = (count - 1) * stride + block
  if offset + span > owner.length then
    error(("a slice of %d times %d bytes at %d, %d apart, lies outside of %s "
      .. "with %d bytes"):format(count, block, offset, stride, owner:text(),
                                 owner.length), level + 1)
  end
  return make(owner, offset, count * block, block, count, stride)
end

-- Says what is wrong with an offset and a length that are no counts. whole: an
-- owner or a slice.
local function misplaced(whole, offset, length)
  if is_count(offset) and type(length) == "number" and length < 0 then
    return ("a slice at %.0f lies outside of %s with %.0f bytes"):format(offset,
      is_slice(whole) and "a slice" or whole:text(), whole.length)
  end
  local wrong = is_count(offset) and length or offset
  return ("a slice's offset and length are integers of at least 0, not %s")
    :format(type(wrong) == "number" and tostring(wrong) or "a " .. type(wrong))
end

--- The part of owner at offset (default 0) of length bytes (default: the rest).
-- options: count and stride (default: length) for many blocks of length bytes.
-- Raises at level if it would lie outside of owner.
function M.new(owner, offset, length, options, level)
  offset = offset or 0
  length = length or is_count(offset) and owner.length - offset
  if not (is_count(offset) and is_count(length)) then
    error(misplaced(owner, offset, length), level + 1)
  end
  if options ~= nil then
    return (shape(owner, offset, length, options, level + 1)) -- no tail call
  end
  if offset + length > owner.length then
    error(("a slice of %d bytes at %d lies outside of %s with %d bytes")
      :format(length, offset, owner:text(), owner.length), level + 1)
  end
  return make(owner, offset, length, length, 1, length)
end

-- ---- Lists -----------------------------------------------------------------

-- A List has `length`, its slices by number, `owner` (false) and `array`, the
-- structs that the core reads: false until they are needed. There are `room` of
-- them: programs get Lists, and may add slices to one.

local function not_a_slice(i, value)
  return ("number %d of a list is %s, not a slice"):format(i, M.named(value))
end

--- Returns the List of a table of slices, or of one; or nil and what is wrong.
local function listed(x)
  if type(x) ~= "table" or getmetatable(x) == List then return x end
  local list, length, n = { owner = false, array = false, room = 0 }, 0, #x
  if n < 1 or n > LIST_MOST then
    return nil, ("a list has 1 to %d slices, not %d"):format(LIST_MOST, n)
  end
  for i = 1, n do
    local slice = rawget(x, i)
    if not is_slice(slice) then
      return nil, not_a_slice(i, slice)
    end
    list[i] = slice
    length = length + slice.length
  end
  list.length = length
  return setmetatable(list, List)
end

--- Returns the List of a table of slices, with the fields of `of`.
function M.named_list(slices_of, of)
  local list = listed(slices_of)
  for key, value in pairs(of) do list[key] = value end
  return list
end

--- Returns what stands for a slice as an object with a `length`: a slice as it
-- is, a List of a table of slices. Otherwise nil and what is wrong.
function M.place(x)
  if is_slice(x) then return x end
  if not stands(x) and not (type(x) == "table" and next(x) == nil) then
    return nil, "a slice is meant, not " .. M.named(x)
  end
  return listed(x)
end

-- The first length bytes of a list: at least one part. A program may have taken
-- slices out of the List meanwhile.
local function first_of_list(list, length)
  local parts = new_table(#list, 4)
  parts.owner, parts.array, parts.room, parts.length = false, false, 0, length
  local rest = length
  for n = 1, #list do
    local slice = list[n]
    parts[n] = M.first(slice, math.min(slice.length, rest))
    rest = rest - parts[n].length
    if rest == 0 then break end
  end
  return setmetatable(parts, List)
end

--- The first length bytes (which may be a cdata number) of a slice, which
-- itself stands for all of them, or of a List. Of a List they are a List of
-- their own: a program may change it, and the other one may be the `into` of
-- later calls.
function M.first(slice, length)
  length = tonumber(length)
  if getmetatable(slice) == List then return first_of_list(slice, length) end
  if length == slice.length then return slice end
  return slice:slice(0, length)
end

--- A slice, or the first one of a List, which stands for all in messages.
function M.sample(place)
  return getmetatable(place) == List and place[1] or place
end

-- ---- For the core ----------------------------------------------------------

local function store(target, slice)
  target.offset = slice.offset
  target.length = slice.block
  target.count = slice.count
  target.stride = slice.stride
end

-- Does a slice end inside a block? All blocks of the core's slices are whole,
-- so the part of its last block is a slice of its own there.
local function is_ragged(slice)
  return slice.length ~= slice.block * slice.count
end

local function store_part(target, slice)
  local whole = slice.count - 1
  local length = slice.length - whole * slice.block
  target.offset = slice.offset + whole * slice.stride
  target.length, target.count, target.stride = length, 1, length
end

-- The slices that the core gets of a List; or nil, and what is wrong with it.
local function entries_of(list)
  local entries = #list
  for i = 1, #list do
    local slice = list[i]
    if not is_slice(slice) then return nil, not_a_slice(i, slice) end
    if is_ragged(slice) then entries = entries + 1 end
  end
  return entries
end

-- The core's handle of an owner of engine's own memory; or nil, and what is
-- wrong with its slices.
local function own_handle(owner, engine)
  if owner.engine ~= engine or owner.session then
    return nil, "a slice of this engine's own memory is meant, not one of "
      .. owner:text()
  end
  local handle = owner.handle
  if handle then return handle end
  return owner:attach()
end

-- The same of a region that session's peer has.
local function remote_handle(owner, session)
  if owner.session ~= session then
    return nil, "a slice of a region of this session's peer is meant, not one "
      .. "of " .. owner:text()
  end
  if owner.handle then return owner.handle end
  return nil, owner:text() .. " has been closed"
end

-- The structs that the core reads of a List: room for n of them. The core reads
-- them before the function returns that they are given to; the caller keeps the
-- List until then.
local function array_of(list, n)
  if not list.array or n > list.room then
    list.array, list.room = native.slices_t(n), n
  end
  return list.array
end

-- Writes a slice into an array from number at on; returns the number behind it.
local function store_entry(array, at, slice, handle, field)
  local entry = array[at]
  entry[field] = handle
  store(entry, slice)
  if not is_ragged(slice) then return at + 1 end
  entry.count = slice.count - 1
  entry = array[at + 1]
  entry[field] = handle
  store_part(entry, slice)
  return at + 2
end

-- Writes a List. field: of the struct, for the handles. Slices of one owner
-- mostly follow each other.
local function store_list(target, list, of, handle_of, field)
  local n, problem = entries_of(list)
  if not n then return problem end
  if n < 1 or n > LIST_MOST then
    return ("a list has 1 to %d slices, not %d, of which those that end inside "
      .. "a block are two"):format(LIST_MOST, n)
  end
  local array, at = array_of(list, n), 0
  local owner, handle, why
  for i = 1, #list do
    local slice = list[i]
    if slice.owner ~= owner then
      owner = slice.owner
      handle, why = handle_of(owner, of)
      if not handle then return ("number %d of a list: %s"):format(i, why) end
    end
    at = store_entry(array, at, slice, handle, field)
  end
  target.list, target.count = array, LISTED + n
  target.offset, target.length, target.stride = 0, 0, 0
end

-- The List of a slice that ends inside a block, which the slice keeps.
local function list_of(slice)
  local list = rawget(slice, "list")
  if list then return list end
  list = setmetatable({ slice, owner = false, array = false, room = 0,
                        length = slice.length }, List)
  slice.list = list
  return list
end

--- Writes a slice of engine's own memory into a struct perigee_slice. Returns
-- nil, or what is wrong with the slice.
local function store_own(target, slice, engine)
  local owner = slice.owner
  if not owner then
    return store_list(target, slice, engine, own_handle, "region")
  end
  local handle = owner.handle
  if not handle or owner.engine ~= engine or owner.session then
    local why
    handle, why = own_handle(owner, engine)
    if not handle then return why end
  end
  if is_ragged(slice) then
    return store_list(target, list_of(slice), engine, own_handle, "region")
  end
  target.region = handle
  store(target, slice)
end
M.store_own = store_own

--- The same as store_own for any value, which may be no slice and no List.
function M.store_local(target, slice, engine)
  if not is_slice(slice) and getmetatable(slice) ~= List then
    return "a slice is meant, not " .. M.named(slice)
  end
  return store_own(target, slice, engine)
end

--- The same for a slice of a region that session's peer has.
function M.store_remote(target, slice, session)
  if not is_slice(slice) then
    if getmetatable(slice) == List then
      return store_list(target, slice, session, remote_handle, "remote")
    end
    return "a slice is meant, not " .. M.named(slice)
  end
  local handle, why = remote_handle(slice.owner, session)
  if not handle then return why end
  if is_ragged(slice) then
    return store_list(target, list_of(slice), session, remote_handle, "remote")
  end
  target.remote = handle
  store(target, slice)
end

-- ---- For users -------------------------------------------------------------

-- engine: whose memory it has to be; nil: of any of this process.
local function own(slice, what, level, engine)
  local owner = slice.owner
  level = (level or 2) + 1
  if owner.session then
    error(("%s: %s is a peer's memory; read or write it with a transfer")
      :format(what, owner:text()), level)
  end
  if not owner.base then
    error(("%s: %s has been closed"):format(what, owner:text()), level)
  end
  if owner.engine.alive[0] == 0 then
    error(("%s: %s belongs to the parent process"):format(what, owner:text()),
          level)
  end
  if engine and owner.engine ~= engine then
    error(("%s: %s is another engine's memory"):format(what, owner:text()),
          level)
  end
  return owner
end

--- Raises at level unless a place is of an engine's own memory that is there.
function M.check_own(place, what, level, engine)
  if is_slice(place) then
    own(place, what, level + 1, engine)
    return
  end
  for i = 1, #place do own(place[i], what, level + 1, engine) end
end

local LONG = 2 ^ 11 -- COPY_BY_LINES (native/base/copy.h): below, they are alike

--- Copies bytes of host memory; long ones by the core, which knows when vectors
-- or stores past the caches are quicker, as for a loan to a far core. For use
-- inside the library.
function M.copy(to, from, length)
  if length < LONG then
    ffi.copy(to, from, length)
  else
    C.perigee_copy(to, from, length)
  end
end

local copy = M.copy

-- Host memory is copied directly, other kinds of memory through the core.
local function copy_out(owner, offset, to, length)
  if not owner.memory then
    copy(to, owner.base + offset, length)
  elseif C.perigee_region_read(owner.handle, offset, to, length) < 0 then
    error(native.detail(owner.engine.handle), 0)
  end
end

local function copy_in(owner, offset, from, length)
  if not owner.memory then
    copy(owner.base + offset, from, length)
  elseif C.perigee_region_write(owner.handle, offset, from, length) < 0 then
    error(native.detail(owner.engine.handle), 0)
  end
end

--- Copies all bytes of the slice, block after block, to memory that has room
-- for slice.length bytes. Raises at level if the slice is a peer's memory or
-- closed. For use inside the library.
function M.copy_to(slice, to, level)
  local owner, left = own(slice, "copying a slice", level + 1), slice.length
  for i = 0, slice.count - 1 do
    local length = math.min(slice.block, left)
    copy_out(owner, slice.offset + i * slice.stride, to + i * slice.block,
             length)
    left = left - length
  end
end

-- A program may have changed the List since its `length` was found out.
-- Copies bytes into a slice; returns the pointer behind them.
local function fill_from(slice, from)
  local owner, left = own(slice, "copying to a slice", 3), slice.length
  for i = 0, slice.count - 1 do
    local length = math.min(slice.block, left)
    copy_in(owner, slice.offset + i * slice.stride, from, length)
    from, left = from + length, left - length
  end
  return from
end

--- Copies a string into a place (a slice or a List) of own memory, of any
-- shape, that has as many bytes.
function M.copy_from(place, text)
  local from = ffi.cast("const char *", text)
  if getmetatable(place) ~= List then return fill_from(place, from) end
  for i = 1, #place do from = fill_from(place[i], from) end
  return from
end

function List:string()
  local length, at = 0, 0
  for i = 1, #self do length = length + self[i].length end
  local bytes = native.bytes_t(length)
  for i = 1, #self do
    M.copy_to(self[i], bytes + at, 2)
    at = at + self[i].length
  end
  return ffi.string(bytes, length)
end

function List:close()
  for i = 1, #self do self[i]:close() end
end

function List:__tostring()
  return ("list of %d slices (%d bytes)"):format(#self, self.length)
end

--- A copy of its bytes as a Lua string, block after block.
-- @function Slice:string
-- @treturn string the bytes
-- @waits no
-- @usage
-- region:slice(0, 8):write "abcdefgh"
-- print(region:slice(0, 2, { count = 2, stride = 4 }):string()) --> abef
function methods.string(slice)
  local owner = own(slice, "slice:string")
  if slice.count == 1 and not owner.memory then
    return ffi.string(owner.base + slice.offset, slice.length)
  end
  local bytes = native.bytes_t(slice.length)
  M.copy_to(slice, bytes + 0, 2)
  return ffi.string(bytes, slice.length)
end

--- Copies the bytes of a string into a slice of one block.
-- @function Slice:write
-- @tparam string bytes
-- @tparam[opt=0] number offset of the first byte written
-- @treturn Slice the slice itself
-- @waits no
-- @usage
-- print(region:slice(0, 5):write "hello":string())             --> hello
function methods.write(slice, bytes, offset)
  local owner = own(slice, "slice:write")
  offset = offset or 0
  if slice.count ~= 1 then
    error("slice:write needs a slice of one block", 2)
  end
  if type(bytes) ~= "string" or not is_count(offset)
    or offset + #bytes > slice.length then
    error("slice:write takes a string that fits behind offset", 2)
  end
  copy_in(owner, slice.offset + offset, bytes, #bytes)
  return slice
end

local FILLED = 2 ^ 20                   -- bytes that are filled at a time

--- Sets all of its bytes.
-- @function Slice:fill
-- @tparam[opt=0] number byte 0 to 255
-- @treturn Slice the slice itself
-- @waits no
-- @usage
-- print(region:slice(0, 3):fill(65):string())                  --> AAA
function methods.fill(slice, byte)
  local owner = own(slice, "slice:fill")
  if byte ~= nil and not (is_count(byte) and byte <= 255) then
    error("slice:fill takes a byte, an integer of 0 to 255", 2)
  end
  local most = math.max(math.min(slice.block, FILLED), 1)
  local bytes, left = native.bytes_t(most), slice.length
  ffi.fill(bytes, most, byte or 0)
  for i = 0, slice.count - 1 do
    local block = math.min(slice.block, left)
    for at = 0, block - 1, most do
      copy_in(owner, slice.offset + i * slice.stride + at, bytes,
              math.min(most, block - at))
    end
    left = left - block
  end
  return slice
end

-- The first length bytes of a slice of many blocks, which may end inside one.
local function prefix(slice, length)
  if length <= slice.block then
    return make(slice.owner, slice.offset, length, length, 1, length)
  end
  return make(slice.owner, slice.offset, length, slice.block,
              math.ceil(length / slice.block), slice.stride)
end

--- A part of it, in the same memory. A part of a slice of many blocks must
-- begin at the start of a block, and takes no options.
-- @function Slice:slice
-- @tparam[opt=0] number offset bytes
-- @tparam[opt] number length bytes; default: the rest
-- @tparam[opt] table options count and stride, as for `Region:slice`
-- @treturn Slice the part
-- @waits no
-- @usage
-- local half = region:slice(0, 8):slice(4)
-- print(half.offset, half.length)                              --> 4 4
function methods.slice(slice, offset, length, options)
  offset = offset or 0
  length = length or is_count(offset) and slice.length - offset
  if not (is_count(offset) and is_count(length)) then
    error(misplaced(slice, offset, length), 2)
  elseif not options and offset + length > slice.length then
    error(("a slice of %s bytes at %s lies outside of a slice with %d bytes")
      :format(length, offset, slice.length), 2)
  end
  if slice.count == 1 then
    local part = M.new(slice.owner, slice.offset + offset, length, options, 2)
    if options and length > 0 and offset + (part.count - 1) * part.stride
      + length > slice.length then
      error("a slice of many blocks lies outside of the slice it is part of", 2)
    end
    return part
  end
  if options then error("a slice of many blocks has one shape only", 2) end
  if offset % slice.block ~= 0 then
    error("a part of a slice of many blocks begins where a block does", 2)
  end
  local start = slice.offset + offset / slice.block * slice.stride
  return prefix(make(slice.owner, start, slice.length - offset, slice.block,
                     slice.count, slice.stride), length)
end

--- Gives a pooled block back: one in which a call's slice was stored because no
-- other place was given. All slices of the block end. For a slice of a region
-- it does nothing. A block that is not closed is freed by the collector.
-- Idempotent.
-- @function Slice:close
-- @waits no
-- @usage
-- store:put(region:slice(0, 16), "key")
-- local landed = assert(store:get "key")            -- in a pooled block
-- print(landed.length)                                         --> 16
-- landed:close()
function methods.close(slice)
  local owner = slice.owner
  if owner.release then owner:release() end
end

-- As check.colons, for objects whose methods a function finds.
local function guard(name)
  local f = methods[name]
  methods[name] = function(slice, ...)
    if not is_slice(slice) then check.dotted("slice", name, 2) end
    return f(slice, ...)
  end
end
for name in ("close fill slice string write"):gmatch "%S+" do guard(name) end

-- Fields that are made when they are asked for.
local made = {}

function made.pointer(slice)
  local owner = slice.owner
  local base = not owner.memory and owner.base
  return base and base + slice.offset or nil
end

function made.address(slice)
  local base = slice.owner.base
  return base and tonumber(ffi.cast("uintptr_t", base)) + slice.offset
end

function made.kind(slice)
  local owner = slice.owner
  return not owner.session and (owner.kind or "host") or nil
end

Slice.__index = function(slice, key)
  local f = made[key]
  if f then return f(slice) end
  return methods[key]
end

Slice.__len = function(slice) return slice.length end

Slice.__tostring = function(slice)
  if slice.count == 1 then
    return ("slice (%d bytes at %d of %s)"):format(slice.length, slice.offset,
                                                   slice.owner:text())
  end
  return ("slice (%d times %d bytes, %d apart, at %d of %s)"):format(
    slice.count, slice.block, slice.stride, slice.offset, slice.owner:text())
end

return M
