-- SPDX-License-Identifier: Apache-2.0
-- kill -9 of either side at every step: each waiting operation ends in
-- peer_lost, and a restarted peer is reachable at once.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

-- The contract says 100 ms; the rest is for a machine that does other work. An
-- emulated kernel takes 0.3 to 0.5 s to unmap 1 GiB of a killed process, over
-- any transport, and closes its sockets only then. So does any kernel for a
-- process under a sanitizer.
local BOUND = math.max(1, 0.6 * cases.slow)
local GIB = 2 ^ 30

local function server(child, perigee_, _, memory)
  local agent = assert(child.cases.agent("worker"))
  agent.engine:alloc(tonumber(memory or 4096), { name = "m", access = "rw" })
  local region = agent.engine:alloc(2 ^ 26)
  local watching, cancelled = 0, 0
  agent:serve {
    name = "x", version = 1,
    methods = {
      same = function(x) return x end,
      sleep = function(seconds) perigee_.sleep(seconds) end,
      busy = function(seconds)
        local limit = os.clock() + seconds
        repeat until os.clock() > limit
      end,
      echo = { raw = true, function(request) return request end },
      put = function(slice) return slice.length end,
      get = function(length) return region:slice(0, length) end,
      watch = function()
        local context = perigee_.context()
        watching = watching + 1
        while not context:cancelled() do perigee_.sleep(0.001) end
        cancelled = cancelled + 1
      end,
      watching = function() return watching end,
      cancelled = function() return cancelled end,
    },
  }
  child.say("ready")
  perigee_.run()
end

-- Waits for futures of a peer that died at `died`. The bound does not include
-- the time that the system takes to free 1 GiB.
local function all_lost(futures, died)
  for i, future in ipairs(futures) do
    local got, err = future:wait(20)
    if not (got == nil and err and err.kind == "peer_lost") then
      error(("future %d ended in %s, %s"):format(i, tostring(got),
                                                 tostring(err)))
    end
  end
  local took = process.now() - died
  assert(took < BOUND, ("it took %.3f s to notice"):format(took))
end

