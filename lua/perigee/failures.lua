-- SPDX-License-Identifier: Apache-2.0
--- Logs at the server that a handler has failed, each kind once a second. A
-- kind is a method and the line that raised.
local log = require "perigee.log"
local loop = require "perigee.loop"

local M = {}

local PAUSE = 1e9                       -- ns between two lines of one kind
local KINDS = 16                        -- of a method; others count as one

-- Returns what is known of a kind: when it was told, and how often it has come
-- since.
local function kind_of(method, message)
  local kinds = method.failures or { n = 0 }
  method.failures = kinds
  local place = message:match "^[^\n]-:%d+:" or ""
  if not kinds[place] and kinds.n == KINDS then place = "" end
  if not kinds[place] then
    kinds[place], kinds.n = { told = -PAUSE, times = 0 }, kinds.n + 1
  end
  return kinds[place]
end

--- Logs that method's handler has failed. failure: message and traceback, as
-- reply.lua has them.
function M.note(method, failure)
  local kind, now = kind_of(method, failure.message), loop.now()
  kind.times = kind.times + 1
  if now - kind.told < PAUSE then return end
  local often, trace = "", failure.traceback or ""
  if kind.times > 1 then often = (" %d times"):format(kind.times) end
  log.write("warning", ("%s failed%s: %s%s%s"):format(method.text, often,
    failure.message, trace ~= "" and "\n" or "", trace))
  kind.told, kind.times = now, 0
end

return M
