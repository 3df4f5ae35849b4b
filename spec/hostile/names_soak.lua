-- SPDX-License-Identifier: Apache-2.0
-- names_soak.lua MINUTES [SEED]: holders of names over each store in turn,
-- under trouble, a minute at a time (spec/hostile/holders.lua), and processes
-- that meet (spec/hostile/meetings.lua); or over the store alone that the
-- environment's STORE names. No two may have a name at a time; all who meet
-- have to be told the same. Where the store itself loses what it was given
-- (Redis: emptied, or killed, in every second turn), it tells how often and how
-- long two had a name. Exits with a non-zero status if two had a name where
-- they may not, or a meeting was none.
local holders = require "spec.hostile.holders"
local meetings = require "spec.hostile.meetings"
local process = require "spec.support.process"
local stores = require "spec.hostile.stores"

local minutes = tonumber(arg[1]) or 10
local seed = tonumber(arg[2]) or os.time() % 2 ^ 31
local ends, failed, turn = process.now() + minutes * 60, 0, 0
local LOSING = { Redis = true }         -- a server that keeps nothing on disk

local function tell(store, losing, had, found)
  local longest = 0
  for _, one in ipairs(found) do longest = math.max(longest, one.seconds) end
  print(("%4d  %-14s %s: had %d times, twice %d times, for %.3f s at most")
    :format(turn, store, losing and "losing" or "      ", had, #found, longest))
  io.stdout:flush()
  if losing or #found == 0 then return end
  failed = failed + 1
  for _, one in ipairs(found) do
    print(("      %s: %.6f to %.6f, and %.6f to %.6f"):format(one.name,
      one.first.from, one.first.to, one.second.from, one.second.to))
  end
end

local function tell_of_meetings(store, results, complaints)
  print(("%4d  %-14s         returned from meetings %d times, %d complaints")
    :format(turn, store, results, #complaints))
  io.stdout:flush()
  if complaints[1] then failed = failed + 1 end
  for _, text in ipairs(complaints) do print("      " .. text) end
end

local function chosen()
  local list, only = {}, os.getenv "STORE"
  for name in pairs(stores.all) do
    if not only or only == "" or only == name then list[#list + 1] = name end
  end
  table.sort(list)
  return assert(list[1] and list, "no such store here")
end

local list = chosen()
print(("%g minutes, SEED=%d"):format(minutes, seed))
repeat
  for _, store in ipairs(list) do
    turn = turn + 1
    local options = { store = store, seconds = math.min(60, minutes * 60),
                      seed = seed + turn }
    for _, losing in ipairs { false, LOSING[store] } do
      options.losing = losing
      tell(store, losing, holders.run(options))
    end
    tell_of_meetings(store, meetings.run(options))
  end
until process.now() >= ends
print(failed == 0 and "no two had a name where they may not, and all who met "
  .. "were told the same" or ("FAILED: %d turns"):format(failed))
os.exit(failed == 0 and 0 or 1)
