-- SPDX-License-Identifier: Apache-2.0
--- Slices of one region on demand, for services that keep many blocks of sizes
-- that come and go: a store, a cache. Made by `Region:allocator`.
--
-- A slice that it gives is used like any other, also as a landing. It stays
-- until the program frees it, because nothing is collected. The program must
-- not free a slice that an operation still uses; `Context:sent` tells when a
-- reply has left. Sizes are rounded up to a multiple of `align` only, and free
-- neighbours become one block, so free memory does not fall apart into sizes.
-- alloc and free take the same few steps whatever the region's size and the
-- number of slices. Their notes are in Lua, where no peer can write.
--
-- * `region`: the region; kept alive
-- * `align`: bytes; each slice begins at a multiple of it, from the region's
--   first byte
-- @classmod Allocator
-- @usage
-- local memory = engine:alloc(2 ^ 20):allocator()
-- local one, two = memory:alloc(1000), memory:alloc(50)
-- print(one.offset, one.length, two.offset)                    --> 0 1000 1024
-- memory:free(one)
-- print(memory:stats().used, memory:stats().high_water)        --> 64 1088

-- Two-level segregated fit. Free blocks hang in lists by classes: sizes below
-- SPLIT units have one each, and from there on each power of two has SPLIT. A
-- bit for each list says whether it is empty. A search begins at the first
-- class of which all blocks fit. It finds by the bits the first list that is
-- not empty, and takes that list's first block. The rest of the block becomes a
-- free block again. The last resort is the class below, whose sizes differ by
-- less than a SPLITth: the first of its first LOOKED blocks that fits.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local slices = require "perigee.memory.slice"
local units = require "perigee.runtime.units"

local ffi = require "ffi"

local band, lshift, rshift = bit.band, bit.lshift, bit.rshift
local ceil, floor, max = math.ceil, math.floor, math.max

local M = {}

local Allocator = {}
Allocator.__index = Allocator

local ALIGN = 64
local SPLIT, SPLIT_BITS = 16, 4
local WORDS, WORD = 20, 32              -- classes of 2^40 units, and some
local LOOKED = 64

-- ---- Classes ---------------------------------------------------------------

-- math.frexp, which is not compiled: 2^(exponent - 1) <= n < 2^exponent.
local parts = ffi.new "union { double number; uint32_t half[2]; }"
local high = ffi.abi "le" and 1 or 0

local function exponent_of(n)
  parts.number = n
  return rshift(parts.half[high], 20) - 1022
end

-- Units between two classes of blocks about as large as n.
local function step_of(n)
  local exponent = exponent_of(n)
  return exponent > SPLIT_BITS and 2 ^ (exponent - 1 - SPLIT_BITS) or 1,
         exponent
end

-- The class that a block of n units belongs to.
local function class_of(n)
  if n < SPLIT then return n end
  local step, exponent = step_of(n)
  return (exponent - 1 - SPLIT_BITS) * SPLIT + floor(n / step)
end

-- The first class of which each block has n units.
local function fitting(n)
  local step = step_of(n)
  return class_of(ceil(n / step) * step)
end

-- The number of the lowest bit of a word that is not 0.
local function lowest(word)
  return exponent_of(band(word, -word) % 2 ^ WORD) - 1
end

-- The first class from that one on which has a block; nil without any.
local function occupied(self, class)
  local at = floor(class / WORD)
  local word = band(self.words[at], lshift(-1, class % WORD))
  while word == 0 do
    at = at + 1
    if at == WORDS then return nil end
    word = self.words[at]
  end
  return at * WORD + lowest(word)
end

-- ---- Lists -----------------------------------------------------------------

local function mark(self, class, full)
  local at, one = floor(class / WORD), lshift(1, class % WORD)
  local word = self.words[at]
  self.words[at] = full and bit.bor(word, one) or band(word, bit.bnot(one))
end

local function insert(self, block)
  local class = class_of(block.size)
  local first = self.lists[class]
  block.class, block.used = class, false
  block.next, block.previous = first or false, false
  if first then first.previous = block else mark(self, class, true) end
  self.lists[class] = block
