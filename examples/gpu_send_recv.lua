-- SPDX-License-Identifier: Apache-2.0
-- Messages from and into GPU memory: the receiver says where a message lands,
-- be it in one place of a GPU or in several.
-- Others may open memory with `share`, and a GPU copies it to their place;
-- without, it passes through memory of the host.
local gpu = dofile((arg[0]:match(".*/") or "./") .. "gpu.lua")
local common, perigee = gpu.common, require "perigee"

local SIZES = { 0, 1, 64, 4096, 2 ^ 16, 2 ^ 20, 2 ^ 22 }
local LARGEST, LONG = 2 ^ 22, 30

-- Sends every message back as it came.
local function worker(kind)
  local engine = perigee.engine {}
  local region = assert(engine:alloc(LARGEST, { kind = kind, share = true }))
  local listener = assert(engine:listen(common.address()))
  common.ready()
  local session = assert(listener:accept(10))
  for _ = 0, #SIZES do
    local length = assert(session:recv(region:slice()):wait(LONG))
    assert(session:send(region:slice(0, length)):wait(LONG))
  end
end

local function driver(kind)
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local out = assert(engine:alloc(LARGEST, { kind = kind, share = true }))
  local back = assert(engine:alloc(LARGEST, { kind = kind }))

  for n, size in ipairs(SIZES) do
    local message, bytes = out:slice(0, size), gpu.bytes(size, n)
    message:write(bytes)
    local receive = session:recv(back:slice())
    assert(session:send(message):wait(LONG))
    assert(receive:wait(LONG) == size, "another length came back")
    assert(back:slice(0, size):string() == bytes, "other bytes came back")
  end
  print(("sent %s bytes from %s and got them back, every one checked")
    :format(table.concat(SIZES, ", "), out.kind))

  -- The halves of a message change places: they land in two slices.
  local half, bytes = LARGEST / 2, gpu.bytes(LARGEST, 9)
  out:slice():write(bytes)
  local receive = session:recv { back:slice(half), back:slice(0, half) }
  assert(session:send(out:slice()):wait(LONG))
  assert(receive:wait(LONG) == LARGEST)
  assert(back:slice():string() == bytes:sub(half + 1) .. bytes:sub(1, half),
         "other bytes came back")
  print("a message landed in two places of " .. back.kind)
  engine:close()
end

gpu.main(driver, worker)
