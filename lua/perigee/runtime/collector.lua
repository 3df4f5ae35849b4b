-- SPDX-License-Identifier: Apache-2.0
--- Makes LuaJIT's collector keep up with what decoding allocates.
--
-- On its own the collector does one step for each value that is decoded,
-- however large the value is: calls of 1 MB led to heaps of 300 MB. So decoders
-- report how many bytes they decode, and for each KiB allocated since the last
-- report one collector step is owed. A step costs 0 to 10 ns for each byte that
-- came, and mostly saves as much, because the next values reuse memory. The
-- steps are done a few at a time, so that they delay nobody for long.
local native = require "perigee.native"

local clock, collect = native.clock, collectgarbage
local M = {}

local DUE = 2 ^ 14                      -- decoded bytes before steps are done
local WHILE = 1e5                       -- nanoseconds of one pay(), about

local came, counted, owed = 0, collect "count", 0

local function owe()
  local count = collect "count"
  if count > counted then owed = owed + count - counted end
  came, counted = 0, count
end

--- Does some of the steps that are owed. Returns true if there are more.
function M.pay()
  if owed <= 0 then return false end
  local enough = clock() + WHILE
  repeat
    owed = owed - 1
    if collect("step", 0) then owed = 0 end -- that was a whole cycle
  until owed <= 0 or clock() >= enough
  counted = collect "count"
  return owed > 0
end

--- Notes that length bytes are decoded; does steps once enough have come.
function M.note(length)
  came = came + length
  if came > DUE then
    owe()
    M.pay()
  end
end

--- Counts the steps owed for a portion; the caller calls pay from time to time.
M.owe = owe

return M
