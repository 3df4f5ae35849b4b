-- SPDX-License-Identifier: Apache-2.0
--- New traces: for calls that ask for one (`trace = true`), and for those calls
-- outside of any trace which PERIGEE_TRACE chooses, its value being the part of
-- them that begins one.
local log = require "perigee.runtime.log"
local native = require "perigee.native"

local C = native.C
local floor, log_of = math.floor, math.log

local M = {}

-- The last trace that was begun. Calls copy it when they are submitted.
local trace = native.trace_t()

-- The part of calls that a text means, from 0 to 1; nil if it means none.
local function part(text)
  local value = tonumber(text)
  return value and value >= 0 and value <= 1 and value or nil
end

--- What is wrong with a value of PERIGEE_TRACE, after its name; nil: nothing.
function M.check(text)
  if not text:find "%S" or part(text) then return nil end
  return ("%q is no part of the calls, from 0 to 1"):format(text)
end

local text = os.getenv "PERIGEE_TRACE" or ""
local rate = part(text)

--- The part of calls outside of traces that begins one; false: none does.
M.rate = rate and 1 - rate < 1 and rate

local warned = false

--- Logs once that PERIGEE_TRACE is not valid.
function M.warn()
  local wrong = not warned and M.check(text)
  if not wrong then return end
  warned = true
  log.write("warning", ("PERIGEE_TRACE: %s; no call begins a trace"):format(
    wrong))
end

--- Begins a sampled trace. Returns it as a struct perigee_trace that is valid
-- until the next one.
function M.begin(engine)
  if engine.handle then C.perigee_trace_begin(engine.handle, trace) end
  return trace
end

-- A number above 0 and below 1, from a new id.
local function random(engine)
  local id, sum = M.begin(engine).id, 0
  for i = 0, 5 do sum = sum * 256 + id[i] end
  return (sum + 0.5) / 2 ^ 48
end

-- How many calls there are until the next one is chosen, that one included. It
-- is drawn once for each that is chosen, so others cost a subtraction.
local function gap(engine)
  if M.rate == 1 then return 1 end
  return floor(log_of(random(engine)) / log_of(1 - M.rate)) + 1
end

local left = false

--- Is this call, which is outside of any trace, to begin one?
function M.chooses(engine)
  left = (left or gap(engine)) - 1
  if left > 0 then return false end
  left = gap(engine)
  return true
end

return M
