-- SPDX-License-Identifier: Apache-2.0
-- A process that may have no more descriptors, or little address space, or no
-- long files: what it is told of what wants them.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

-- Tells of each of `wants` the kind and the message of its error.
local function worker(child, perigee)
  child.limit("nofile", 100)

  local engine = assert(perigee.engine {})
  local agent = assert(child.cases.agent "one")
  assert(child.cases.agent "other")
  local here = assert(engine:listen "tcp://127.0.0.1:0")
  local shared = assert(engine:alloc(4096, { access = "r" }))
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
    { "adopt", function() return engine:adopt(shared:file(), 4096) end },
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
    assert.equal(12, told)
  end)
end)

-- May have 1 GiB of addresses more than it has now, and opens engines.
local function cramped(child, perigee)
  local pages = io.open "/proc/self/statm":read "*n"
  child.limit("as", pages * 4096 + 2 ^ 30)
  local engine, err = perigee.engine {}
  child.say(tostring(engine), err.kind, err.message)
  child.say(perigee.engine { pool = 2 ^ 20 } and "a small one opens")
end

describe("a process with too little address space for an engine", function()
  after_each(cases.cleanup)

  it("is told so, of the option pool and of ulimit -v, and goes on", function()
    local child = process.start(cramped)
    local told = child:read(30 * cases.slow)
    assert.matches("^nil no_memory .*option pool, 4096 MiB.*ulimit %-v", told)
    child:expect "a small one opens"
    assert.same({ "exit", 0 }, { child:wait() })
  end)
end)

-- Serves echoes, with files of so many KiB at most, and logs to its parent.
local function short_filed(child, perigee, _, kib)
  child.limit("fsize", tonumber(kib) * 1024)
  perigee.log = function(level, message) child.say(level .. " " .. message) end
  local agent, err = child.cases.agent "short"
  if not agent then return child.say("no " .. tostring(err)) end
  agent:serve { name = "short", version = 1, methods = {
    echo = { raw = true, function(bytes) return bytes end } } }
  local region, why = agent.engine:alloc(2 ^ 24, { name = "r", access = "r" })
  assert(not region)
  child.say("region " .. tostring(why))
  child.say "there"
  perigee.run()
end

describe("a process whose files may not be long", function()
  after_each(cases.cleanup)

  it("says so when it begins, and serves what is short", function()
    local child = process.start(short_filed, 4096)
    assert.matches("^warning files .* 4194304 bytes .*ulimit %-f", child:read())
    assert.matches("^region .* too large", child:read())
    child:expect "there"
    local agent = assert(cases.agent(nil, { transport = "shm" }))
    local proxy = assert(agent:proxy("short", "short", { timeout = 10 }))
    for _ = 1, 3 do
      assert.equal("short", tostring(assert(proxy:echo "short")))
      local reply, err = proxy:echo(("l"):rep(2 ^ 20))
      assert.is_nil(reply)
      assert.equal("no_memory", err.kind)
      assert.matches("ulimit -f", err.message, 1, true)
    end
    assert.is_nil(child:wait(0), "it lives")
  end)

  it("says so to who comes where it can share nothing", function()
    local child = process.start(short_filed, 512)
    child:read()
    child:read()
    child:expect "there"
    local agent = assert(cases.agent(nil, { transport = "shm" }))
    local session, err = agent:session("short", { timeout = 10 })
    assert.is_nil(session)
    assert.matches("ulimit -f", err.message, 1, true)
    assert.is_nil(child:wait(0), "it lives")
  end)

  it("is told so where not even a name fits", function()
    local child = process.start(short_filed, 0)
    child:read()
    assert.matches("^no ", child:read())
    local how, status = child:wait()
    assert.same({ "exit", 0 }, { how, status })
  end)
end)
