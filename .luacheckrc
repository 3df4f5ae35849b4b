-- SPDX-License-Identifier: Apache-2.0
std = "luajit"
max_line_length = 80
self = false -- methods are called with a colon, used or not
include_files = {
  "lua/**/*.lua", "lua/perigee/cli/perigee", "examples/**/*.lua",
  "bench/**/*.lua", "spec/**/*.lua",
  ".luacheckrc", ".busted", "*.rockspec",
}
exclude_files = { "lua/perigee/cdef.lua", "build/**" } -- made by make
files["spec/**/*_spec.lua"].std = "+busted"
files["*.rockspec"].std = "+rockspec"
files[".luacheckrc"].std = "+luacheckrc"
