-- SPDX-License-Identifier: Apache-2.0
-- Counts of durations in ns, in 512 buckets for each power of two, so that a
-- value is known within 0.1 %. A bucket's number is the upper bits of the
-- double.

local ffi = require "ffi"
local rshift = require("bit").rshift

-- keeps the exponent and 9 bits of the upper half
local SHIFT = 20 - 9
local FIRST = rshift(0x3f800000, SHIFT) -- 1/128 ns
local BUCKETS = 50 * 512                -- up to 97 days

local number = ffi.new "union { double value; uint32_t half[2]; }"

local M = {}
local Histogram = {}
Histogram.__index = Histogram

function M.new()
  return setmetatable({ counts = ffi.new("double[?]", BUCKETS), count = 0,
                        sum = 0 }, Histogram)
end

local function bucket(value)
  number.value = value
  local index = rshift(number.half[1], SHIFT) - FIRST
  if index < 0 then return 0 end
  return index < BUCKETS and index or BUCKETS - 1
end

function Histogram:add(value, count)
  count = count or 1
  local index = bucket(value)
  self.counts[index] = self.counts[index] + count
  self.count = self.count + count
  self.sum = self.sum + value * count
end

-- Adds samples[0] to samples[count - 1].
function Histogram:add_all(samples, count)
  for i = 0, count - 1 do self:add(samples[i]) end
end

function Histogram:merge(other)
  for i = 0, BUCKETS - 1 do
    self.counts[i] = self.counts[i] + other.counts[i]
  end
  self.count = self.count + other.count
  self.sum = self.sum + other.sum
end

-- Returns "TIME:COUNT,TIME:COUNT" of all buckets that have samples.
function Histogram:text()
  local words = {}
  for i = 0, BUCKETS - 1 do
    if self.counts[i] > 0 then
      words[#words + 1] = ("%.6g:%d"):format(self.value_of(i), self.counts[i])
    end
  end
  return table.concat(words, ",")
end

function Histogram:mean()
  return self.count > 0 and self.sum / self.count or 0
end

-- Returns the middle of a bucket.
local function value_of(index)
  number.half[0] = 0
  number.half[1] = (index + FIRST) * 2 ^ SHIFT
  local low = number.value
  number.half[1] = (index + 1 + FIRST) * 2 ^ SHIFT
  return (low + number.value) / 2
end

Histogram.value_of = value_of

-- Returns the value below which that share (0.5, 0.99) of all samples lies.
function Histogram:quantile(share)
  local wanted, seen = share * self.count, 0
  for i = 0, BUCKETS - 1 do
    seen = seen + self.counts[i]
    if seen >= wanted and seen > 0 then return value_of(i) end
  end
  return 0
end

return M
