-- SPDX-License-Identifier: Apache-2.0
-- Bytes that change each round, as the C floors change them: one byte of each
-- page, at an offset that moves with the round, tells round and page.

local ffi = require "ffi"
local bit = require "bit"

ffi.cdef [[
int memcmp(const void *a, const void *b, size_t length);
void *aligned_alloc(size_t alignment, size_t length);
void free(void *pointer);
]]

local band, bor, bxor = bit.band, bit.bor, bit.bxor
local PAGE = 4096

local M = {}

function M.offset(length, round)
  return round % (length < PAGE and length or PAGE)
end

function M.stamp(pointer, length, round)
  local page = 0
  for i = M.offset(length, round), length - 1, PAGE do
    pointer[i] = band(round + page, 255)
    page = page + 1
  end
end

-- Reads one byte of each page; 0 if each is that of this round.
function M.check(pointer, length, round)
  local page, bad = 0, 0
  for i = M.offset(length, round), length - 1, PAGE do
    bad = bor(bad, bxor(pointer[i], band(round + page, 255)))
    page = page + 1
  end
  return bad
end

function M.same(a, b, length) return ffi.C.memcmp(a, b, length) == 0 end

-- Raised as a string without a place: the benches print it and exit 1.
function M.wrong(what, detail)
  error(("%s: wrong bytes%s"):format(what, detail and ": " .. tostring(detail)
                                           or ""), 0)
end

-- Private memory, page aligned and touched; freed by collection.
function M.private(length)
  local whole = math.ceil(length / PAGE) * PAGE
  local pointer = ffi.C.aligned_alloc(PAGE, whole)
  if pointer == nil then error("no memory for a buffer", 0) end
  ffi.fill(pointer, whole, 1)
  return ffi.gc(ffi.cast("uint8_t *", pointer), ffi.C.free)
end

return M
