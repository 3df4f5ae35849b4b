-- SPDX-License-Identifier: Apache-2.0
local cases = require "spec.support.cases"
local perigee = require "perigee"

describe("a listener", function()
  after_each(cases.cleanup)

  it("forgets those who do not wait any more", function()
    local listener = assert(cases.engine():listen(cases.address()))
    local patient = perigee.spawn(function() return listener:accept(10) end)
    for _ = 1, 10 do
      local none, err = listener:accept(0.001)
      assert.is_nil(none)
      assert.equal("timeout", err.kind)
    end
    assert.equal(1, #listener.waiting)
    local session = assert(cases.engine():connect(cases.address()))
    assert.equal(session:explain().address, assert(patient:wait(5)).address)
    assert.equal(0, #listener.waiting)
  end)

  it("leaves no session whose handshake ended after its close", function()
    for _, where in ipairs { cases.address "closing", "tcp://127.0.0.1:0" } do
      local near, far = cases.engine { secret = "" }, cases.engine {
        secret = "" }
      for turns = 0, 20 do
        local listener = assert(far:listen(where))
        local dialling = perigee.spawn(function()
          return near:connect(listener.address, { transport = "tcp" })
        end)
        for _ = 1, turns do perigee.sleep(0) end
        listener:close()
        local session = dialling:wait(10)
        if session then
          session:ended():wait(10)
          assert.equal("peer_lost", session.lost.kind)
        end
        assert.is_true(cases.eventually(function()
          return far:stats().sessions == 0
        end), where .. " after " .. turns)
      end
    end
  end)
end)
