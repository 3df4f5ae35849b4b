-- SPDX-License-Identifier: Apache-2.0
--- Loads perigee/cache.so, a cache's store: finds it along package.cpath,
-- declares its header (cache/cdef, made by make) and checks that both have the
-- same ABI. Modules require this only when they need it.
local ffi = require "ffi"
local MISSING = "perigee/cache.so is not on package.cpath: run make"

local function declare()
  if pcall(ffi.sizeof, "struct perigee_cache_options") then return true end
  local fine, text = pcall(require, "perigee.cache.cdef")
  if fine then ffi.cdef(text) end
  return fine
end

local path = package.searchpath("perigee.cache", package.cpath)
if not path or not declare() then error(MISSING, 0) end
local loaded, C = pcall(ffi.load, path)
if not loaded then
  error(("%s cannot be loaded: %s"):format(path, C), 0)
end
if C.perigee_cache_abi() ~= C.PERIGEE_CACHE_ABI then
  error(("%s is of another version than these Lua modules; install both from "
    .. "one version"):format(path), 0)
end

return {
  C = C,
  options_t = ffi.typeof "struct perigee_cache_options",
  cache_out_t = ffi.typeof "struct perigee_cache *[1]",
  want_t = ffi.typeof "struct perigee_cache_want",
  put_t = ffi.typeof "struct perigee_cache_put",
  place_t = ffi.typeof "struct perigee_cache_place",
  counters_t = ffi.typeof "struct perigee_cache_counters",
}
