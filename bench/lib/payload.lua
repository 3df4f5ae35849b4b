-- SPDX-License-Identifier: Apache-2.0
-- Bytes that change each round as in the C floors: one byte of each page, at
-- an offset that moves with the round, has a value that depends on round and
-- page.

local ffi = require "ffi"
local bit = require "bit"

ffi.cdef [[
int memcmp(const void *a, const void *b, size_t length);
void *aligned_alloc(size_t alignment, size_t length);
void free(void *pointer);
]]

local band, bor, bxor = bit.band, bit.bor, bit.bxor
local floor = math.floor
local PAGE = 4096

local M = { PAGE = PAGE }

-- Returns where in each page the byte of this round is, and the number of
-- pages.
function M.place(length, round)
  local offset = round % (length < PAGE and length or PAGE)
  return offset, floor((length - 1 - offset) / PAGE) + 1
end

-- Writes count stamps, `step` bytes apart.
function M.stamp_each(pointer, offset, count, step, round)
  for i = 0, count - 1 do
    pointer[offset + i * step] = band(round + i, 255)
  end
end

-- Returns 0 if every stamp is that of this round.
function M.check_each(pointer, offset, count, step, round)
  local bad = 0
  for i = 0, count - 1 do
    bad = bor(bad, bxor(pointer[offset + i * step], band(round + i, 255)))
  end
  return bad
end

local place, stamp_each, check_each = M.place, M.stamp_each, M.check_each

-- One page and two are stamped and checked without a loop: LuaJIT cannot
-- compile a loop that mostly ends at once, nor what is around it.
function M.stamp(pointer, length, round)
  local offset, count = place(length, round)
  if count > 2 then return stamp_each(pointer, offset, count, PAGE, round) end
  pointer[offset] = band(round, 255)
  if count == 2 then pointer[offset + PAGE] = band(round + 1, 255) end
end

function M.check(pointer, length, round)
  local offset, count = place(length, round)
  if count > 2 then return check_each(pointer, offset, count, PAGE, round) end
  local bad = bxor(pointer[offset], band(round, 255))
  if count == 1 then return bad end
  return bor(bad, bxor(pointer[offset + PAGE], band(round + 1, 255)))
end

function M.same(a, b, length) return ffi.C.memcmp(a, b, length) == 0 end

-- Raises an error, which ends the bench with status 1: because of err, or, if
-- that is nil, because of wrong bytes.
function M.wrong(what, err)
  error(("%s: %s"):format(what, err == nil and "wrong bytes"
                                or tostring(err)), 0)
end

-- Returns private memory, page aligned and touched, which the collector frees.
function M.private(length)
  local whole = math.ceil(length / PAGE) * PAGE
  local pointer = ffi.C.aligned_alloc(PAGE, whole)
  if pointer == nil then error("no memory for a buffer", 0) end
  ffi.fill(pointer, whole, 1)
  return ffi.gc(ffi.cast("uint8_t *", pointer), ffi.C.free)
end

return M
