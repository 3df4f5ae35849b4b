-- SPDX-License-Identifier: Apache-2.0
-- What a machine or its user lacks: locked memory, a device, options that go
-- together. One sentence says what is wrong and what to do, and everything that
-- can work does.
local cases = require "spec.support.cases"
local process = require "spec.support.process"
local weather = require "spec.rdma.weather"

local MIB = 2 ^ 20
local sides, none = weather.anywhere()

-- A session of an engine with itself, or nil and the reason.
local function dial(rdma)
  local engine = cases.engine { rdma = rdma }
  local listener = assert(engine:listen(cases.address()))
  local session, err = engine:connect(cases.address(),
                                      { transport = "verbs", timeout = 10 })
  listener:close()
  return session, err
end

describe("options for RDMA", function()
  if not sides then return pending(none) end
  after_each(cases.cleanup)

  it("that cannot be are misuse, and the message tells what can", function()
    for text, why in pairs {
      ["qsp=2"] = 'there is no "qsp"; there are nics, gid, qps',
      ["qps=99"] = '"qps=99" cannot be: it takes 1 to 8',
      ["depth=x"] = '"depth=x" cannot be: it takes 8 to 8192',
      ["retry=7"] = '"retry=7" cannot be: it takes 0 to 6',
      ["mtu=1000"] = "a power of two from 256",
      ["qps"] = '"qps" has no key: write key=value',
      ["nics=a,a"] = "NIC a is named twice",
      ["nics=a gid=1,2"] = "gid has 2 values for 1 NICs",
    } do
      local fine, err = pcall(dial, text)
      assert.is_false(fine, text)
      assert.is_truthy(tostring(err):find(why, 1, true), tostring(err))
      cases.cleanup()
    end
    assert.error_matches(function() cases.engine { rdma = { qsp = 1 } } end,
                         "a table of nics, qps")
  end)

  it("that this machine has not are unsupported, and name what it has",
  function()
    for text, why in pairs {
      ["nics=none"] = "there is no RDMA port none; there are? .*:1",
      ["nics=none:2"] = "there is no RDMA port none:2; there are? .*:1",
      ["gid=200"] = "has no GID of index 200 %(gid=200%)",
    } do
      local session, err = dial(text)
      assert.is_nil(session)
      assert.equal("unsupported", err.kind)
      assert.matches(why, tostring(err))
      cases.cleanup()
    end
    assert(dial(sides.near))
  end)
end)

describe("peers", function()
  if not sides then return pending(none) end
  after_each(cases.cleanup)

  local function pair_of(near, far)
    local child = weather.worker({ far = sides.far .. " " .. far },
                                 weather.services)
    local agent = weather.agent(sides.near .. " " .. near)
    local proxy, err = agent:proxy("worker", "x", { timeout = 60 })
    return agent, proxy, err, child
  end

  for near, far in pairs {
    ["qps=1 depth=16"] = "qps=4 depth=256 stripe=64K",
    ["qps=4 depth=256 stripe=64K"] = "qps=1 depth=16",
    ["qps=3 windows=0"] = "qps=2 windows=1 inline=0",
    ["mtu=1024 inline=512"] = "qps=8 depth=8",
  } do
    it("work where one has " .. near .. " and the other " .. far, function()
      local agent, proxy, err, child = pair_of(near, far)
      assert(proxy, tostring(err))
      local session = assert(agent:session("worker"))
      local here = agent.engine:alloc(12 * MIB)
      for round = 1, 3 do weather.fair(proxy, session, here, round) end
      child:kill()
    end)
  end

  it("with another number of NICs are told", function()
    local two, why = weather.across()
    if not two then return pending(why) end
    two.near = "nics=rxe1,rxe2 gid=1"
    local child = weather.worker(two, weather.services)
    local agent = weather.agent(two.near)
    local proxy, err = agent:proxy("worker", "x", { timeout = 20 })
    assert.is_nil(proxy)
    assert.equal("unsupported", err.kind)
    assert.matches("[12] NICs here and [12] there: .*nics=", tostring(err))
    agent:close()
    agent = assert(weather.agent(two.far))
    assert(agent:proxy("worker", "x", { timeout = 20 }))
    child:kill()
  end)
end)

