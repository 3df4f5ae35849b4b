-- SPDX-License-Identifier: Apache-2.0
--- Views and loans: give a handler, writer or reader access to bytes of the
-- library while it runs. It must not keep them: using one later raises. A
-- handler's request and a reader's reply are views; an inplace handler's reply
-- and the buffer that a writer fills are loans.
--
-- * `pointer`: uint8_t *; accesses through it are not checked against `length`
-- * `length`: bytes; a loan's is its capacity
-- @classmod View

-- Views are reused, so that calls allocate nothing. They are reused in turn, so
-- that a view which was kept by mistake stays invalid for many calls.
local check = require "perigee.runtime.check"
local native = require "perigee.native"
local slices = require "perigee.memory.slice"

local ffi = require "ffi"

--- LONGEST: the greatest length of a Lua string.
local M = { LONGEST = 0x7fffff00 }

local TURNS = 64                        -- a power of two
local band = bit.band
local cast, copy, pointer_t = ffi.cast, slices.copy, native.pointer_t
local istype, type = ffi.istype, type
local is_count, is_slice = check.is_count, slices.is_slice

-- live: 0 once the view has ended. lent: is it a loan? missed: did a write not
-- fit into it?
local view_t = ffi.typeof [[
  struct { uint8_t *at; double size; int32_t live; bool lent, missed; }
]]

local function ended(level)
  error("this view is used after the function that was given it ended",
        level + 1)
end

--- The bytes as a Lua string; a copy.
-- @function View:string
-- @treturn string the bytes
-- @waits no
-- @usage
-- agent:serve { name = "text", methods = {
--   upper = { raw = true, function(request)
--     return request:string():upper()
--   end },
-- } }
-- print(assert(agent:proxy(agent.name, "text")):upper "abc")   --> ABC
local function text(view)
  if not istype(view_t, view) then check.dotted("view", "string", 2) end
  if view.live == 0 then ended(2) end
  if view.size > M.LONGEST then
    error(("a view of %.0f bytes is longer than a Lua string can be"):format(
      view.size), 2)
  end
  return ffi.string(view.at, view.size)
end

local function length_of(source)
  if type(source) == "string" then return #source end
  if is_slice(source) then return source.length end
  if not istype(view_t, source) then
    error("write takes a view, a slice or a string, not "
      .. slices.named(source), 3)
  end
  if source.live == 0 then ended(3) end
  return source.size
end

local function too_short(view, length, offset)
  view.missed = true
  error(("%.0f bytes at %.0f do not fit into the %.0f bytes that were lent")
    :format(length, offset, view.size), 3)
end

--- Only for loans: copies a view, a slice or a string into the loan. This
-- raises if the data does not fit, and the call ends in `too_large`. Long ones
-- mostly take less time than by `ffi.copy` to the loan's pointer: a quarter of
-- the processor's last cache and more (8 MiB at least, at most 16) goes past
-- the caches, and on AMD 2 KiB and more are copied by vectors. The source must
-- not overlap with where it goes.
-- @function View:write
-- @tparam View|Slice|string source
-- @tparam[opt=0] number offset where to write in the loan
-- @treturn number the sum of offset and the source's length, which an inplace
--   handler can return if it wrote nothing behind it
-- @waits no
-- @usage
-- local reply = calc:with { capacity = 64 }:copy(function(loan)
--   return loan:write("behind", loan:write "before ")
-- end)
-- print(reply)                                              --> before behind
local function write(view, source, offset)
  if not istype(view_t, view) or not view.lent then
    check.dotted("loan", "write", 2)
  end
  if view.live == 0 then ended(2) end
  offset = offset or 0
  if not is_count(offset) then
    error("write's offset is an integer of at least 0", 2)
  end
  local length = length_of(source)
  if offset + length > view.size then too_short(view, length, offset) end
  if type(source) == "string" then
    copy(view.at + offset, source, length)
  elseif is_slice(source) then
    slices.copy_to(source, view.at + offset, 2)
  else
    copy(view.at + offset, source.at, length)
  end
  return offset + length
end

ffi.metatype(view_t, {
  __index = function(view, key)
    if view.live == 0 then ended(2) end
    if key == "pointer" then return view.at end
    if key == "length" then return view.size end
    if key == "string" then return text end
    if key == "write" and view.lent then return write end
    error(("a view has pointer, length and string(), and a loan write(); no %s")
      :format(tostring(key)), 2)
  end,
  __newindex = function()
    error("a view's fields cannot be set; its bytes are at view.pointer", 2)
  end,
  __len = function(view) return view.length end,
  __tostring = function(view)
    if view.live == 0 then return "view (ended)" end
    return ("view (%d bytes)"):format(view.size)
  end,
})

local views = {}
for i = 0, TURNS - 1 do views[i] = view_t() end

-- The turn of the last view, as an integer: LuaJIT takes a multiplication, a
-- rounding, a multiplication and a subtraction for `%` of numbers, and checks
-- that the result is an index.
local turn = ffi.new "int32_t[1]"

--- A live view of length bytes at pointer. One of TURNS before may be live
-- still: a handler's request, while the handler makes calls by writers.
local function open(pointer, length)
  local at = band(turn[0] + 1, TURNS - 1)
  turn[0] = at
  local view = views[at]
  if view.live ~= 0 then
    view = view_t()
    views[at] = view
  end
  view.at, view.size, view.live = cast(pointer_t, pointer), length, 1
  view.lent, view.missed = false, false
  return view
end
M.open = open

--- Ends view.
function M.close(view)
  view.live = 0
end

--- The same for a loan. M.take_back ends it, and returns whether a write did
-- not fit into it.
function M.lend(pointer, length)
  local view = open(pointer, length)
  view.lent = true
  return view
end

function M.take_back(view)
  view.live = 0
  return view.missed
end

--- Is x a view?
function M.is_view(x)
  return ffi.istype(view_t, x)
end

return M
