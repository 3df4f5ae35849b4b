-- SPDX-License-Identifier: Apache-2.0
local cases = require "spec.support.cases"
local process = require "spec.support.process"

-- Dials itself twice; everything logged goes to its output.
local PROGRAM = [[
  local perigee = require "perigee"
  perigee.log = function(level, message)
    print(level .. ": " .. message)
    io.stdout:flush()
  end
  local engine = assert(perigee.engine())
  local listener = assert(engine:listen(arg[1]))
  for _ = 1, 2 do
    local session = assert(engine:connect(arg[1]))
    print("carried by " .. session:explain().transport)
    assert(listener:accept(5))
  end
]]

describe("a transport that only the environment asks for", function()
  after_each(cases.cleanup)

  it("is done without where there is no device, as the log is told once",
     function()
    cases.address()
    local child = process.spawn { "sh", "-c", "PERIGEE_NICS=none "
      .. "PERIGEE_TRANSPORT=verbs luajit - " .. cases.address()
      .. " 2>&1 <<'END'\n" .. PROGRAM .. "END\n" }
    local line = assert(child:read(10 * cases.slow))
    assert.matches("^warning: .*RDMA", line)
    assert.matches("PERIGEE_TRANSPORT is ignored and shared memory or TCP used",
                   line, 1, true)
    for _ = 1, 2 do
      assert.matches("^carried by %l+$", (child:read(10 * cases.slow)))
    end
    local none, ended = child:read(10 * cases.slow)
    assert.is_nil(none)
    assert.matches("end of", ended)
  end)
end)
