-- SPDX-License-Identifier: Apache-2.0
local buffer = require "string.buffer"
local cases = require "spec.support.cases"
local native = require "perigee.native"
local perigee = require "perigee"
local portions = require "perigee.typed.portions"

-- Uses so much of a portion's time that all decoding pauses after it.
local function burn()
  local limit = native.burnt() + 2e6
  repeat until native.burnt() > limit
end

describe("decoding in portions", function()
  -- Begins a job that decodes a list of n texts; its first portion takes long.
  local function begin(n)
    local list = {}
    for i = 1, n do list[i] = ("%06d"):format(i) end
    local bytes, ended = buffer.encode(list), { times = 0 }
    portions.start(bytes, #bytes, {
      wanted = function(job)
        if not job.began then burn() end
        job.began = true
        return true
      end,
      done = function(_, values)
        ended.times, ended.count = ended.times + 1, #values[1]
      end,
    })
    ended.bytes = bytes
    return ended
  end

  it("goes on once when the loop was stopped while it rested", function()
    local first
    local _, err = perigee.run(function()
      first = begin(3000)
      perigee.sleep(0)
      perigee.sleep(0.002)
      perigee.stop()
      perigee.sleep(60)
    end)
    assert.equal("closed", err.kind)
    assert.is_true(cases.eventually(function() return first.count end))
    perigee.sleep(0.05)                 -- time for anything else that comes
    assert.same({ 3000, 1 }, { first.count, first.times })
    local second = begin(3)
    assert.is_true(cases.eventually(function() return second.count end))
    assert.same({ 3, 1 }, { second.count, second.times })
  end)
end)
