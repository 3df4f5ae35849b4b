-- SPDX-License-Identifier: Apache-2.0
--- Bounds how often messages of one kind are told. After so many in a second
-- (20) the rest of that second's are counted, and the count is told at its end:
-- by the loop, with the next message of the kind, or when the Lua state ends.
-- So a flood costs little, and none of it is lost silently. Time is the loop's.
--
--   state   event                            becomes
--   calm    a message, up to 20 a second     calm, told
--   calm    one more                         flood, counted; its timer begins
--   flood   a message                        flood, counted
--   flood   its second is over               calm, and the count is told
local signals = require "perigee.runtime.signal"
local timers = require "perigee.runtime.timers"

local M = {}

local MOST, SECOND = 20, 1e9
-- Kinds that are told apart; those beyond are one.
local KINDS = 256

-- By their keys; and a set of those that have counted messages.
local kinds, count, floods = {}, 0, {}

--- A kind of its own, of which no key is known.
function M.kind()
  return { since = -SECOND, told = 0, more = 0, last = false, tell = false }
end

local function kind_of(key)
  if type(key) == "table" then return key end
  if kinds[key] then return kinds[key] end
  if count >= KINDS then key = "" end
  if not kinds[key] then kinds[key], count = M.kind(), count + 1 end
  return kinds[key]
end

-- Ends a kind's second.
local function finish(kind, now)
  local more, last, tell = kind.more, kind.last, kind.tell
  local seconds = (now - kind.since) / SECOND
  kind.since, kind.told, kind.more, kind.last = now, 0, 0, false
  if kind.timer then timers.remove(kind.timer) end
  kind.timer, floods[kind] = nil, nil
  if more > 0 then tell(more, seconds, last) end
end

local function start_timer(kind)
  if signals.state.leaving then return end
  kind.timer = signals.new(1, function() finish(kind, signals.now()) end)
  kind.timer.at = kind.since + SECOND
  timers.add(kind.timer)
end

--- May a message be told, which is of the kind that key names, or is? Otherwise
-- it is counted: tell(more, seconds, last) is called later with how many
-- messages were counted in how many seconds, and the last of them. most: so
-- many are told in a second; default: 20.
function M.may(key, message, tell, most)
  local kind, now = kind_of(key), signals.now()
  if now - kind.since >= SECOND then finish(kind, now) end
  if kind.told < (most or MOST) then
    kind.told = kind.told + 1
    return true
  end
  kind.more, kind.last, kind.tell = kind.more + 1, message, tell
  floods[kind] = true
  if not kind.timer then start_timer(kind) end
  return false
end

--- Tells at once of all that were counted.
function M.flush()
  local list, now = {}, signals.now()
  for kind in pairs(floods) do list[#list + 1] = kind end
  for _, kind in ipairs(list) do finish(kind, now) end
end
jit.off(M.flush)

return M
