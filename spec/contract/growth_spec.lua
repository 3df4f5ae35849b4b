-- SPDX-License-Identifier: Apache-2.0
-- Long runs: memory, descriptors and mappings do not grow. The default runs a
-- part of each (PERIGEE_SPEC_SCALE); --tags=slow runs all of it.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  agent.engine:alloc(4096, { name = "m", access = "rw" })
  agent:serve {
    name = "x", version = 1,
    methods = {
      add = function(a, b) return a + b end,
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
      collect = function()
        collectgarbage()
        collectgarbage()
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

local function lines(command)
  local pipe = io.popen(command)
  local count = tonumber(pipe:read("*a"))
  pipe:close()
  return count
end

-- { memory in KiB, descriptors, mappings }
local function size(pid)
  collectgarbage()
  collectgarbage()
  local memory
  for line in io.lines(("/proc/%d/status"):format(pid)) do
    memory = memory or tonumber(line:match("^VmRSS:%s+(%d+)"))
  end
  return { memory, lines(("ls /proc/%d/fd | wc -l"):format(pid)),
           lines(("wc -l < /proc/%d/maps"):format(pid)) }
end

local BOUNDS = { 4096, 2, 12 }
if cases.sanitized then BOUNDS = { math.huge, 2, math.huge } end

local function grew(before, after, what)
  for i, bound in ipairs(BOUNDS) do
    if after[i] > before[i] + bound then
      error(("%s: %d became %d"):format(what, before[i], after[i]), 2)
    end
  end
end

describe("nothing grows", function()
  local child, proxy, agent

  before_each(function()
    child = process.start(server):expect("ready")
    proxy, agent = cases.proxy("x", { timeout = 20 })
  end)
  after_each(cases.cleanup)

  local function calls(count)
    local n = 0
    local function writer(loan)
      loan.pointer[0] = n % 256
      return 64
    end
    local function reader(reply) return reply.pointer[0] end
    local inplace = proxy:with { capacity = 64, reader = reader }
    local large = cases.bytes(20000)
    for i = 1, count do
      n = i
      if proxy:add(i, 1) ~= i + 1 then error("a wrong sum") end
      if inplace:copy(writer) ~= i % 256 then error("wrong bytes") end
      if i % 16 == 0 and proxy:echo(large) ~= large then error("wrong") end
      if i % 32 == 0 then
        local future = proxy.async:echo("cancelled")
        future:cancel()
      end
    end
  end

  local function many_calls(count)
    local pending = agent.engine:stats().operations
    calls(math.min(count, 5000))
    proxy:collect()
    local here, there = size(process.pid()), size(child.pid)
    calls(count)
    proxy:collect()
    grew(here, size(process.pid()), "the caller")
    grew(there, size(child.pid), "the server")
    assert.equal(pending, agent.engine:stats().operations)
  end

  local function cycles(count)
    for i = 1, count do
      local other = assert(cases.agent())
      cases.opened[#cases.opened] = nil
      if i % 2 == 0 then
        local x = assert(other:proxy("worker", "x"))
        if x:add(i, 1) ~= i + 1 then error("a wrong sum") end
      end
      other:close()
    end
  end

  local function many_cycles(count)
    cycles(math.min(count, 200))
    proxy:collect()
    local here, there = size(process.pid()), size(child.pid)
    cycles(count)
    perigee.sleep(0.1)
    proxy:collect()
    grew(here, size(process.pid()), "the caller")
    grew(there, size(child.pid), "the server")
  end

  local function many_transfers(count)
    local session = assert(agent:session("worker"))
    local remote = assert(session:region("m"))
    local here = agent.engine:alloc(4096)
    local function run(times)
      for i = 1, times do
        local slice = here:slice(0, 8)
        ffi.cast("uint64_t *", slice.pointer)[0] = i
        assert(session:write { from = slice, to = remote:slice(0, 8) }:wait(5))
        assert(session:region("m") == remote)
        local region = agent.engine:alloc(4096, { name = "passing" })
        region:close()
      end
    end
    run(math.min(count, 1000))
    local before, there = size(process.pid()), size(child.pid)
    run(count)
    grew(before, size(process.pid()), "the caller")
    grew(there, size(child.pid), "the server")
  end

  it("in many calls", function() many_calls(1e6 * cases.scale) end)
  it("in many connects and closes", function()
    many_cycles(1e5 * cases.scale)
  end)
  it("in many transfers, lookups and regions", function()
    many_transfers(1e5 * cases.scale)
  end)

  it("in 1 000 000 calls #slow", function() many_calls(1e6) end)
  it("in 100 000 connects and closes #slow", function() many_cycles(1e5) end)
end)
