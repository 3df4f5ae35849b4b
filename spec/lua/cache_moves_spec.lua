-- SPDX-License-Identifier: Apache-2.0
-- Copies between regions of one cache, here of host memory.
local cases = require "spec.support.cases"
local moves = require "perigee.cache.moves"
local perigee = require "perigee"

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

  -- Begins a copy, and returns once its session is being dialled.
  local function dialling(engine, own)
    local to, result = assert(engine:alloc(64)), nil
    assert(engine:alloc(64, { name = "from", access = "r" }))
    own:copy("from", 0, to:slice(), function(fine) result = fine end)
    repeat perigee.sleep(0) until own.dialled
    return function() return result end
  end

  local function has_sessions(engine) return next(engine.sessions) ~= nil end

  it("leave no session if they are closed while it is dialled", function()
    local agent = assert(cases.agent())
    local own = moves.new(agent, function() end)
    local result = dialling(agent.engine, own)
    assert.is_false(own.dialled.ended)
    own:close()
    own.dialled:wait()
    cases.await(function()
      return result() == false and not has_sessions(agent.engine)
    end)
  end)

  it("leave none that was dialled for who was dropped by a stop", function()
    local agent = assert(cases.agent())
    local own = moves.new(agent, function() end)
    perigee.run(function()
      dialling(agent.engine, own)
      perigee.stop()
    end)
    assert(own.dialled:wait())
    assert.is_true(has_sessions(agent.engine))
    own:close()
    cases.await(function() return not has_sessions(agent.engine) end)
  end)

  it("fail once they are closed", function()
    local agent = assert(cases.agent())
    local why, result
    local own = moves.new(agent, function(err) why = err end)
    own:close()
    own:copy("from", 0, assert(agent.engine:alloc(64)):slice(), function(fine)
      result = fine
    end)
    cases.await(function() return result ~= nil end)
    assert.is_false(result)
    assert.equal("closed", why.kind)
    assert.is_false(has_sessions(agent.engine))
  end)
end)
