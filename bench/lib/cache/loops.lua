-- SPDX-License-Identifier: Apache-2.0
-- The measured loops of bench/cache.lua, and the values that they move. Values
-- of KEYS keys take turns, each with bytes of its own, so that memory with the
-- bytes of the value before is found.

local ffi = require "ffi"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"

local wrong = payload.wrong

local M = {}

-- Not 2, so that a place which is written in turns with another one differs.
M.KEYS = 3

-- Up to so many bytes several calls are between two readings of the clock,
-- which take as long as a short call.
function M.repeats(length)
  return length <= 4096 and 64 or length <= 65536 and 8 or 1
end

-- Each step has this text compiled anew, so that no loop runs on the traces of
-- another. CALLS is what is measured: one call has no loop, as LuaJIT cannot
-- compile a loop that has a single turn, nor what is around it.
local LOOP = [[
  local one, before, after, whole, repeats, now = ...
  local round = 0
  return function(samples, capacity, until_ns)
    local n, ended = 0
    repeat
      if before then before(round + 1) end
      local begin = now()
      CALLS
      ended = now()
      round = round + repeats
      samples[n] = (ended - begin) / repeats
      n = n + 1
      if after then after(round) end
    until n >= capacity or ended >= until_ns
    if whole then whole(round) end
    return n
  end
]]

local ONCE, MANY = "one(round + 1)", "for i = 1, repeats do one(round + i) end"

--- Makes a step, as rounds.lua calls it. call.one(round) is what is measured,
-- so many times (call.repeats, 1) between two readings of the clock. Untimed:
-- call.before(round) with the first of them, call.after(round) with the last
-- one, and call.whole(round) at the end of each turn. All but `one` may be nil.
function M.step(call)
  local repeats = call.repeats or 1
  local text = LOOP:gsub("CALLS", repeats == 1 and ONCE or MANY)
  return assert(loadstring(text, "=loop"))(call.one, call.before, call.after,
                                           call.whole, repeats, process.now)
end

--- Which of the keys has its turn in a round: 0 to KEYS - 1.
function M.turn(round) return round % M.KEYS end

--- Writes value number `which` to memory.
function M.fill(pointer, length, which)
  ffi.fill(pointer, length, 1)
  payload.stamp(pointer, length, which)
end

--- Raises an error if memory has not the stamps of value number `which`.
function M.check(what, pointer, length, which)
  if payload.check(pointer, length, which) ~= 0 then wrong(what) end
end

--- Returns a function (pointer, length, which) that compares every byte.
function M.whole(what, length)
  local buffer = payload.private(length)
  return function(pointer, which)
    M.fill(buffer, length, which)
    if not payload.same(pointer, buffer, length) then wrong(what) end
  end
end

--- Returns the key of value number `which`.
function M.key(length, which) return ("bench.%d.%d"):format(length, which) end

--- Puts the values of that length.
function M.put_all(client, memory, length)
  for which = 0, M.KEYS - 1 do
    local slice = memory:slice(0, length)
    M.fill(slice.pointer, length, which)
    assert(client:put(M.key(length, which), slice))
  end
end

--- Puts the same values into the region of the cache's process.
function M.write_all(session, region, memory, length)
  for which = 0, M.KEYS - 1 do
    local slice = memory:slice(0, length)
    M.fill(slice.pointer, length, which)
    assert(session:write({ from = slice,
                           to = region:slice(which * length, length) }):wait())
  end
end

return M
