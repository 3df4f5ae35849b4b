-- SPDX-License-Identifier: Apache-2.0
rockspec_format = "3.0"
package = "perigee"
version = "scm-1"

-- LuaRocks wants an address; "make rock" packs the checkout and needs none.
source = {
  url = "git+https://perigee.example/perigee.git",
}

description = {
  summary = "Remote memory and RPC for LuaJIT, with a native C core",
  detailed = [[
    Services are Lua tables, the data path is C: typed, raw and inplace calls,
    and one-sided reads and writes, between processes through shared memory,
    over TCP and over RDMA.
  ]],
  license = "Apache-2.0",
}

supported_platforms = { "linux" }
dependencies = { "lua == 5.1" } -- as LuaJIT presents itself
external_dependencies = {
  CARES = { header = "ares.h", library = "cares" },
  CRYPTO = { header = "openssl/evp.h", library = "crypto" },
  SODIUM = { header = "sodium.h", library = "sodium" },
  XXHASH = { header = "xxhash.h" },
}

build = {
  type = "make",
  build_target = "core",
  install_target = "install-lua",
  build_variables = { CC = "$(CC)", CFLAGS = "$(CFLAGS)" },
  install_variables = {
    CC = "$(CC)", CFLAGS = "$(CFLAGS)",
    LUADIR = "$(LUADIR)", LIBDIR = "$(LIBDIR)", BINDIR = "$(BINDIR)",
    MANDIR = "$(PREFIX)/man",           -- the rock's own folder
  },
}

-- The command names LuaJIT by itself, and finds its modules beside it.
deploy = { wrap_bin_scripts = false }
