-- SPDX-License-Identifier: Apache-2.0
--- Bounds how often messages of one kind are told. After MOST in a second the
-- rest of that second's are counted, and the count is told at its end: by the
-- loop, with the next message of the kind, or when the Lua state ends. So a
-- flood costs little, and none of it is lost silently. Time is the loop's.
--
--   state   event                            becomes
--   calm    a message, up to MOST a second   calm, told
--   calm    one more                         flood, counted; its timer begins
--   flood   a message                        flood, counted
--   flood   its second is over               calm, and the count is told
local signals = require "perigee.runtime.signal"
local timers = require "perigee.runtime.timers"

local M = {}

local MOST, SECOND = 20, 1e9
-- Kinds that are told apart; those beyond are one.
local KINDS = 256

local kinds, count = {}, 0

local function kind_of(key)
  if kinds[key] then return kinds[key] end
  if count >= KINDS then key = "" end
  if not kinds[key] then
    kinds[key] = { since = -SECOND, told = 0, more = 0, last = false }
    count = count + 1
  end
  return kinds[key]
end

-- Ends a kind's second.
local function finish(kind, now)
  local more, last = kind.more, kind.last
  local seconds = (now - kind.since) / SECOND
  kind.since, kind.told, kind.more, kind.last = now, 0, 0, false
  if kind.timer then timers.remove(kind.timer) end
  kind.timer = nil
  if more > 0 then M.tell(more, seconds, last) end
end

local function start_timer(kind)
  if signals.state.leaving then return end
  kind.timer = signals.new(1, function() finish(kind, signals.now()) end)
  kind.timer.at = kind.since + SECOND
  timers.add(kind.timer)
end

--- Called with how many messages of a kind were counted in how many seconds,
-- and the last of them. (Set by log.lua.)
M.tell = false

--- May a message be told, which is of the kind that key names? Otherwise it is
-- counted.
function M.may(key, message)
  local kind, now = kind_of(key), signals.now()
  if now - kind.since >= SECOND then finish(kind, now) end
  if kind.told < MOST then
    kind.told = kind.told + 1
    return true
  end
  kind.more, kind.last = kind.more + 1, message
  if not kind.timer then start_timer(kind) end
  return false
end

--- Tells at once of all that were counted.
function M.flush()
  local list, now = {}, signals.now()
  for _, kind in pairs(kinds) do list[#list + 1] = kind end
  for _, kind in ipairs(list) do
    if kind.more > 0 then finish(kind, now) end
  end
end
jit.off(M.flush)

return M
