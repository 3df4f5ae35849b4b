-- SPDX-License-Identifier: Apache-2.0
--- Loads perigee/cache.so, a cache's store. Modules require this only when they
-- need it.
local ffi = require "ffi"

local C = require "perigee.object" {
  name = "perigee.cache",
  header = "perigee.cache.cdef",
  declared = "struct perigee_cache_options",
  missing = "perigee/cache.so is not on package.cpath: run make",
  unloaded = "%s cannot be loaded: %s",
}

-- The largest power of two that is no more than n: slabs are such.
local function power_of_two(n)
  local _, exponent = math.frexp(n)
  return 2 ^ (exponent - 1)
end

return {
  C = C,
  power_of_two = power_of_two,
  options_t = ffi.typeof "struct perigee_cache_options",
  cache_out_t = ffi.typeof "struct perigee_cache *[1]",
  want_t = ffi.typeof "struct perigee_cache_want",
  put_t = ffi.typeof "struct perigee_cache_put",
  place_t = ffi.typeof "struct perigee_cache_place",
  cold_t = ffi.typeof "struct perigee_cache_cold[?]",
  counters_t = ffi.typeof "struct perigee_cache_counters",
}
