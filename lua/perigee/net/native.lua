-- SPDX-License-Identifier: Apache-2.0
--- Loads perigee/control.so, which connects to servers such as Redis. Modules
-- require this only when they need it, since the library is optional.
local ffi = require "ffi"

local MISSING = "perigee/control.so is not on package.cpath: install "
  .. "libcurl4-openssl-dev, libhiredis-dev, libmicrohttpd-dev, "
  .. "libsqlite3-dev, libc-ares-dev, libsodium-dev and libssl-dev, and run "
  .. "make"

local UNLOADED = "%s cannot be loaded: %s; it takes libcurl4, libhiredis0.14, "
  .. "libmicrohttpd12 and libsqlite3-0, as Debian calls them"

local C = require "perigee.object" {
  name = "perigee.control",
  header = "perigee.net.cdef",
  declared = "struct perigee_stream_to",
  missing = MISSING,
  unloaded = UNLOADED,
}

return {
  C = C,
  to_t = ffi.typeof "struct perigee_stream_to",
  wait_t = ffi.typeof "struct perigee_stream_wait",
  reply_out_t = ffi.typeof "struct perigee_reply *[1]",
  words_t = ffi.typeof "const char *[?]",
  lengths_t = ffi.typeof "uint64_t[?]",
  length_t = ffi.typeof "uint64_t[1]",
  request_t = ffi.typeof "struct perigee_http_request",
  answer_t = ffi.typeof "struct perigee_http_answer",
  call_out_t = ffi.typeof "struct perigee_http_call *[1]",
  json_token_t = ffi.typeof "struct perigee_json_token",
}
