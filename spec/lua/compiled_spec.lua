-- SPDX-License-Identifier: Apache-2.0
local cases = require "spec.support.cases"
local jutil = require "jit.util"
local vmdef = require "jit.vmdef"

-- LuaJIT gives up compiling a loop after about ten failed tries, and each loop
-- around it. The server's own work between calls then runs in the interpreter.
describe("the loop of an agent alone", function()
  local GIVEN_UP = 5                    -- tries; normally 0, or 1 by chance
  local tries, agent

  local function tell(what, _, func, pc, code)
    if what ~= "abort" then return end
    local source = jutil.funcinfo(func, pc).source or ""
    if source:match("perigee/loop.lua$")
      and vmdef.traceerr[code]:match("^leaving loop") then
      tries = tries + 1
    end
  end

  before_each(function()
    tries = 0
    agent = assert(cases.agent("worker"))
    agent:serve { name = "x", version = 1, methods = {
      echo = { raw = true, function(request) return request end } } }
  end)
  after_each(function()
    jit.attach(tell)
    cases.cleanup()
  end)

  it("is compiled while it serves one call after the other", function()
    local proxy = assert(agent:proxy("worker", "x"))
    jit.flush()
    jit.attach(tell, "trace")
    for _ = 1, 20000 do assert(proxy:echo "bytes") end
    assert.is_true(tries < GIVEN_UP, tries)
  end)
end)
