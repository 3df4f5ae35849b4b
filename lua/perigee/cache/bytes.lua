-- SPDX-License-Identifier: Apache-2.0
--- The bytes of a value: where they are, and whether they are those that were
-- put; sums and copies of long ones, piece by piece, so that the loop runs in
-- between.
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"
local signals = require "perigee.runtime.signal"
local slices = require "perigee.memory.slice"
local tasks = require "perigee.runtime.task"
local timers = require "perigee.runtime.timers"

local ffi = require "ffi"
local C = native.C

local M = {}

-- Bytes of a piece. To sum or to copy them takes less than 1 ms.
local PIECE = 4 * C.PERIGEE_CACHE_SUM_PIECE

--- The pointer to a value that is one block of host memory, or a string, and
-- its length; nil: it is something else.
function M.of(value)
  if type(value) == "string" then return value, #value end
  if slices.is_slice(value) and value.count == 1 then
    return value.pointer, value.length
  end
end

--- Are the bytes of a value what the cache has sealed? sum 0: it does not tell.
function M.is_whole(part, sum)
  if sum == 0 then return true end
  local bytes, length = M.of(part)
  if not bytes then bytes, length = part:string(), part.length end
  return C.perigee_cache_sum(bytes, length, 0) == sum
end

-- ---- Piece by piece ---------------------------------------------------------

-- Sums the piece of a part from `at` on. Returns where it ends, and the sum of
-- all before that; nil: the part's memory has gone.
local function sum_piece(part, at, sum)
  local pointer, n = part.pointer, math.min(PIECE, part.length - at)
  if not pointer then return nil end
  return at + n, C.perigee_cache_sum(pointer + at, n, sum)
end

--- Returns the sum of a slice of host memory; nil: it is none, or is no more.
-- Waits between pieces.
function M.sum(part)
  local at, sum = sum_piece(part, 0, 0)
  while at and at < part.length do
    tasks.sleep(0)
    at, sum = sum_piece(part, at, sum)
  end
  return sum
end

--- Calls done(sum) with the same: at once if there is one piece; else later, as
-- one piece is summed in each turn of the loop. By timers: a stop of the loop
-- does not drop these.
function M.sum_in_turns(part, done)
  local function step(at, sum)
    at, sum = sum_piece(part, at, sum)
    if not at or at == part.length then return done(sum) end
    local timer = signals.new(1, function() step(at, sum) end)
    timer.at = loop.now()
    timers.add(timer)
  end
  step(0, 0)
end

--- Copies a slice of host memory to another one of its length. Waits between
-- pieces. Returns whether the memory of both was there until the end.
function M.copy(to, from)
  local at = 0
  repeat
    if at > 0 then tasks.sleep(0) end
    local target, source = to.pointer, from.pointer
    if not (target and source) then return false end
    local n = math.min(PIECE, from.length - at)
    ffi.copy(target + at, source + at, n)
    at = at + n
  until at == from.length
  return true
end

return M
