-- SPDX-License-Identifier: Apache-2.0
-- RDMA writes with an immediate between two programs that set up their session
-- by two lines of text, without a listener or an address. Each immediate
-- arrives after the bytes that it announces, so the worker needs no other
-- message.
local rdma = dofile((arg[0]:match(".*/") or "./") .. "rdma.lua")

local SLOTS, SLOT = 16, 2 ^ 16

local function worker(engine, connect)
  local region = engine:alloc(SLOTS * SLOT, { name = "slots", access = "w" })
  local session = connect()
  local good = 0
  for i = 0, SLOTS - 1 do
    local slot = assert(session:recv_imm():wait(60))
    if slot == i and rdma.is_filled(region:slice(slot * SLOT, SLOT), slot) then
      good = good + 1
    end
  end
  rdma.say_verdict(session, engine, good == SLOTS)
  print(("the worker got %d numbers, and %d full slots"):format(SLOTS, good))
  session:recv_imm():wait(60)     -- ends when the driver closes
end

local function driver(engine, connect)
  local session = connect()
  local slots = assert(session:region("slots"))
  local here = engine:alloc(SLOTS * SLOT)
  for i = 0, SLOTS - 1 do
    local from = here:slice(i * SLOT, SLOT)
    rdma.fill(from, i)
    assert(session:write_imm({ from = from, to = slots:slice(i * SLOT, SLOT) },
                             i):wait(10))
  end
  print(("wrote %d slots of %d bytes with their numbers"):format(SLOTS, SLOT))
  rdma.hear_verdict(session, engine)
  session:close()
end

rdma.main { driver = driver, worker = worker }
