-- SPDX-License-Identifier: Apache-2.0
-- names_soak.lua MINUTES [SEED]: holders of names over each store in turn,
-- under trouble, a minute at a time (spec/hostile/holders.lua). No two may have
-- a name at a time. Where the store itself loses what it was given (Redis:
-- emptied, or killed, in every second turn), it tells how often and how long
-- two had one. Exits with a non-zero status if two had a name where they may
-- not.
local holders = require "spec.hostile.holders"
local process = require "spec.support.process"

local minutes = tonumber(arg[1]) or 10
local seed = tonumber(arg[2]) or os.time() % 2 ^ 31
local ends, failed, turn = process.now() + minutes * 60, 0, 0
local LOSING = { Redis = true }         -- a server that keeps nothing on disk

local function tell(store, losing, had, found)
  local longest = 0
  for _, one in ipairs(found) do longest = math.max(longest, one.seconds) end
  print(("%4d  %-6s %s: had %d times, twice %d times, for %.3f s at most")
    :format(turn, store, losing and "losing" or "      ", had, #found, longest))
  io.stdout:flush()
  if losing or #found == 0 then return end
  failed = failed + 1
  for _, one in ipairs(found) do
    print(("      %s: %.6f to %.6f, and %.6f to %.6f"):format(one.name,
      one.first.from, one.first.to, one.second.from, one.second.to))
  end
end

print(("%g minutes, SEED=%d"):format(minutes, seed))
repeat
  for store in pairs(holders.stores) do
    turn = turn + 1
    for _, losing in ipairs { false, LOSING[store] } do
      tell(store, losing, holders.run { store = store, losing = losing,
        seconds = math.min(60, minutes * 60), seed = seed + turn })
    end
  end
until process.now() >= ends
print(failed == 0 and "no two had a name where they may not"
  or ("FAILED: %d turns"):format(failed))
os.exit(failed == 0 and 0 or 1)
