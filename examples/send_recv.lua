-- SPDX-License-Identifier: Apache-2.0
-- Messages: sends match receives in order; the receiver says where they land.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local SIZES = { 0, 1, 64, 4096, 2 ^ 16, 2 ^ 20, 2 ^ 24 }
local LARGEST = 2 ^ 24

-- Sends every message back as it came.
local function worker()
  local engine = perigee.engine {}
  local region = engine:alloc(LARGEST)
  local listener = assert(engine:listen(common.address()))
  common.ready()
  local session = assert(listener:accept(10))
  for _ = 1, #SIZES do
    local length = assert(session:recv(region:slice(0, LARGEST)):wait(5))
    assert(session:send(region:slice(0, length)):wait(5))
  end
  local length, err = session:recv(region:slice(0, 10)):wait(5)
  assert(not length and err.kind == "too_large")
end

local function driver()
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local out, back = engine:alloc(LARGEST), engine:alloc(LARGEST)
  for n, size in ipairs(SIZES) do
    local message = out:slice(0, size)
    ffi.fill(message.pointer, size, n)
    local receive = session:recv(back:slice(0, LARGEST))
    assert(session:send(message):wait(5))
    assert(receive:wait(5) == size, "another length came back")
    assert(back:slice(0, size):string() == message:string(), "other bytes")
  end
  print("sent and got back " .. table.concat(SIZES, ", ") .. " bytes")

  local done, err = session:send(out:slice(0, 11)):wait(5)
  assert(not done and err.kind == "too_large")
  print("11 bytes for a receive of 10: " .. tostring(err))
  engine:close()
end

common.main(driver, { worker = worker }, { "worker" })
