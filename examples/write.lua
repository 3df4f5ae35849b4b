-- SPDX-License-Identifier: Apache-2.0
-- One-sided writes: a driver writes a text into a worker's memory, reads it
-- back, and tries to go beyond the end of the region.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local LENGTH = 2 ^ 20
local TEXT = ("the point of an orbit where two bodies are closest. "):rep(1000)

local function worker()
  local engine = perigee.engine {}
  assert(engine:alloc(LENGTH, { name = "page", access = "rw" }))
  local listener = assert(engine:listen(common.address()))
  common.ready()
  assert(listener:accept(10))
end

local function driver()
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local page = assert(session:region("page"))
  local here = engine:alloc(LENGTH)
  local from, back = here:slice(0, #TEXT), here:slice(2 ^ 19, #TEXT)
  ffi.copy(from.pointer, TEXT, #TEXT)

  assert(session:write { from = from, to = page:slice(4096, #TEXT) }:wait(1))
  assert(session:read { from = page:slice(4096, #TEXT), to = back }:wait(1))
  assert(back:string() == TEXT, "other bytes came back")
  print(("wrote %d bytes at offset 4096 and read the same back"):format(#TEXT))

  -- A list of transfers is submitted once and ends once.
  local list = {}
  for i = 0, 15 do
    list[i + 1] = { from = here:slice(i * 100, 100),
                    to = page:slice(2 ^ 19 + i * 4096, 100) }
  end
  assert(session:write(list):wait(1))
  print("wrote a batch of 16 as one operation")

  -- A slice outside its region is a mistake of the caller and raises an error
  -- at once.
  local fine = pcall(function() return page:slice(LENGTH - 10, 100) end)
  assert(not fine, "a slice outside of the region was made")
  print("a slice past the end is refused before anything is sent")
  engine:close()
end

common.main(driver, { worker = worker }, { "worker" })