end

local function remove(self, block)
  local before, after = block.previous, block.next
  if after then after.previous = before end
  if before then
    before.next = after
  else
    self.lists[block.class] = after
    if not after then mark(self, block.class, false) end
  end
end

-- ---- Blocks ----------------------------------------------------------------

-- A block knows its neighbours in memory, left and right.
local function new_block(at, size, left, right)
  return { at = at, size = size, left = left, right = right, used = false,
           class = 0, next = false, previous = false }
end

-- The first of the first few blocks of a class that has n units or more; else
-- nil, and how many the largest of them has.
local function look(self, class, n)
  local block, largest = self.lists[class], 0
  for _ = 1, LOOKED do
    if not block then break end
    if block.size >= n then return block end
    largest, block = max(largest, block.size), block.next
  end
  return nil, largest
end

-- Takes a free block of at least n units out of its list; or nil.
local function find(self, n)
  local class = occupied(self, fitting(n))
  local block = class and self.lists[class] or look(self, class_of(n), n)
  if not block then return nil end
  remove(self, block)
  return block
end

-- Makes what a block has beyond n units a free block.
local function cut(self, block, n)
  if block.size == n then return end
  local rest = new_block(block.at + n, block.size - n, block, block.right)
  if rest.right then rest.right.left = rest end
  block.size, block.right = n, rest
  insert(self, rest)
end

-- Joins a block with the free one on its right.
local function swallow(self, block)
  local other = block.right
  remove(self, other)
  block.size, block.right = block.size + other.size, other.right
  if block.right then block.right.left = block end
end

local function give_back(self, block)
  block.used = false
  if block.right and not block.right.used then swallow(self, block) end
  local left = block.left
  if left and not left.used then
    remove(self, left)
    left.size, left.right = left.size + block.size, block.right
    if left.right then left.right.left = left end
    block = left
  end
  insert(self, block)
end

-- ---- For users -------------------------------------------------------------

local function align(value)
  if not check.is_count(value) or value < 1 or value > 2 ^ 30
    or band(value, value - 1) ~= 0 then
    return "a power of two of at most 2^30"
  end
end

local OPTIONS = { align = align }

--- Makes an allocator of the whole region, which has one at a time. The region
-- can still be used otherwise; peers that may write to it can write to all of
-- its slices.
-- @function Region:allocator
-- @tparam[opt] table options
-- @tparam[opt=64] number options.align a power of two: slices begin at its
--   multiples, and take as many bytes
-- @treturn Allocator the allocator
-- @waits no
-- @usage
-- local pages = engine:alloc(2 ^ 24, { name = "pages", access = "r" })
--   :allocator { align = 4096 }
-- print(pages:alloc(1).offset, pages:alloc(1).offset)          --> 0 4096
function M.new(region, options)
  options = check.options(options, OPTIONS, "region:allocator")
  if not region.handle then
    error(region:text() .. " has been closed", 2)
  elseif region.allocated then
    error(region:text() .. " has an allocator already; close that first", 2)
  end
  local self = setmetatable({
    region = region, align = options.align or ALIGN, closed = false,
    words = {}, lists = {}, blocks = {}, count = 0, used = 0, high_water = 0,
  }, Allocator)
  for i = 0, WORDS - 1 do self.words[i] = 0 end
  local size = floor(region.length / self.align)
  if size > 0 then insert(self, new_block(0, size, false, false)) end
  region.allocated = self
  return self
end

function Allocator:text() return "the allocator of " .. self.region:text() end

Allocator.__tostring = Allocator.text

local function largest(self)
  for at = WORDS - 1, 0, -1 do
    local word = self.words[at]
    if word ~= 0 then
      local class = at * WORD + exponent_of(word % 2 ^ WORD) - 1
      local _, size = look(self, class, math.huge)
      return size * self.align
    end
  end
  return 0
end

local function length_of(self)
  return floor(self.region.length / self.align) * self.align
end

