-- SPDX-License-Identifier: Apache-2.0
--- Views and loans: windows onto bytes that belong to somebody else for the
-- time of one handler, writer or reader, which is given one and may not keep
-- it.
--
--   view.pointer    uint8_t *
--   view.length     bytes, a number; of a loan its capacity
--   view:string()   the bytes as a Lua string
--
-- Using one after the function that it was given to has ended raises. Views are
-- used again, so that calls allocate nothing; they come round in turns, so that
-- one which was kept by mistake stays dead for many calls.
local native = require "perigee.native"

local ffi = require "ffi"

local M = {}

local TURNS = 64
local cast, pointer_t = ffi.cast, native.pointer_t

local view_t = ffi.typeof
  [[struct { uint8_t *at; double size; int32_t live; }]]

local function text(view)
  if view.live == 0 then
    error("this view is used after the function that was given it ended", 2)
  end
  return ffi.string(view.at, view.size)
end

ffi.metatype(view_t, {
  __index = function(view, key)
    if view.live == 0 then
      error("this view is used after the function that was given it ended", 2)
    end
    if key == "pointer" then return view.at end
    if key == "length" then return view.size end
    if key == "string" then return text end
    error(("a view has pointer, length and string(), no %s")
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

local views, turn = {}, 0
for i = 0, TURNS - 1 do views[i] = view_t() end

--- A live view of length bytes at pointer.
function M.open(pointer, length)
  turn = (turn + 1) % TURNS
  local view = views[turn]
  view.at, view.size, view.live = cast(pointer_t, pointer), length, 1
  return view
end

--- Ends view.
function M.close(view)
  view.live = 0
end

--- Is x a view?
function M.is_view(x)
  return ffi.istype(view_t, x)
end

return M
