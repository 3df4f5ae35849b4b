-- SPDX-License-Identifier: Apache-2.0
-- What a client of bench/compare.lua answers to a burst; bench/peers/README.md
-- has the protocol. A line is somebody else's text: each word is checked.

local histogram = require "perigee.bench.histogram"

local M = {}

local NUMBERS = { "calls", "seconds", "checked" }

-- Neither NaN nor infinite, which no file of results could hold.
local function number(text)
  local value = tonumber(text)
  return value and value >= 0 and value < math.huge and value or nil
end

-- Returns the histogram of "TIME:COUNT,TIME:COUNT", or nil.
local function times(text)
  local pool, length = histogram.new(), 0
  for word in text:gmatch "[^,]+" do
    local ns, count = word:match "^([%d.e+]+):(%d+)$"
    ns = number(ns)
    if not ns then return nil end
    pool:add(ns, tonumber(count))
    length = length + #word + 1
  end
  return length == #text + 1 and pool.count > 0 and pool or nil
end

local function decode(words)
  local answer = {}
  for _, name in ipairs(NUMBERS) do
    answer[name] = number(words[name])
    if not answer[name] then return nil, name end
  end
  answer.histogram = words.ns and times(words.ns)
  if not answer.histogram then return nil, "ns" end
  if answer.histogram.count ~= answer.calls then return nil, "calls" end
  if answer.seconds <= 0 then return nil, "seconds" end
  answer.cpu = number(words.cpu) or 0
  answer.post, answer.caller = number(words.post), number(words.caller)
  return answer
end

-- Returns { calls, seconds, checked, cpu, post, caller, histogram } of an
-- answer, or nil and why there is none.
function M.parse(line)
  local kind, rest = line:match "^(%a+) (.*)$"
  if kind == "wrong" then return nil, "wrong bytes: " .. rest end
  if kind == "failed" then return nil, rest end
  if kind ~= "ok" then
    return nil, ("its client printed %q"):format(line:sub(1, 60))
  end
  local words = {}
  for name, value in rest:gmatch "(%a+)=(%S+)" do words[name] = value end
  local answer, missing = decode(words)
  if answer then return answer end
  return nil, ("its client's answer has no sound %s"):format(missing)
end

return M