describe("when the server is killed", function()
  local child, proxy, agent

  before_each(function()
    child = process.start(server, GIB):expect("ready")
    proxy, agent = cases.proxy("x", { timeout = 20, reconnect = 0.1 })
  end)
  after_each(cases.cleanup)

  local function restarted()
    process.start(server):expect("ready")
    local again = assert(agent:proxy("worker", "x", { timeout = 5 }))
    assert.equal("back", assert(again:same("back")))
  end

  local steps = {
    ["calls in service"] = function()
      local futures = {}
      for i = 1, 20 do futures[i] = proxy.async:sleep(10) end
      return futures
    end,
    ["calls in the ring"] = function()
      local futures = { proxy.async:busy(10) }
      for i = 2, 20 do futures[i] = proxy.async:same(i) end
      return futures
    end,
    ["calls that wait for room"] = function()
      local futures, text = { proxy.async:busy(10) }, cases.bytes(5000)
      for i = 2, 300 do futures[i] = proxy.async:echo(text) end
      return futures
    end,
    ["large requests"] = function()
      local futures, text = { proxy.async:busy(10) }, cases.bytes(2 ^ 24)
      for i = 2, 5 do futures[i] = proxy.async:echo(text) end
      return futures
    end,
    ["slices as arguments"] = function()
      local slice = agent.engine:alloc(2 ^ 26):slice(0, 2 ^ 26)
      return { proxy.async:busy(10), proxy.async:put(slice) }
    end,
    ["landings for results"] = function()
      local into = agent.engine:alloc(2 ^ 26):slice(0, 2 ^ 26)
      return { proxy.async:busy(10),
               proxy:with({ into = into }).async:get(2 ^ 26) }
    end,
    ["receives"] = function()
      local session = assert(agent:session("worker"))
      local region = agent.engine:alloc(4096)
      return { session:recv(region:slice(0, 100)), session:recv_imm(),
               session:recv(region:slice(100, 100)) }
    end,
    ["sends"] = function()
      local session = assert(agent:session("worker"))
      local region = agent.engine:alloc(2 ^ 20)
      return { session:send(region:slice(0, 100)),
               session:send(region:slice(0, 2 ^ 20)) }
    end,
  }

  for step, submit in pairs(steps) do
    it(step .. " end in peer_lost", function()
      local futures = submit()
      perigee.sleep(0.02)
      child:kill()
      local died = process.now()
      all_lost(futures, died)
      local got, err = proxy:same(1)
      assert.is_nil(got)
      assert.equal("peer_lost", err.kind)
      assert.is_false(err.sent)
      restarted()
    end)
  end

  it("a copy of 1 GiB ends at once", function()
    local session = assert(agent:session("worker"))
    local remote = assert(session:region("m"))
    local here = agent.engine:alloc(GIB)
    for _, operation in ipairs { "write", "read" } do
      local from, to = here:slice(0, GIB), remote:slice(0, GIB)
      if operation == "read" then from, to = to, from end
      local future = session[operation](session, { from = from, to = to,
                                                   timeout = 60 * cases.slow })
      assert.is_false(future:done())
      if operation == "read" then
        child:kill()
        local died = process.now()
        all_lost({ future }, died)
      else
        assert(future:wait())
      end
    end
    restarted()
  end)

  it("a reply of 64 MiB on its way ends in peer_lost", function()
    for delay = 0, 4 do
      local into = agent.engine:alloc(2 ^ 26):slice(0, 2 ^ 26)
      local future = proxy:with({ into = into }).async:get(2 ^ 26)
      perigee.sleep(delay * 0.002)
      child:kill()
      local died = process.now()
      local got, err = future:wait(5)
      assert.is_true(got ~= nil or err.kind == "peer_lost")
      assert.is_true(process.now() - died < BOUND)
      child = process.start(server):expect("ready")
      proxy = assert(agent:proxy("worker", "x", { timeout = 20 }))
    end
  end)

  it("waiting tasks are all woken", function()
    local tasks = {}
    for i = 1, 10 do
      tasks[i] = perigee.spawn(function() return proxy:sleep(10) end)
    end
    perigee.sleep(0.02)
    child:kill()
    local died = process.now()
    all_lost(tasks, died)
  end)

  it("at a random moment of a stream of calls, nothing hangs", function()
    for round = 1, 10 do
      local futures = {}
      for i = 1, 100 do futures[i] = proxy.async:echo(cases.bytes(i * 200)) end
      perigee.sleep(round * 3e-4)
      child:kill()
      local died = process.now()
      for i = 1, 100 do
        local got, err = futures[i]:wait(20 * cases.slow)
        assert.is_true(got == cases.bytes(i * 200)
          or err.kind == "peer_lost")
      end
      assert.is_true(process.now() - died < BOUND)
      child = process.start(server):expect("ready")
      proxy = assert(agent:proxy("worker", "x", { timeout = 20 }))
    end
  end)
end)

describe("when a caller is killed", function()
  before_each(function() process.start(server):expect("ready") end)
  after_each(cases.cleanup)

  it("its handlers see it, and the server goes on", function()
    local proxy = cases.proxy("x", { timeout = 5 })
    for _ = 1, 3 do
      local before = proxy:cancelled()
      local caller = process.start(function(child, perigee_)
        local agent = assert(child.cases.agent())
        local other = assert(agent:proxy("worker", "x"))
        for _ = 1, 5 do local _ = other.async:watch() end
        child.say("calls")
        perigee_.sleep(60)
      end):expect("calls")
      assert.is_true(cases.eventually(function()
        return proxy:watching() == before + 5
      end))
      caller:kill()
      assert.is_true(cases.eventually(function()
        return proxy:cancelled() == before + 5
      end))
    end
  end)

  it("in the middle of anything, the server goes on", function()
    local proxy = cases.proxy("x", { timeout = 5 })
    for round = 1, 10 do
      local caller = process.start(function(child, perigee_, ffi_)
        local agent = assert(child.cases.agent())
        local other = assert(agent:proxy("worker", "x"))
        local region = agent.engine:alloc(2 ^ 24)
        child.say("calls")
        while true do
          local futures = {}
          for i = 1, 20 do
            futures[i] = other.async:echo(("x"):rep(i * 1000))
          end
          futures[21] = other.async:put(region:slice(0, 2 ^ 24))
          futures[22] = other.async:get(2 ^ 24)
          futures[23] = other:with({ capacity = 2 ^ 16 }).async:echo(
            function(loan)
              ffi_.fill(loan.pointer, 2 ^ 16, 1)
              return 2 ^ 16
            end)
          perigee_.wait_all(futures, 10)
        end
      end):expect("calls")
      process.usleep(0.001 * round)
      caller:kill()
      assert.equal(round, (proxy:same(round)))
    end
  end)
end)
