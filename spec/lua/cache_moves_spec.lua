-- SPDX-License-Identifier: Apache-2.0
-- Copies between regions of one cache, here of host memory.
local cases = require "spec.support.cases"
local moves = require "perigee.cache.moves"

local ffi = require "ffi"

describe("copies between regions of a cache", function()
  after_each(cases.cleanup)

  -- A slab may go, and another one have its name, while it is looked up.
  it("go on after a region was closed while it was looked up", function()
    local agent, failures = assert(cases.agent()), 0
    local engine = agent.engine
    local own = moves.new(agent, function() failures = failures + 1 end)
    local to = assert(engine:alloc(64))
    local from
    local function alloc(text)
      from = assert(engine:alloc(64, { name = "from", access = "r" }))
      ffi.copy(from.pointer, text, #text)
    end

    local function copy()
      local result
      own:copy("from", 0, to:slice(), function(fine) result = fine end)
      cases.await(function() return result ~= nil end)
      return result
    end

    alloc "old."
    assert.is_true(copy())
    own:forget "from"
    local session = own.session
    local region = session.region
    function session.region(...)
      local found = region(...)
      from:close(0)
      own:forget "from"
      alloc "new."
      return found
    end
    assert.is_false(copy())
    session.region = nil
    assert.equal(1, failures)
    assert.is_true(copy())
    assert.equal("new.", to:slice(0, 4):string())
    own:close()
  end)
end)
