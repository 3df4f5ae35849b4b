-- SPDX-License-Identifier: Apache-2.0
-- Runs once before all specs. busted gives every spec file a fresh
-- package.loaded, but ffi.cdef and ffi.metatype can define a type only once per
-- Lua state. Modules that define C types are therefore loaded here, and stay.
local ffi = require "ffi"

-- spec/support/bin/luajit preloads a sanitizer's library into LuaJIT. The
-- shells and other programs that a spec starts run without it.
ffi.cdef "int unsetenv(const char *name);"
ffi.C.unsetenv("LD_PRELOAD")

require "perigee.native"
