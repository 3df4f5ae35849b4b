-- SPDX-License-Identifier: Apache-2.0
-- A process that may have no more descriptors: what it is told of each thing
-- that wants one.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

-- Tells of each of `wants` the kind and the message of its error.
local function worker(child, perigee, ffi)
  ffi.cdef [[
    struct spec_limit { unsigned long now, most; };
    int getrlimit(int, struct spec_limit *);
    int setrlimit(int, const struct spec_limit *);
  ]]
  local FILES, limit = 7, ffi.new "struct spec_limit"
  ffi.C.getrlimit(FILES, limit)
  limit.now = 100
  ffi.C.setrlimit(FILES, limit)

  local engine = assert(perigee.engine {})
  local agent = assert(child.cases.agent "one")
  assert(child.cases.agent "other")
  local here = assert(engine:listen "tcp://127.0.0.1:0")
  local open = {}

  local function fill()
    repeat
      local file = io.open "/dev/null"
      open[#open + 1] = file
    until not file
  end

  local wants = {
    { "engine", function() return perigee.engine {} end },
    { "name", function() return child.cases.agent "two" end },
    { "listen unix", function()
      return engine:listen(child.cases.address "s")
    end },
    { "listen tcp", function() return engine:listen "tcp://127.0.0.1:0" end },
    { "connect unix", function() return engine:connect(agent.address) end },
    { "connect tcp", function() return engine:connect(here.address) end },
    { "region", function()
      return engine:alloc(4096, { name = "r", access = "r" })
    end },
    { "session", function() return agent:session "other" end },
    { "list", function() return agent:list() end },
    { "lookup", function() return agent:lookup "other" end },
    { "watch", function()
      local _, kind, why = agent.registry:watch(agent.scope, {})
      return nil, { kind = kind, message = why }
    end },
  }
  for _, each in ipairs(wants) do
    fill()
    local got, err = each[2]()
    assert(not got, each[1])
    child.say(("%s|%s|%s"):format(each[1], err.kind, err.message))
  end
  for _, file in ipairs(open) do file:close() end
  child.say(assert(agent:session("other", { timeout = 20 })) and "goes on")
end

describe("a process without a descriptor left", function()
  after_each(cases.cleanup)

  it("is told so, and of ulimit -n", function()
    local child = process.start(worker)
    local told = 0
    for line in function() return child:read(60 * cases.slow) end do
      if line == "goes on" then break end
      local what, kind, message = line:match "^([^|]*)|([^|]*)|(.*)$"
      assert.is_truthy(what, line)
      assert.equal("no_memory", kind, line)
      assert.matches("ulimit -n", message, 1, true, line)
      told = told + 1
    end
    assert.equal(11, told)
  end)
end)
