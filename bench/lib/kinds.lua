-- SPDX-License-Identifier: Apache-2.0
-- Kinds of memory in the benches: what --kind says, memory that the CPU cannot
-- touch, and the floors of a GPU's memory (floor_cuda).

local floor = require "bench.lib.floor"
local native = require "perigee.native"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"

local C = native.C

local M = {}

M.NOT_RUN = 77 -- the exit status of a bench without that memory

--- Reads "cuda:0" or "cuda:0,host": this side's kind, and the peer's (the same
-- if one is given).
function M.parse(text)
  local here, there = text:match "^([%w:]+),([%w:]+)$"
  here = here or text:match "^[%w:]+$"
  if not here then
    return nil, ("'%s' is no kind: cuda:0, or cuda:0,host"):format(text)
  end
  return { here, there or here }
end

local HOST = { "host", "host" }

--- The kinds of a bench: those given, or the host's.
function M.of(given) return given.kind or HOST end

--- Marks a row whose memory is of these kinds, and tells of the lane for such
-- memory that the session has beside its transport, or why it has none.
function M.mark(row, given, session)
  if given.kind then
    row.kind, row.peer_kind = given.kind[1], given.kind[2]
    row.lane = (session:explain().lanes.cuda or "none"):match "^[^;]*"
  end
  return row
end

local function try(kind)
  local engine = require "perigee".engine {}
  local region, err = engine:alloc(4096, { kind = kind })
  engine:close()
  if not region then return tostring(err) end
end

--- Returns why there is no memory of such a kind on this host; nil if there is.
-- A worker that was started apart is not asked. An engine takes a secret's text
-- out of the environment, where processes that are started later look for it.
function M.missing(given)
  local kinds, secret = M.of(given), os.getenv "PERIGEE_SECRET"
  local why = try(kinds[1]) or not given.connect and try(kinds[2]) or nil
  if secret then process.setenv("PERIGEE_SECRET", secret) end
  return why
end

--- Has this side use the peer's GPU, as programs do that copy between their own
-- host memory and it: the lane copies by a GPU that its process uses already.
-- Returns memory there, which is to be kept; nil if it is not needed, or not
-- wanted (--stranger).
function M.acquaint(engine, given)
  local kinds = M.of(given)
  if kinds[1] ~= "host" or kinds[2] == "host" or given.stranger then return end
  return assert(engine:alloc(4096, { kind = kinds[2] }))
end

-- ---- Memory that the CPU cannot touch --------------------------------------

local function move(f, slice, pointer, length)
  local owner = slice.owner
  if f(owner.handle, slice.offset, pointer, length or slice.length) < 0 then
    error(native.detail(owner.engine.handle), 0)
  end
end

--- Returns what a bench writes to and reads from in place of a slice's memory:
-- `pointer`, of the memory itself, or of a mirror in host memory (`mirrors` is
-- true then). push() brings the mirror's bytes into the memory, pull(length)
-- the first bytes of the memory (all of them) into the mirror.
function M.view(slice)
  if slice.pointer then
    return { pointer = slice.pointer, push = function() end,
             pull = function() end }
  end
  local mirror = payload.private(slice.length)
  return {
    pointer = mirror, mirrors = true,
    push = function() move(C.perigee_region_write, slice, mirror) end,
    pull = function(length)
      move(C.perigee_region_read, slice, mirror, length)
    end,
  }
end

--- Does either side have memory that the CPU cannot touch? Then each EVERY-th
-- round is checked, as the mirrors are copied whole.
function M.mirrored(given)
  local kinds = M.of(given)
  return kinds[1] ~= "host" or kinds[2] ~= "host"
end
M.EVERY = 16

-- ---- Floors ----------------------------------------------------------------

local function device(kind)
  return tonumber(kind:match "^cuda:?(%d*)$" and (kind:match "%d+" or 0))
end

--- The floor of a run with such memory is one of CUDA's driver, over whatever
-- transport but a socket or a NIC.
function M.concerns(run)
  return M.mirrored(run.given) and run.transport == "shm"
end

--- Returns the floor floor_cuda --how HOW with further words; or nil and why
-- there is none.
function M.cuda(run, how, size, ...)
  local kinds = M.of(run.given)
  local here, there = device(kinds[1]), device(kinds[2])
  if not (here or there) then return nil, "none for memory of these kinds" end
  here, there = here or there, there or here
  return floor.of("floor_cuda", run.given, {
    "--how", how, "--devices", ("%d,%d"):format(here, there), ... }, size)
end

--- Returns the floor of one transfer: a copy between these two kinds of memory
-- in one process. reads: from the peer's to this side's.
function M.transfer(run, size, reads)
  local kinds = M.of(run.given)
  local from, to = kinds[reads and 2 or 1], kinds[reads and 1 or 2]
  local how = from == "host" and "to" or to == "host" and "from" or "inside"
  return M.cuda(run, how, size)
end

return M
