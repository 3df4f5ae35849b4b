-- SPDX-License-Identifier: Apache-2.0
--- Making LuaJIT's collector keep up with what decoding allocates.
--
-- Of itself it does one step for each value that is decoded, however large
-- that is: heaps of 300 MB came of calls of 1 MB. So who decodes says so, and
-- what was allocated since is owed: for each KiB one step, which costs 0 to 10
-- ns for each byte that came, and mostly saves as much, as the next values lie
-- where others were. It is paid by and by, so that it holds nobody up for long.
local native = require "perigee.native"

local clock, collect = native.clock, collectgarbage
local M = {}

local DUE = 2 ^ 14                      -- bytes that came
local WHILE = 1e5                       -- nanoseconds that paying takes, about

local came, counted, owed = 0, collect "count", 0

local function owe()
  local count = collect "count"
  if count > counted then owed = owed + count - counted end
  came, counted = 0, count
end

--- Pays some of what is owed: true if there is more.
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

--- Takes note of so many bytes that are decoded, from which on they count.
function M.note(length)
  came = came + length
  if came > DUE then
    owe()
    M.pay()
  end
end

--- Takes note of a portion, after which pay is called by and by.
M.owe = owe

return M
