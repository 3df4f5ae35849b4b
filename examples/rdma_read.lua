-- SPDX-License-Identifier: Apache-2.0
-- RDMA reads between two programs that set up their session by two lines of
-- text, without a listener or an address. The worker lends memory, the driver
-- reads it.
local rdma = dofile((arg[0]:match(".*/") or "./") .. "rdma.lua")

local LENGTH = 2 ^ 22

local function worker(engine, connect)
  local region = engine:alloc(LENGTH, { name = "lent", access = "r" })
  rdma.fill(region:slice(0, LENGTH), 3)
  local session = connect()
  session:recv_imm():wait(60)     -- ends when the driver closes
end

local function driver(engine, connect)
  local session = connect()
  local lent = assert(session:region("lent"))
  local here = engine:alloc(LENGTH)

  assert(session:read { from = lent:slice(0, 8),
                        to = here:slice(0, 8) }:wait(5))
  assert(rdma.is_filled(here:slice(0, 8), 3), "the wrong bytes came")
  print("read 8 bytes")

  local start = rdma.now()
  assert(session:read { from = lent:slice(0, LENGTH),
                        to = here:slice(0, LENGTH) }:wait(30))
  local seconds = rdma.now() - start
  assert(rdma.is_filled(here:slice(0, LENGTH), 3), "the wrong bytes came")
  print(("read %d bytes in %.1f ms, every one checked"):format(LENGTH,
    seconds * 1e3))
  session:close()
end

rdma.main { driver = driver, worker = worker }
