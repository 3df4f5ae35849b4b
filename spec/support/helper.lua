-- SPDX-License-Identifier: Apache-2.0
-- Runs once before all specs. busted gives every spec file a fresh
-- package.loaded, but ffi.cdef and ffi.metatype can only be told once in one
-- Lua state: so whatever owns a C type is loaded here, and stays.
local ffi = require "ffi"

-- A sanitizer's library is preloaded into LuaJIT by spec/support/luajit;
-- the shells and other programs that a spec starts go without.
ffi.cdef "int unsetenv(const char *name);"
ffi.C.unsetenv("LD_PRELOAD")

require "perigee.native"
