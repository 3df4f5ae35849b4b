-- SPDX-License-Identifier: Apache-2.0
--- Logs at the server that a handler has failed, each kind once a second. A
-- kind is a method and the line that raised; what the message says is no part
-- of it, for callers may choose that.
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"

local M = {}

local PAUSE = 1e9                       -- ns between two lines of one kind
-- Kinds of a method. The last is that of failures without a place, and of all
-- that are too many.
local KINDS = 16
local LONGEST = 4096                    -- bytes of a message in the log
local DEPTH = 8                         -- frames of C above the line, at most

--- The line that raised: the first frame with one from level on, of the calling
-- function. Nil without any.
function M.place(level)
  for i = level + 1, level + DEPTH do
    local at = debug.getinfo(i, "Sl")
    if not at then return nil end
    if at.currentline >= 0 then
      return ("%s:%d"):format(at.short_src, at.currentline)
    end
  end
end

-- Returns what is known of a kind: when it was told, and how often it has come
-- since.
local function kind_of(method, place)
  local kinds = method.failures or { n = 0, places = {} }
  method.failures = kinds
  local places = kinds.places
  if not places[place] and kinds.n >= KINDS - 1 then place = "" end
  if not places[place] then
    places[place], kinds.n = { told = -PAUSE, times = 0 }, kinds.n + 1
  end
  return places[place]
end

local function cut(text)
  return #text > LONGEST and text:sub(1, LONGEST) .. "..." or text
end

--- Logs that method's handler has failed, or what else of it. failure:
-- message, traceback and place, as reply.lua has them. about: as of log.write.
function M.note(method, failure, what, about)
  local kind, now = kind_of(method, failure.place or ""), loop.now()
  kind.times = kind.times + 1
  if now - kind.told < PAUSE then return end
  local often, trace = "", failure.traceback or ""
  if kind.times > 1 then often = (" %d times"):format(kind.times) end
  -- The log may run what this is noted in again.
  kind.told, kind.times = now, 0
  log.write("warning", ("%s%s failed%s: %s%s%s"):format(method.text,
    what or "", often, cut(failure.message), trace ~= "" and "\n" or "",
    cut(trace)), about)
end

return M
