-- SPDX-License-Identifier: Apache-2.0
--- Logs at the server that a handler has failed, each kind once a second, and
-- at the end of that second how many more of the kind there were (often.lua). A
-- kind is a method and the line that raised; what the message says is no part
-- of it, for callers may choose that.
local log = require "perigee.runtime.log"
local often = require "perigee.runtime.often"

local M = {}

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

-- The kind of a failure.
local function kind_of(method, place)
  local kinds = method.failures or { n = 0, places = {} }
  method.failures = kinds
  local places = kinds.places
  if not places[place] and kinds.n >= KINDS - 1 then place = "" end
  if not places[place] then
    places[place], kinds.n = often.kind(), kinds.n + 1
  end
  return places[place]
end

local function cut(text)
  return #text > LONGEST and text:sub(1, LONGEST) .. "..." or text
end

local function sentence(one)
  return ("%s%s failed: %s"):format(one.method.text, one.what or "",
                                    cut(one.message))
end

-- The trace of the last one may be gone, and is not that of the others.
local function tell_more(more, seconds, last)
  log.write("warning", ("%d more like this in the last %.3g seconds: %s")
    :format(more, seconds, sentence(last):match "^[^\n]*"),
    { engine = last.engine })
end

--- Logs that method's handler has failed, or what else of it. failure:
-- message, traceback and place, as reply.lua has them. about: as of log.write.
function M.note(method, failure, what, about)
  local one = { method = method, what = what, message = failure.message,
                engine = about.engine }
  local kind = kind_of(method, failure.place or "")
  if not often.may(kind, one, tell_more, 1) then return end
  local trace = failure.traceback or ""
  log.write("warning", ("%s%s%s"):format(sentence(one),
    trace ~= "" and "\n" or "", cut(trace)), about)
end

return M
