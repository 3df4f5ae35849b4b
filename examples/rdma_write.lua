-- SPDX-License-Identifier: Apache-2.0
-- RDMA writes between two programs that set up their session by two lines of
-- text, without a listener or an address. The driver writes to the worker's
-- memory and tells the worker by a message afterwards.
local rdma = dofile((arg[0]:match(".*/") or "./") .. "rdma.lua")

local LENGTH, PARTS = 2 ^ 22, 16

local function worker(engine, connect)
  local region = engine:alloc(LENGTH, { name = "landing", access = "w" })
  local note = engine:alloc(64)
  local session = connect()
  assert(session:recv(note:slice(0, 64)):wait(60))
  local good = rdma.is_filled(region:slice(0, LENGTH), 5)
  rdma.say_verdict(session, engine, good)
  print(good and "the worker found every byte in its place"
    or "the worker found wrong bytes")
  session:recv_imm():wait(60)     -- ends when the driver closes
end

local function driver(engine, connect)
  local session = connect()
  local landing = assert(session:region("landing"))
  local here = engine:alloc(LENGTH)
  rdma.fill(here:slice(0, LENGTH), 5)

  -- A batch is submitted once and ends once.
  local batch, part = {}, LENGTH / PARTS
  for i = 1, PARTS do
    local at = (i - 1) * part
    batch[i] = { from = here:slice(at, part), to = landing:slice(at, part) }
  end
  local start = rdma.now()
  assert(session:write(batch):wait(30))
  print(("wrote %d bytes in %d parts in %.1f ms"):format(LENGTH, PARTS,
    (rdma.now() - start) * 1e3))
  assert(session:send(here:slice(0, 4)):wait(10))
  rdma.hear_verdict(session, engine)
  session:close()
end

rdma.main { driver = driver, worker = worker }
