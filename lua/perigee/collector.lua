-- SPDX-License-Identifier: Apache-2.0
--- Making LuaJIT's collector keep up with what decoding allocates.
--
-- Of itself it does one step for each value that is decoded, however large that
-- is: heaps of 300 MB came of calls of 1 MB. So whoever decodes notes down how
-- many bytes came, and what was allocated since is owed: for each KiB one step,
-- which costs 0 to 10 ns for each byte, and mostly saves as much, as the next
-- values lie where others were. What is owed is paid by and by, as long as the
-- time lasts that there is for it.
local native = require "perigee.native"

local clock, count = native.clock, collectgarbage
local M = {}

local DUE = 2 ^ 14                      -- bytes that are noted down
local WHILE = 1e5                       -- nanoseconds that paying takes, about
-- A step sweeps 40 objects for each 10 of this: at LuaJIT's 200 it can take a
-- third of a millisecond. So while we pay, steps are shorter, and more.
local SHORT, USUAL = 40, 200
local STEPS = USUAL / SHORT             -- for each KiB

local came, counted, owed = 0, count "count", 0

local function owe()
  local now = count "count"
  if now > counted then owed = owed + (now - counted) * STEPS end
  came, counted = 0, now
end

local function pay()
  local enough = clock() + WHILE
  repeat
    owed = owed - 1
    if count("step", 0) then owed = 0 end -- that was a whole cycle
  until owed <= 0 or clock() >= enough
  counted = count "count"
end

--- Pays some of what is owed: true if there is more.
function M.pay()
  if owed <= 0 then return false end
  local usual = count("setstepmul", SHORT)
  pay()
  count("setstepmul", usual)
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

return M
