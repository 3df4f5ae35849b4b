-- SPDX-License-Identifier: Apache-2.0
--- Loads one of the library's objects beside its core, such as
-- perigee/control.so: finds it along package.cpath, declares its header (a
-- module made by make) and checks that both have the same ABI. For use inside
-- the library.
local ending = require "perigee.runtime.ending"
local ffi = require "ffi"

local function declare(object)
  if pcall(ffi.sizeof, object.declared) then return true end
  local fine, text = pcall(require, object.header)
  if fine then ffi.cdef(text) end
  return fine
end

-- Raises a sentence if it cannot be had.
-- @tparam table object name ("perigee.control"), header (module of its
--   declarations), declared (a type of those); missing and unloaded: what to do
-- @return the object, as ffi.load gives it
return function(object)
  local path = package.searchpath(object.name, package.cpath)
  if not path or not declare(object) then error(object.missing, 0) end
  local loaded, C = pcall(ffi.load, path)
  if not loaded then error(object.unloaded:format(path, C), 0) end
  ending.outlive()
  local abi = (object.name .. ".abi"):gsub("%.", "_")
  if C[abi]() ~= C[abi:upper()] then
    error(("%s is of another version than these Lua modules; install both from "
      .. "one version"):format(path), 0)
  end
  return C
end
