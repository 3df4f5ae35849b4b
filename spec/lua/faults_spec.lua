-- SPDX-License-Identifier: Apache-2.0
local log = require "perigee.runtime.log"
local perigee = require "perigee"

describe("faults on purpose", function()
  local said, before

  before_each(function()
    said, before = {}, log.target.log
    log.target.log = function(level, message)
      said[#said + 1] = level .. ": " .. message
    end
  end)

  after_each(function() log.target.log = before end)

  it("are said in the log, once", function()
    for _ = 1, 2 do
      assert(perigee.engine { faults = "seed=1 delay=1ms" }):close()
    end
    assert.same({ "warning: faults on purpose: seed=1 delay=1ms" }, said)
  end)

  it("are not there, and not spoken of, unless asked for", function()
    assert(perigee.engine { faults = "" }):close()
    assert(perigee.engine()):close()
    assert.same({}, said)
  end)

  it("are refused with a sentence where they make no sense", function()
    local ok, why = pcall(perigee.engine, { faults = "drop=2" })
    assert.is_false(ok)
    assert.matches('faults: "drop=2": a probability is a number, 0 to 1', why,
                   1, true)
    ok, why = pcall(perigee.engine, { faults = 1 })
    assert.is_false(ok)
    assert.matches("faults", why, 1, true)
  end)

  it("stand in what a session tells of itself, and calls survive delays",
     function()
    local name = "faults:" .. math.random(2 ^ 30)
    local engine = { faults = "seed=4 delay=1ms duplicate=0.5" }
    local served = 0
    local calc = { name = "calc", version = 1, methods = {
      add = function(a, b) served = served + 1 return a + b end } }
    local worker = assert(perigee.agent { name = name, engine = engine })
    worker:serve(calc)
    local driver = assert(perigee.agent { engine = engine })
    local proxy = assert(driver:proxy(name, "calc"))
    for i = 1, 50 do assert.equal(2 * i, proxy:add(i, i)) end
    assert.equal(50, served)
    local _, session = next(driver.engine.sessions)
    assert.matches("faults on purpose: seed=4 delay=1ms duplicate=0.5",
                   tostring(session:explain()), 1, true)
    driver:close()
    worker:close()
  end)

  -- One after another these would take 40 s and reach timeouts of 30 s.
  for _, transport in ipairs { "shm", "tcp" } do
    it("delay what is under way side by side side by side, over " .. transport,
       function()
      local COUNT, LENGTH = 200, 2 ^ 16
      local owner = assert(perigee.engine {})
      local listener = assert(owner:listen "tcp://127.0.0.1:0")
      local lent = assert(owner:alloc(LENGTH, { name = "kv", access = "rw" }))
      lent:slice():fill(7)
      local engine = assert(perigee.engine { faults = "seed=3 delay=400ms" })
      local session = assert(engine:connect(listener.address,
                                            { transport = transport }))
      local from = assert(session:region "kv"):slice()
      local own, reads, batch = assert(engine:alloc(LENGTH)):slice(), {}, {}
      for i = 1, COUNT do
        reads[i] = session:read { from = from, to = own }
        batch[i] = { from = from:slice(i, 1), to = own:slice(i, 1) }
      end
      if transport == "shm" then reads[COUNT + 1] = session:read(batch) end
      assert(perigee.wait_all(reads))
      assert.equal(("\7"):rep(64), own:slice(LENGTH - 64, 64):string())
      engine:close()
      owner:close()
    end)
  end
end)