-- Gives up the right to lock more than kib KiB of memory, then connects to
-- itself.
local function limited(child, _, ffi, rdma, kib)
  ffi.cdef [[
    int capset(void *header, void *data);
    int setrlimit(int what, void *limit);
  ]]
  local size = 2 ^ 25
  local bytes = tonumber(kib) * 1024
  local header = ffi.new("uint32_t[2]", 0x20080522, 0)
  assert(ffi.C.capset(header, ffi.new("uint32_t[6]")) == 0)
  assert(ffi.C.setrlimit(8, ffi.new("uint64_t[2]", bytes, bytes)) == 0)
  local agent = assert(child.cases.agent("worker",
    { transport = "verbs", engine = { rdma = rdma, hello_timeout = 90 } }))
  local here = agent.engine:alloc(size)
  agent.engine:alloc(size, { name = "big", access = "rw" })
  agent:serve { name = "x", version = 1, methods = {
    same = function(x) return x end,
    put = function(slice) return slice.length end,
  } }
  local proxy, err = agent:proxy("worker", "x", { timeout = 20 })
  local function tell(what, got, why)
    child.say(what, got, why and why.kind, (tostring(why):gsub("\n", " ")))
  end
  tell("dial", proxy and "done", err)
  if proxy then
    local session = assert(agent:session("worker"))
    tell("put", proxy:put(here:slice(0, size)))
    local big = assert(session:region("big"))
    tell("write", session:write({ from = here:slice(0, size),
                                  to = big:slice(0, size) }):wait(20))
    tell("same", proxy:same("on"))
    child.say("left", agent.engine:stats().operations)
  end
  agent:close()
  assert(child.cases.agent("other")):close()
  child.say("end")
end

describe("a limit of locked memory", function()
  if not sides then return pending(none) end
  after_each(cases.cleanup)

  local function run(kib)
    local child = process.start(limited, sides.near, kib)
    local told = {}
    for line in function() return child:read(30) end do
      if line == "end" then return told end
      local what, got, rest = line:match("^(%a+) (%S+) ?(.*)$")
      told[what], told[what .. "_why"] = got, rest
    end
    error "the child died"
  end

  for _, kib in ipairs { 16, 64, 200 } do
    it(("of %d KiB is told when a session is made"):format(kib), function()
      local told = run(kib)
      assert.equal("nil", told.dial)
      assert.matches("^no_memory .*ulimit %-l", told.dial_why)
    end)
  end

  for _, kib in ipairs { 1024, 8192 } do
    it(("of %d KiB is told by what does not fit"):format(kib), function()
      local told = run(kib)
      assert.equal("done", told.dial)
      for _, what in ipairs { "put", "write" } do
        assert.equal("nil", told[what])
        assert.matches("^no_memory .*locked memory is limited to .*ulimit %-l",
                       told[what .. "_why"])
      end
      assert.equal("on", told.same)
      assert.equal("0", told.left)
    end)
  end
end)

-- ---- No device --------------------------------------------------------------

local CALL = [[%s luajit examples/read.lua 2>&1]]

local function output(environment)
  local pipe = assert(io.popen(CALL:format(environment)))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

describe("a machine without a device", function()
  -- The environment hides the devices; devices_test.c checks the sentence for
  -- machines without any.
  after_each(cases.cleanup)

  it("says so and uses shared memory where only the environment asks",
  function()
    local text = output "PERIGEE_NICS=none PERIGEE_TRANSPORT=verbs"
    local _, count = text:gsub("PERIGEE_TRANSPORT is ignored and shared memory",
                               "")
    assert.is_true(count >= 1, text)
    assert.matches("PERIGEE_NICS=none .* hides all RDMA devices", text)
    assert.matches("every one checked\n.*ok\n$", text)
  end)

  it("refuses where RDMA was asked for by name", function()
    local child = process.spawn { "sh", "-c",
      "PERIGEE_NICS=none luajit -e '" .. [[
        local perigee = require "perigee"
        local agent = assert(perigee.agent { scope = "none", name = "a",
                                             transport = "verbs" })
        local proxy, err = agent:proxy("a", "x")
        print(proxy, err.kind, err)
        agent:close() ]] .. "'" }
    local line = assert(child:read(20))
    assert.matches("^nil%s+unsupported%s", line)
    assert.matches("PERIGEE_NICS=none .*hides all RDMA devices", line)
  end)
end)
