-- SPDX-License-Identifier: Apache-2.0
-- Calls that ask for a later term than that of their peer.
local cases = require "spec.support.cases"
local tables = require "spec.support.table_registry"

describe("a call that asks for a later term than its peer's", function()
  local registry, names, asked, caller, worker, x, term

  -- The registry tells a term of the worker's entry, as it grows there.
  before_each(function()
    registry, names, asked = tables.new()
    caller = assert(cases.agent("caller", { registry = registry }))
    worker = assert(cases.agent("worker", { registry = registry }))
    worker:serve { name = "x", methods = { one = function() return 1 end } }
    term = 1
    local lookup = registry.lookup
    function registry:lookup(scope, name)
      local entry = lookup(self, scope, name)
      if not entry or name ~= "worker" then return entry end
      local told = {}
      for key, value in pairs(entry) do told[key] = value end
      told.term = term
      return told
    end
    x = assert(caller:proxy("worker", "x"))
  end)
  after_each(tables.finish)

  local function stale(got, err)
    assert.is_nil(got)
    assert.equal("stale", err.kind, tostring(err))
    assert.matches("since term 2", tostring(err))
    assert.not_matches("draining", tostring(err))
  end

  it("leaves the peer to all others while it waits, and when it has ended",
     function()
    local session = assert(caller:session "worker")
    local call = x:with({ term = 2, reconnect = 1 }).async:one()
    local before = asked.lookup
    cases.await(function() return asked.lookup > before + 3 end)
    assert.equal(1, x:one())
    assert.equal(session, assert(caller:mesh({ "worker" }, 2)).worker)
    assert.is_false(call:done())
    stale(call:wait(20))
    assert.equal(1, x:one())
    assert.equal(session, assert(caller:mesh({ "worker" }, 2)).worker)
    assert.equal(session, (caller:session "worker"))
    assert.equal(1, caller.engine:stats().sessions)
  end)

  it("ends in stale when its session was lost, and an older one is there",
     function()
    term = 2
    local fenced = x:with { term = 2, reconnect = 0.3 }
    assert.equal(1, fenced:one())
    term = 1
    local lost = assert(caller:session "worker")
    for _, session in pairs(worker.engine.sessions) do session:close() end
    cases.await(function() return not lost.handle end)
    stale(fenced:one())
    assert.equal(1, x:one())
    assert.equal(1, caller.engine:stats().sessions)
  end)

  it("goes to who takes the name later, as others' calls do from then on",
     function()
    local call = x:with({ term = 2, reconnect = 30 }).async:one()
    local before = asked.lookup
    cases.await(function() return asked.lookup > before + 3 end)
    names.worker = nil
    local next_one = assert(cases.agent("worker", { registry = registry }))
    next_one:serve { name = "x", methods = { one = function() return 2 end } }
    term = 2
    assert.equal(2, (call:wait(20)))
    assert.equal(2, (assert(caller:proxy("worker", "x")):one()))
    assert.equal(1, x:one())            -- its session is as good as before
    worker:close()
    cases.await(function() return x:one() == 2 end)
  end)

  it("leaves few sessions, however often the term grows", function()
    for i = 1, 30 do
      term = i
      assert.equal(1, (assert(x:with { term = i }:one())))
    end
    local n = caller.engine:stats().sessions
    assert.is_true(n <= 10, n .. " sessions")
  end)
end)
