-- SPDX-License-Identifier: Apache-2.0
-- Sums and copies of long values by a cache: the loop runs in between.
local bytes = require "perigee.cache.bytes"
local cases = require "spec.support.cases"
local perigee = require "perigee"

local ffi = require "ffi"
local C = require "perigee.cache.native".C

local MIB = 2 ^ 20
local LENGTH = 33 * MIB + 5             -- 9 pieces

describe("a long value of a cache", function()
  local from, to, turns

  before_each(function()
    local engine = assert(cases.agent()).engine
    from = engine:alloc(LENGTH):slice()
    to = engine:alloc(LENGTH):slice()
    for i = 0, LENGTH - 1, 4096 do from.pointer[i] = i / 4096 % 251 end
  end)
  after_each(cases.cleanup)

  -- Counts the turns of the loop until f() returns; returns its result.
  local function counted(f)
    local over = false
    turns = 0
    perigee.spawn(function()
      while not over do
        perigee.sleep(0)
        turns = turns + 1
      end
    end)
    local result = perigee.spawn(f):wait()
    over = true
    return result
  end

  local function sum() return C.perigee_cache_sum(from.pointer, LENGTH, 0) end

  it("is summed by pieces", function()
    assert.is_true(sum() == counted(function() return bytes.sum(from) end))
    assert.is_true(turns >= 8, tostring(turns))
    assert.is_true(0 == bytes.sum(from:slice(0, 0)))
  end)

  it("is copied by pieces", function()
    assert.is_true(counted(function() return bytes.copy(to, from) end))
    assert.is_true(turns >= 8, tostring(turns))
    assert.equal(0, ffi.string(to.pointer, LENGTH)
      == ffi.string(from.pointer, LENGTH) and 0 or 1)
    assert.is_true(bytes.copy(to:slice(0, 0), from:slice(0, 0)))
  end)

  it("is summed by pieces outside of tasks, over a stop of the loop",
     function()
    local told
    bytes.sum_in_turns(from, function(got) told = got end)
    assert.is_nil(told)
    perigee.spawn(perigee.stop)
    perigee.run()
    counted(function() cases.await(function() return told end) end)
    assert.is_true(told == sum())
    assert.is_true(turns >= 4, tostring(turns))
    bytes.sum_in_turns(from:slice(0, MIB), function(got) told = got end)
    assert.is_true(told == C.perigee_cache_sum(from.pointer, MIB, 0))
  end)

  it("has no sum, and no copy, once its memory has gone", function()
    local owner, told = from.owner, 1
    bytes.sum_in_turns(from, function(got) told = got end)
    local summed = perigee.spawn(function() return bytes.sum(from) end)
    local copied = perigee.spawn(function() return bytes.copy(to, from) end)
    perigee.sleep(0)
    assert.is_true(owner:close(0))
    assert.is_nil((summed:wait(10)))
    assert.is_false(copied:wait(10))
    cases.await(function() return told == nil end)
  end)
end)
