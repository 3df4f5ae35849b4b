-- SPDX-License-Identifier: Apache-2.0
-- One-sided reads: a worker lends a table of numbers and a driver reads parts
-- of it, while the worker's program does nothing.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local COUNT = 2 ^ 18
local u32 = ffi.typeof("uint32_t *")

local function worker()
  local engine = perigee.engine {}
  local region = engine:alloc(COUNT * 4, { name = "numbers", access = "r" })
  local numbers = ffi.cast(u32, region:slice(0, COUNT * 4).pointer)
  for i = 0, COUNT - 1 do numbers[i] = 3 * i + 1 end
  local listener = assert(engine:listen(common.address()))
  common.ready()
  assert(listener:accept(10))
end

local function driver()
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local remote = assert(session:region("numbers"))
  local here = engine:alloc(COUNT * 4)
  local numbers = ffi.cast(u32, here:slice(0, COUNT * 4).pointer)

  -- One number, from the middle.
  assert(session:read { from = remote:slice(4 * 1000, 4),
                        to = here:slice(0, 4) }:wait(1))
  assert(numbers[0] == 3001, "the wrong number came")
  print("read 4 bytes at offset 4000: " .. numbers[0])

  -- All of them.
  assert(session:read { from = remote:slice(0, COUNT * 4),
                        to = here:slice(0, COUNT * 4) }:wait(5))
  for i = 0, COUNT - 1 do assert(numbers[i] == 3 * i + 1) end
  print(("read %d numbers, every one checked"):format(COUNT))

  -- The owner refuses an access that it did not grant, and no byte changes.
  local done, err = session:write { from = here:slice(0, 4),
                                    to = remote:slice(0, 4) }:wait(1)
  assert(not done and err.kind == "denied", "a read-only region was written")
  print("writing is refused: " .. tostring(err))
  engine:close()
end

common.main(driver, { worker = worker }, { "worker" })
