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
end)
