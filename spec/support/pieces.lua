-- SPDX-License-Identifier: Apache-2.0
-- Many pieces of a GPU's memory, moved between two processes by the lane
-- "cuda": the owner of the memory as a child, and what a mover does, which may
-- be a child, too.
local cases = require "spec.support.cases"
local cuda = require "spec.support.cuda"

local ffi = require "ffi"

local M = { ROOM = 2 ^ 23 }

-- For process.start: has memory "gpu" of M.ROOM bytes.
function M.owner(child, its)
  local engine = its.engine {}
  local listener = assert(engine:listen(child.cases.address()))
  assert(engine:alloc(2 ^ 23, { name = "gpu", access = "rw", kind = "cuda:0" }))
  its.spawn(function()
    while listener:accept(100) do end
  end)
  child.say "ready"
  child.attend()
end

-- Connects to the owner: session, own memory with bytes, the owner's.
function M.connect()
  local engine, session = cases.connect()
  local here = assert(engine:alloc(M.ROOM, { kind = "cuda:0" }))
  here:slice():write(cases.bytes(M.ROOM, 3))
  return session, here, assert(session:region "gpu"), engine
end

local NAMES = { "cuLaunchKernel", "pieces", "cuMemcpy2DAsync",
                "cuMemcpyBatchAsync", "entries", "cuMemcpyAsync",
                "cuModuleLoadData" }

-- What the driver was asked for while f ran: counts that are not 0, by name.
function M.counted(f)
  local counts = {}
  for _, name in ipairs(NAMES) do counts[name] = cuda.count(name) end
  f()
  for name, before in pairs(counts) do
    local n = cuda.count(name) - before
    counts[name] = n > 0 and n or nil
  end
  return counts
end

-- count pieces of up to `most` bytes, each of any alignment, as { to, from,
-- bytes }.
function M.random(count, most, seed)
  local list, place = {}, 0
  math.randomseed(seed)
  for i = 1, count do
    local unit = 2 ^ math.random(0, 4)
    local to = place + math.random(0, 3) * unit
    local from = math.random(0, (M.ROOM - most) / unit - 1) * unit
    list[i] = { to, from, math.random(1, most) }
    place = to + list[i][3] + math.random(0, 40)
  end
  assert(place <= M.ROOM)
  return list
end

-- The rows of a layout of 2 KiB from one to the next, likewise.
function M.rows(layers, blocks, bytes)
  local list = {}
  for n = 0, layers * blocks - 1 do
    local at = math.floor(n / blocks) * 2 ^ 17 + n % blocks * 2 ^ 11
    list[n + 1] = { at, at, bytes }
  end
  return list
end

-- Raises unless the owner's memory has the bytes of those pieces, and is 0
-- elsewhere.
function M.check(session, there, engine, list)
  local want = ffi.new("uint8_t[?]", M.ROOM)
  local bytes = cases.bytes(M.ROOM, 3)
  for _, piece in ipairs(list) do
    ffi.copy(want + piece[1], ffi.cast("const uint8_t *", bytes) + piece[2],
             piece[3])
  end
  local got = engine:alloc(M.ROOM)
  assert(session:read { from = there:slice(), to = got:slice() }:wait(30))
  local text = got:slice():string()
  got:close()
  assert(text == ffi.string(want, M.ROOM), "other bytes than were to be moved")
end

-- Writes the pieces, as a list of slices on either side.
function M.write(session, here, there, list)
  local from, to = {}, {}
  for i, piece in ipairs(list) do
    to[i] = there:slice(piece[1], piece[3])
    from[i] = here:slice(piece[2], piece[3])
  end
  return session:write { from = from, to = to }:wait(30)
end

return M
