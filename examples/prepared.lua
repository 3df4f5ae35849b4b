-- SPDX-License-Identifier: Apache-2.0
-- Prepared transfers: checked and resolved once, then posted again and again.
-- Each post moves the bytes that the memory has at that time.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local POSTS = 20000
local u64 = ffi.typeof("uint64_t *")

local function worker()
  local engine = perigee.engine {}
  assert(engine:alloc(4096, { name = "counter", access = "rw" }))
  local listener = assert(engine:listen(common.address()))
  common.ready()
  assert(listener:accept(10))
end

local function driver()
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local counter = assert(session:region("counter"))
  local here = engine:alloc(4096)
  local mine = ffi.cast(u64, here:slice(0, 4096).pointer)

  local put = session:prepare_write { from = here:slice(0, 8),
                                      to = counter:slice(0, 8) }
  local get = session:prepare_read { from = counter:slice(0, 8),
                                     to = here:slice(8, 8) }
  local started, posts = os.clock(), 0
  repeat
    posts = posts + 1
    mine[0] = posts
    assert(put:post():wait(1))
    assert(get:post():wait(1))
    if mine[1] ~= posts then error("an old value came back") end
  until posts == POSTS or os.clock() - started > 1
  local each = (os.clock() - started) / (2 * posts)
  print(("posted %d writes and reads of 8 bytes, every value checked: "
    .. "%.3f us each"):format(2 * posts, each * 1e6))
  engine:close()
end

common.main(driver, { worker = worker }, { "worker" })
