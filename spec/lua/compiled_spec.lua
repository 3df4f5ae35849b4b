-- SPDX-License-Identifier: Apache-2.0
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local ffi = require "ffi"
local jutil = require "jit.util"
local perigee = require "perigee"
local process = require "spec.support.process"
local vmdef = require "jit.vmdef"

-- LuaJIT gives up compiling a loop or a function after about ten failed tries,
-- and what is around it. Work between calls then runs in the interpreter.
local attached

-- Counts tries that fail for a reason, from now on: in a module, or anywhere.
local function count(module, reason)
  local path = module
    and "@" .. assert(package.searchpath(module, package.path))
  local tries = { n = 0 }
  function attached(what, _, func, pc, code)
    if what ~= "abort" then return end
    if (not path or jutil.funcinfo(func, pc).source == path)
      and vmdef.traceerr[code]:match(reason) then
      tries.n = tries.n + 1
    end
  end
  jit.flush()
  jit.attach(attached, "trace")
  return tries
end

describe("calls of an agent alone", function()
  local agent, proxy

  before_each(function()
    agent = assert(cases.agent("worker"))
    agent:serve { name = "x", version = 1, methods = {
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true,
               function(request, reply) return reply:write(request) end },
    } }
    proxy = assert(agent:proxy("worker", "x"))
  end)
  after_each(function()
    jit.attach(attached)
    cases.cleanup()
  end)

  it("are compiled while one is served after the other", function()
    local given_up = 8                  -- tries; normally 0, by chance up to 4
    local tries = count("perigee.runtime.loop", "^leaving loop")
    for _ = 1, 20000 do assert(proxy:echo "bytes") end
    assert.is_true(tries.n < given_up, tries.n)
  end)

  it("are compiled while many are under way, whose replies are read in place",
     function()
    local given_up = 20                 -- tries; normally 0, else above 40
    local async = proxy:with {
      capacity = 64, reader = function(reply) return reply.length end }.async
    local futures = {}
    local tries = count("perigee.call.raw", "^NYI: return to lower frame")
    for i = 1, 64 do futures[i] = async:copy "bytes" end
    for i = 64, 20000 do
      assert.equal(5, futures[i % 64 + 1]:wait())
      futures[i % 64 + 1] = async:copy "bytes"
    end
    for i = 1, 64 do assert.equal(5, futures[i]:wait()) end
    assert.is_true(tries.n < given_up, tries.n)
  end)

  it("are compiled to the end of a poll that ended many of them", function()
    local given_up = 3                  -- tries; normally 0, else 4 or more
    local async, futures = proxy.async, {}
    local tries = count("perigee.runtime.loop", "^NYI: return to lower frame")
    for _ = 1, 1000 do
      for i = 1, 64 do futures[i] = async:echo "bytes" end
      assert(perigee.wait_all(futures))
    end
    assert.is_true(tries.n < given_up, tries.n)
  end)
end)

describe("calls of another process", function()
  local proxy, agent

  before_each(function()
    process.start(function(child, core)
      local worker = assert(child.cases.agent "worker")
      worker:serve { name = "x", version = 1, methods = {
        copy = { raw = true, inplace = true,
                 function(request, reply) return reply:write(request) end },
      } }
      child.say "ready"
      core.run()
    end):expect "ready"
    proxy, agent = cases.proxy "x"
  end)
  after_each(function()
    jit.attach(attached)
    cases.cleanup()
  end)

  it("are compiled in one with what its writer and its reader do", function()
    local sent, told = { n = 0 }, {}
    local slice = assert(agent.engine:alloc(4096)):slice()
    local words = ffi.cast("int32_t *", slice.pointer)
    local function writer(loan)
      local n = sent.n + 1
      sent.n, sent.layer, sent.head, sent.block = n, n % 61, n % 59, n % 53
      words[0], words[1], words[2], words[3] = n, n % 61, n % 59, n % 53
      words[4], words[5], words[6], words[7] = n % 47, n % 43, n % 41, n % 37
      return loan:write(slice)
    end
    local function reader(reply)
      local got = ffi.cast("const int32_t *", reply.pointer)
      told.n, told.layer, told.head, told.block = got[0], got[1], got[2], got[3]
      told.batch, told.token, told.row, told.part = got[4], got[5], got[6],
                                                    got[7]
      return reply.length == 4096 and told.n == sent.n
        and told.layer == sent.layer and told.head == sent.head
        and told.block == sent.block and told.part == told.n % 37
    end
    local fast = proxy:with { capacity = 4096, reader = reader }
    local given_up = 4                  -- tries; normally 0, else above 10
    local tries, right = count(nil, "^trace too long"), 0
    for _ = 1, 20000 do
      if fast:copy(writer) then right = right + 1 end
    end
    assert.equal(20000, right)
    assert.is_true(tries.n < given_up, tries.n)
  end)
end)

describe("calls of a cache", function()
  local blocks, region

  before_each(function()
    local agent
    caches.open { memory = 2 ^ 22, lease = 0.5 }
    blocks, agent = caches.client()
    region = assert(agent.engine:alloc(2 ^ 15))
  end)
  after_each(function()
    jit.attach(attached)
    cases.cleanup()
  end)

  -- Where all is compiled at once (make test-jit), one is given up by chance.
  it("are compiled where they have options", function()
    local by_chance = os.getenv "PERIGEE_LUAJIT_FLAGS" and 1 or 0
    local into = region:slice(0, 64)
    assert(blocks:put("k", "value"))
    local tries = count("perigee.runtime.check", "^blacklisted")
    for _ = 1, 5000 do
      assert(blocks:get("k", { into = into }))
      assert(blocks:put("k", "value", { ttl = 60, pin = "soft" }))
    end
    assert.is_true(tries.n <= by_chance, tries.n)
  end)

  it("are compiled where a value is sealed that the cache has fetched",
     function()
    local given_up = 4        -- tries; normally 0, by chance up to 5; else more
    local value, round, tries = region:slice(0, 2 ^ 14), 0
    repeat
      tries, round = count("perigee.cache.store", "^leaving loop"), round + 1
      for _ = 1, 20000 do assert(blocks:put("k", value)) end
    until tries.n < given_up or round == 4
    assert.is_true(tries.n < given_up, tries.n)
  end)
end)

describe("requests to a control server", function()
  after_each(function() jit.attach(attached) end)

  it("are read without a function that LuaJIT never compiles", function()
    local routes = require "perigee.control.routes"
    local server, request = { state = {} }, { method = "POST" }
    local tries = count("perigee.control.call", "^NYI: bytecode")
    for i = 1, 20000 do
      request.target = ("/v1/scopes/bench/agents/a%d/renew?epoch=e%d")
        :format(i, i)
      local call = routes.found(server, request)
      assert(not call.status and call.name == "a" .. i
             and call.query.epoch == "e" .. i)
    end
    assert.equal(0, tries.n)
  end)
end)
