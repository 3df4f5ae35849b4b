-- SPDX-License-Identifier: Apache-2.0
--- Collects what many ended sessions leave behind in Lua's heap. Lua's
-- collector would wait until the heap has doubled, which may never happen after
-- a flood of sessions. So once few more sessions end, this runs full
-- collections, in short steps. (For the core's own memory see
-- native/core/pool.c.)
--
--   quiet     MANY have ended since the last time        waits
--   waits     fewer than RUSH more in EVERY              collects
--   collects  it has looked at everything                quiet
local loop = require "perigee.runtime.loop"

local M = {}

local MANY, RUSH = 64, 8
-- Nanoseconds: EVERY between looks, PAUSE between steps, STEP for one step.
local EVERY, PAUSE, STEP = 5e7, 5e5, 2e5
local CYCLES = 2                         -- the first may have been under way
local KIB = 4                            -- of one collector step

local function look(trim, now)
  local rush = trim.ended - trim.seen >= RUSH
  trim.seen, trim.due = trim.ended, now + EVERY
  if rush then return end
  trim.cycles, trim.ended, trim.seen = CYCLES, 0, 0
end

local function collect(trim, now)
  trim.due = now + PAUSE
  repeat
    if collectgarbage("step", KIB) then trim.cycles = trim.cycles - 1 end
  until trim.cycles == 0 or loop.now() > now + STEP
end

-- True when there is nothing left to do.
local function go_on(trim)
  local now = loop.now()
  if now < trim.due then return false end
  if trim.cycles == 0 then look(trim, now) else collect(trim, now) end
  if trim.cycles == 0 and trim.ended < MANY then trim.due = false end
  return not trim.due
end
jit.off(go_on)

--- Notes that a session of engine has ended.
function M.note(engine)
  local trim = engine.trim or { ended = 0, seen = 0, due = false, cycles = 0 }
  engine.trim, trim.ended = trim, trim.ended + 1
  if trim.due or trim.ended < MANY then return end
  trim.due = loop.now() + EVERY
  engine:later(function() return go_on(trim) end)
end

return M
