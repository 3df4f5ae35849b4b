-- SPDX-License-Identifier: Apache-2.0
-- How often an engine wakes while it waits for a long copy of a GPU, by the
-- fake driver of this folder: the driver tells of the end by a descriptor, and
-- the engine looks seldom behind that.
local cases = require "spec.support.cases"
local links = require "spec.support.links"

-- Looks of 50 us each would be 6,000 in a copy of 0.3 s.
local LONG, TOLD, UNTOLD = "slow=300000 ", 60, 600

local says = links.says

describe("an engine that waits for a copy of a GPU", function()
  after_each(cases.cleanup)

  local a, b

  -- The peer's driver is set so.
  local function start(settings, options)
    a, b = links.pair("", settings)
    links.regions(a, b, options)
    a:run [[
      host = assert(engine:alloc(2 ^ 20, { name = "host", access = "rw" }))
      host:slice():fill(7)
    ]]
    b:run [[
      function looks(f)
        local before = engine:stats().sleeps
        result = f()
        return engine:stats().sleeps - before
      end
      function get()
        return wait(session:read { from = session:region("host"):slice(0, 5),
                                   to = here:slice(0, 5) })
      end
    ]]
  end

  local function looks(what)
    local n = tonumber(b:run("return looks(" .. what .. ")"))
    says(b, "result", "true")
    return n
  end

  it("is told of its end: between GPUs", function()
    start(LONG)
    local n = looks "write"
    assert.is_true(n > 0 and n < TOLD, n)
    says(b, 'total "cuLaunchHostFunc"', "1")
    says(b, "write() .. write()", "truetrue")
  end)

  it("is told of its end: from host memory to a GPU", function()
    start(LONG)
    local n = looks "get"
    assert.is_true(n > 0 and n < TOLD, n)
    says(b, 'total "cuLaunchHostFunc"', "1")
    says(b, "here:slice(0, 5):string()", ("\7"):rep(5))
  end)

  it("does not sleep longer than a moment after it is told", function()
    start "slow=3000"
    b:run [[ for i = 1, 40 do assert(write() == "true") end ]]
    local told = tonumber(b:run 'return total "cuLaunchHostFunc"')
    assert.is_true(told >= 20 and told <= 40, told)
  end)

  it("finds by itself what it was not told of", function()
    start(LONG .. "deaf=1")
    local n = looks "write"
    assert.is_true(n > 5 and n < TOLD, n)
    says(b, 'total "cuLaunchHostFunc"', "1")
    says(b, "write() .. get()", "truetrue")
  end)

  for _, name in ipairs { "cuEventCreate", "cuEventRecord",
                          "cuStreamWaitEvent", "cuLaunchHostFunc" } do
    it("looks more often if the driver refuses " .. name, function()
      start(LONG .. "fail=" .. name .. "@1:801")
      local n = looks "write"
      assert.is_true(n > TOLD and n < UNTOLD, n)
      says(b, ("total %q"):format(name), "1")
      n = looks "write"
      assert.is_true(n > TOLD and n < UNTOLD, n)
      says(b, ("total %q"):format(name), "1")
    end)
  end

  it("learns soon that the device has broken", function()
    start ""
    b:run [[
      ffi.cdef "void fake_cuda_set(const char *);"
      fake = ffi.load(os.getenv "PERIGEE_CUDA_LIBRARY")
      fake.fake_cuda_set "fail=stream@1:700"
      before = engine:stats().sleeps
    ]]
    says(b, "write()", "nil closed")
    local n = tonumber(b:run "return engine:stats().sleeps - before")
    assert.is_true(n < 10, n)
    b:run "engine:close()"
    says(a, "kv:close()", "true")
  end)
end)