local function no_memory(self, n)
  local size = units.format_size
  return errors.new("no_memory", ("allocating %s of %s: %s are free, and the "
    .. "largest piece found has %s"):format(size(n), self.region:text(),
      size(length_of(self) - self.used), size(largest(self))))
end

local function gone(self, doing)
  local closed = self.closed and self:text() or self.region:text()
  return errors.new("closed", ("%s: %s has been closed"):format(doing, closed))
end

--- Gives a slice of n bytes that nobody else has. Its bytes are what was there
-- before.
-- @function Allocator:alloc
-- @tparam number n bytes; 0 is a slice, too, and takes as much as 1
-- @treturn Slice the slice; or nil and an error
-- @errors `no_memory`: no piece of that size is free, or none of the 64 that
--   are nearest to it in size and were freed last
-- @waits no
-- @usage
-- local memory = engine:alloc(4096):allocator()
-- print(memory:alloc(4096).length)                             --> 4096
-- print(select(2, memory:alloc(1)).kind)                       --> no_memory
function Allocator:alloc(n)
  if not check.is_count(n) then
    error("alloc takes a number of bytes, an integer of at least 0", 2)
  elseif self.closed or not self.region.handle then
    return nil, gone(self, "allocating")
  end
  local size = max(1, ceil(n / self.align))
  local block = n <= self.region.length and find(self, size)
  if not block then return nil, no_memory(self, n) end
  cut(self, block, size)
  block.used = true
  local slice = slices.new(self.region, block.at * self.align, n, nil, 2)
  self.blocks[slice] = block
  self.count, self.used = self.count + 1, self.used + size * self.align
  self.high_water = max(self.high_water, self.used)
  return slice
end

local function foreign(self, slice)
  if not slices.is_slice(slice) then
    return "free takes a slice that alloc gave, not a " .. type(slice)
  elseif slice.owner ~= self.region then
    return ("free: %s is none of %s"):format(tostring(slice), self:text())
  end
  return ("free: %s was freed before, or is not the slice itself that alloc "
    .. "gave"):format(tostring(slice))
end

--- Takes a slice back that `Allocator:alloc` gave: that object itself, not a
-- part of it. To free it twice is misuse, also after its memory was given to
-- somebody else.
-- @function Allocator:free
-- @tparam Slice slice
-- @waits no
-- @usage
-- local memory = engine:alloc(4096):allocator()
-- local slice = memory:alloc(100)
-- memory:free(slice)
-- print((pcall(memory.free, memory, slice)))                   --> false
function Allocator:free(slice)
  local block = self.blocks[slice]
  if not block then error(foreign(self, slice), 2) end
  self.blocks[slice] = nil
  self.count, self.used = self.count - 1, self.used - block.size * self.align
  give_back(self, block)
end

--- Tells how full it is.
-- @function Allocator:stats
-- @treturn table `length` (bytes that it has), `used` and `free` (bytes),
--   `high_water` (the most bytes that were ever used at once), `largest` (bytes
--   that one alloc can have now), `slices` (how many are given)
-- @waits no
-- @usage
-- local memory = engine:alloc(4096):allocator()
-- memory:free(memory:alloc(1000))
-- local slice = memory:alloc(100)
-- local stats = memory:stats()
-- print(stats.used, stats.free, stats.largest)              --> 128 3968 3968
-- print(stats.length, stats.high_water, stats.slices)          --> 4096 1024 1
function Allocator:stats()
  local length = length_of(self)
  return { length = length, used = self.used, free = length - self.used,
           high_water = self.high_water, largest = largest(self),
           slices = self.count }
end

--- Ends it: alloc gives `closed`. Slices that it gave stay slices of the
-- region, which may have another allocator from now on. Idempotent.
-- @function Allocator:close
-- @waits no
-- @usage
-- local pages = engine:alloc(2 ^ 20)
-- pages:allocator():close()
-- print(pages:allocator { align = 4096 }.align)                --> 4096
function Allocator:close()
  if self.closed then return end
  self.closed = true
  if self.region.allocated == self then self.region.allocated = false end
end

check.colons(Allocator, "allocator", "alloc close free stats")

return M
