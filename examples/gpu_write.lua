-- SPDX-License-Identifier: Apache-2.0
-- One-sided writes and reads of GPU memory: a driver writes from its GPU to a
-- worker's, and reads the same bytes back. Transfers are those of host memory;
-- only `kind` differs where memory is allocated.
local gpu = dofile((arg[0]:match(".*/") or "./") .. "gpu.lua")
local common, perigee = gpu.common, require "perigee"

local LENGTH, PARTS, LONG = 2 ^ 22, 16, 30

local function worker(kind)
  local engine = perigee.engine {}
  assert(engine:alloc(LENGTH, { kind = kind, name = "page", access = "rw" }))
  local listener = assert(engine:listen(common.address()))
  common.ready()
  assert(listener:accept(10))
end

local function driver(kind)
  local engine = perigee.engine {}
  local session = assert(engine:connect(common.address(), { timeout = 5 }))
  local page = assert(session:region("page"))
  local out = assert(engine:alloc(LENGTH, { kind = kind })):slice()
  local back = assert(engine:alloc(LENGTH, { kind = kind })):slice()
  local host = engine:alloc(LENGTH):slice()

  -- The CPU cannot touch a GPU's memory: `pointer` is nil, and write() copies.
  local bytes = gpu.bytes(LENGTH, 1)
  out:write(bytes)
  local start = common.now()
  assert(session:write { from = out, to = page:slice() }:wait(LONG))
  print(("wrote %d bytes from %s in %.1f ms"):format(LENGTH, out.kind,
    (common.now() - start) * 1e3))
  assert(session:read { from = page:slice(), to = back }:wait(LONG))
  assert(back:string() == bytes, "other bytes came back")

  -- Each side may have another kind of memory. A list ends once.
  bytes = gpu.bytes(LENGTH, 2)
  host:write(bytes)
  local list, part = {}, LENGTH / PARTS
  for i = 1, PARTS do
    local at = (i - 1) * part
    list[i] = { from = host:slice(at, part), to = page:slice(at, part) }
  end
  assert(session:write(list):wait(LONG))
  assert(session:read { from = page:slice(), to = back }:wait(LONG))
  assert(back:string() == bytes, "other bytes came back")
  print(("wrote %d parts of host memory and read them to %s, all checked")
    :format(PARTS, back.kind))
  engine:close()
end

gpu.main(driver, worker)
