-- SPDX-License-Identifier: Apache-2.0
-- Peers that drain and lie about it: who calls them keeps few sessions with
-- them.
local cases = require "spec.support.cases"
local process = require "spec.support.process"
local tables = require "spec.support.table_registry"

describe("the caller of a peer that drains", function()
  local registry, names, asked, caller

  before_each(function()
    registry, names, asked = tables.new()
    caller = assert(cases.agent("caller", { registry = registry }))
  end)
  after_each(tables.finish)

  local function serves()
    local agent = assert(cases.agent("worker", { registry = registry }))
    agent:serve { name = "x", methods = { one = function() return 1 end } }
    return agent
  end

  -- Makes lookups of the worker's name give f(entry).
  local function look_up(f)
    local before = registry.lookup
    function registry:lookup(scope, name)
      local entry = before(self, scope, name)
      return name == "worker" and f(entry) or entry
    end
  end

  local function with_epoch(entry, epoch)
    local other = {}
    for key, value in pairs(entry) do other[key] = value end
    other.epoch = epoch
    return other
  end

  local function sessions() return caller.engine:stats().sessions end

  -- As after its registry has lost the name and got it again.
  it("finds it by a term that its entry has got since", function()
    serves()
    local term = 1
    look_up(function(entry)
      local other = with_epoch(entry, entry.epoch)
      other.term = term
      return other
    end)
    local x = assert(caller:proxy("worker", "x"))
    assert.equal(1, x:with { term = 1 }:one())
    term = 2
    assert.equal(1, (assert(x:with { term = 2, timeout = 20 }:one())))
    local _, err = x:with { term = 3, reconnect = 0 }:one()
    assert.equal("stale", err.kind)
  end)

  it("has two sessions at most, if its entry tells of another life", function()
    local worker = serves()
    local x = assert(caller:proxy("worker", "x"))
    local used = assert(caller:session "worker")
    look_up(function(entry)
      return with_epoch(entry, ("%016x"):format(asked.lookup))
    end)
    assert(worker:drain())
    local call = x:with { timeout = 60 }.async:one()
    local before, most = asked.lookup, 0
    cases.await(function()
      most = math.max(most, sessions())
      return asked.lookup > before + 5
    end)
    assert.is_false(call:done())
    assert.is_true(most <= 2, most .. " sessions")
    assert.is_true(used.handle and true, "the session from before was closed")
    assert.equal(used, (caller:session "worker"))
    call:cancel()
  end)

  it("has few, if it is another peer each time", function()
    local worker = serves()
    local x = assert(caller:proxy("worker", "x"))
    local lives, entries = { worker }, { names.worker }
    for i = 2, 30 do
      names.worker = nil
      lives[i] = serves()
      entries[i] = names.worker
    end
    for _, life in ipairs(lives) do assert(life:drain()) end
    local at = 0
    look_up(function()
      at = at % #lives + 1
      return entries[at]
    end)
    local before, since = asked.lookup, process.now()
    local call = x:with { timeout = 60 }.async:one()
    cases.await(function() return asked.lookup > before + 20 end)
    assert.is_false(call:done())
    local rate = (asked.lookup - before) / (process.now() - since)
    assert.is_true(rate < 200, rate .. " attempts a second")
    assert.is_true(sessions() <= 10, sessions() .. " sessions")
    call:cancel()
  end)
end)
