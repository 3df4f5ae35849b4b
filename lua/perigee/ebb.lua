-- SPDX-License-Identifier: Apache-2.0
--- What many sessions leave behind in Lua's heap when they have ended. The
-- collector waits until the heap has doubled, which after a flood is never; so
-- it is made to look at all of it, in steps that nobody notices, as soon as few
-- more of them end. (The core does the same for its own: native/core/ebb.c.)
--
--   quiet     MANY have ended since the last time        waits
--   waits     fewer than RUSH more in EVERY              collects
--   collects  it has looked at everything                quiet
local loop = require "perigee.loop"

local M = {}

local MANY, RUSH = 64, 8
local EVERY, PAUSE, STEP = 5e7, 5e5, 2e5 -- ns: between looks, steps; of a step
local CYCLES = 2                         -- one may have been under way
local KIB = 4                            -- that the collector is asked for

local function look(ebb, now)
  local rush = ebb.ended - ebb.seen >= RUSH
  ebb.seen, ebb.due = ebb.ended, now + EVERY
  if rush then return end
  ebb.cycles, ebb.ended, ebb.seen = CYCLES, 0, 0
end

local function collect(ebb, now)
  ebb.due = now + PAUSE
  repeat
    if collectgarbage("step", KIB) then ebb.cycles = ebb.cycles - 1 end
  until ebb.cycles == 0 or loop.now() > now + STEP
end

-- True when there is nothing left to do.
local function go_on(ebb)
  local now = loop.now()
  if now < ebb.due then return false end
  if ebb.cycles == 0 then look(ebb, now) else collect(ebb, now) end
  if ebb.cycles == 0 and ebb.ended < MANY then ebb.due = false end
  return not ebb.due
end
jit.off(go_on)

--- A session of engine's is over.
function M.note(engine)
  local ebb = engine.ebb or { ended = 0, seen = 0, due = false, cycles = 0 }
  engine.ebb, ebb.ended = ebb, ebb.ended + 1
  if ebb.due or ebb.ended < MANY then return end
  ebb.due = loop.now() + EVERY
  engine:later(function() return go_on(ebb) end)
end

return M
