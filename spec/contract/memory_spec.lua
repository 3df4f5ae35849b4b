-- SPDX-License-Identifier: Apache-2.0
-- Memory use under load: four drivers make 10,000 calls of 1 MiB, each ten at a
-- time. Meanwhile server and drivers may each take, beyond what they had, three
-- times the bytes in flight and 8 MiB; one second later 8 MiB.
local cases = require "spec.support.cases"
local process = require "spec.support.process"

local DRIVERS, UNDER_WAY = 4, 10
local MIB, SLACK = 2 ^ 20, 8

local function server(child, perigee, _, progress)
  local options = progress and { progress = progress } or nil
  local agent = assert(child.cases.agent("worker", options))
  agent:serve {
    name = "bytes", version = 1,
    methods = {
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
    },
  }
  child.say("ready")
  perigee.run()
  agent:close()
end

local function driver(child, perigee, ffi, method, calls, under_way, size)
  calls, under_way, size = tonumber(calls), tonumber(under_way), tonumber(size)
  local agent = assert(child.cases.agent())
  local bytes = assert(agent:proxy("worker", "bytes", { timeout = 60 }))
  local region = agent.engine:alloc(size)
  local slice = region:slice(0, size)
  ffi.fill(slice.pointer, size, 7)
  local function reader(reply)
    return reply.length == size and reply.pointer[0] == 7
      and reply.pointer[size - 1] == 7
  end
  local sized = bytes:with { capacity = size, reader = reader }.async
  local futures = {}
  local function ended(i)
    local fine, err = futures[i]:wait()
    assert(fine == true, tostring(err))
    futures[i] = nil
  end
  local function run(count)
    for i = 1, count do
      futures[i] = sized[method](sized, slice)
      if i > under_way then ended(i - under_way) end
    end
    for i = math.max(1, count - under_way + 1), count do ended(i) end
  end
  run(1)
  child.say("ready")
  child.attend()
  run(calls)
  child.say("done")
  child.attend()
  perigee.sleep(0)
end

-- MiB of memory that a process has touched, its own and shared.
local function resident(of) return of:number("status", "VmRSS") / 1024 end

describe("memory under load", function()
  if cases.sanitized then return pending("a sanitizer keeps what is freed") end
  if os.getenv "PERIGEE_TRANSPORT" == "verbs" then
    return pending("blocks stay registered, so memory is not given back")
  end

  local worker, drivers

  before_each(function()
    drivers = {}
  end)
  after_each(cases.cleanup)

  local function start(method, calls)
    for i = 1, DRIVERS do
      drivers[i] = process.start(driver, method, calls / DRIVERS, UNDER_WAY,
                                 MIB)
    end
    for i = 1, DRIVERS do drivers[i]:expect("ready", 30) end
  end

  -- Each process, its memory now, and the bytes it has in flight under load.
  local function everybody()
    local all = { { of = worker, name = "the server",
                    under_way = DRIVERS * UNDER_WAY } }
    for i, one in ipairs(drivers) do
      all[i + 1] = { of = one, name = "driver " .. i, under_way = UNDER_WAY }
    end
    for _, one in ipairs(all) do one.before, one.most = resident(one.of), 0 end
    return all
  end

  local function watch(all)
    for _, one in ipairs(all) do
      one.most = math.max(one.most, resident(one.of))
    end
    process.usleep(0.005)
  end

  -- Memory goes back when it is quiet, which a busy machine sees later.
  local function rest(one)
    local limit = process.now() + 10 * cases.slow
    while resident(one.of) - one.before > SLACK and process.now() < limit do
      process.usleep(0.05)
    end
  end

  local function check(method, calls, ...)
    worker = process.start(server, ...):expect("ready")
    start(method, calls)
    local all = everybody()
    for _, one in ipairs(drivers) do one:tell("go on") end
    for _, one in ipairs(drivers) do
      one:expect("done", 60 * cases.slow, function() watch(all) end)
    end
    for _, one in ipairs(all) do
      rest(one)
      local took, stays = one.most - one.before, resident(one.of) - one.before
      assert.is_true(took <= 3 * one.under_way + SLACK,
                     ("%s took %.1f MiB"):format(one.name, took))
      assert.is_true(stays <= SLACK,
                     ("%s has %.1f MiB more"):format(one.name, stays))
    end
  end

  it("is what is under way, of raw calls", function() check("echo", 20000) end)
  it("is what is under way, of inplace calls", function()
    check("copy", 2000)
  end)
  it("is what is under way, with a thread", function()
    check("echo", 2000, "thread")
  end)
end)
