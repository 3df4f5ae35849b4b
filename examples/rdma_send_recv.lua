-- SPDX-License-Identifier: Apache-2.0
-- Messages between two programs that set up their session by two lines of
-- text, without a listener or an address. Each receive takes one message; the
-- worker sends back what came.
local rdma = dofile((arg[0]:match(".*/") or "./") .. "rdma.lua")

local SIZES = { 1, 64, 4096, 65536, 2 ^ 20 }
local MOST = SIZES[#SIZES]

local function worker(engine, connect)
  local here = engine:alloc(MOST)
  local session = connect()
  for _ = 1, #SIZES do
    local length = assert(session:recv(here:slice(0, MOST)):wait(60))
    assert(session:send(here:slice(0, length)):wait(30))
  end
  print(("the worker sent %d messages back"):format(#SIZES))
  session:recv_imm():wait(60)     -- ends when the driver closes
end

local function driver(engine, connect)
  local session = connect()
  local out, back = engine:alloc(MOST), engine:alloc(MOST)
  for seed, size in ipairs(SIZES) do
    rdma.fill(out:slice(0, size), seed)
    local receive = session:recv(back:slice(0, MOST))
    local start = rdma.now()
    assert(session:send(out:slice(0, size)):wait(30))
    assert(assert(receive:wait(30)) == size, "another length came back")
    assert(rdma.is_filled(back:slice(0, size), seed), "the wrong bytes came")
    print(("%7d bytes there and back in %.2f ms"):format(size,
      (rdma.now() - start) * 1e3))
  end
  session:close()
end

rdma.main { driver = driver, worker = worker }
