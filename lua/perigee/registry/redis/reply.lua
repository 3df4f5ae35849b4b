-- SPDX-License-Identifier: Apache-2.0
--- The replies of Redis servers as values: a text, a number, a list, M.NIL, or
-- a table with field `failure`, the text of an error.
local control = require "perigee.net.native"
local turns = require "perigee.runtime.turn"

local ffi = require "ffi"
local C = control.C

local M = { NIL = {} }

local FEW = 64                          -- values between looks at the time

local length_out = control.length_t()

local function value_of(reply)
  local kind = C.perigee_reply_kind(reply)
  if kind == C.PERIGEE_REPLY_NIL then return M.NIL end
  if kind == C.PERIGEE_REPLY_INTEGER then
    return tonumber(C.perigee_reply_integer(reply))
  end
  if kind == C.PERIGEE_REPLY_LIST then
    local list = {}
    for i = 1, tonumber(C.perigee_reply_count(reply)) do
      list[i] = value_of(C.perigee_reply_at(reply, i - 1))
      if i % FEW == 0 then turns.give() end
    end
    return list
  end
  local text = C.perigee_reply_text(reply, length_out)
  local value = ffi.string(text, length_out[0])
  return kind == C.PERIGEE_REPLY_FAILURE and { failure = value } or value
end

--- The value of a reply, which is freed. Waits, in a task, as often as that
-- takes long.
function M.take(reply)
  ffi.gc(reply, C.perigee_reply_free)
  local value = value_of(reply)
  C.perigee_reply_free(ffi.gc(reply, nil))
  return value
end

return M
