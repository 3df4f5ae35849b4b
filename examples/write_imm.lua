-- SPDX-License-Identifier: Apache-2.0
-- Writes with an immediate: the number arrives after all the data, so that it
-- can say "the block in slot n is yours", with no call and no reply.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local SLOTS, SLOT = 8, 2 ^ 16

local function worker()
  local engine = perigee.engine {}
  local region = engine:alloc(SLOTS * SLOT, { name = "slots", access = "w" })
  local verdict = engine:alloc(4096)
  local listener = assert(engine:listen(common.address()))
  common.ready()
  local session = assert(listener:accept(10))
  local good, seen = 0, {}
  for _ = 1, SLOTS do -- writes under way together arrive in any order
    local slot = assert(session:recv_imm():wait(5))
    local bytes = region:slice(slot * SLOT, SLOT):string()
    if not seen[slot] and bytes == string.char(65 + slot):rep(SLOT) then
      good = good + 1
    end
    seen[slot] = true
  end
  verdict:slice(0, 1).pointer[0] = good
  assert(session:send(verdict:slice(0, 1)):wait(5))
end

local function driver()
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local slots = assert(session:region("slots"))
  local here = engine:alloc(SLOTS * SLOT)
  local futures = {}
  for i = 0, SLOTS - 1 do
    local from = here:slice(i * SLOT, SLOT)
    ffi.fill(from.pointer, SLOT, 65 + i)
    futures[i + 1] = session:write_imm(
      { from = from, to = slots:slice(i * SLOT, SLOT) }, i)
  end
  assert(perigee.wait_all(futures, 5))
  print(("wrote %d slots of %d bytes with their numbers"):format(SLOTS, SLOT))

  local answer = here:slice(0, 1)
  assert(session:recv(answer):wait(5))
  assert(answer.pointer[0] == SLOTS, "the worker saw a slot that was not full")
  print("the worker got each number once, and its slot was full by then")
  engine:close()
end

common.main(driver, { worker = worker }, { "worker" })
