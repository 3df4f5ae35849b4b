-- SPDX-License-Identifier: Apache-2.0
-- In which context things run: handlers, writers and readers, tasks, and waits
-- in each of these, while incoming calls are served.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  agent:serve {
    name = "place", version = 1,
    methods = {
      slow = function(seconds, value)
        assert(perigee_.sleep(seconds) ~= false)
        return value
      end,
      quick = function(value) return value end,
      raw_waits = { raw = true, function()
        perigee_.sleep(0.01)
        return "waited"
      end },
      inplace_waits = { raw = true, inplace = true, function()
        perigee_.sleep(0.01)
        return 0
      end },
      back = function(depth)
        local caller = assert(perigee_.context():proxy("caller"))
        return depth == 0 and 0 or 1 + assert(caller:down(depth - 1))
      end,
      sorted = function()
        local list = { 3, 1, 2 }
        table.sort(list, function(a, b)
          perigee_.sleep(0.001)
          return a < b
        end)
        return list
      end,
      coroutines = function()
        local inner = coroutine.wrap(function()
          coroutine.yield(1)
          perigee_.sleep(0.005)
          coroutine.yield(2)
        end)
        return inner(), inner()
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

local function caller_service(place)
  return {
    name = "caller", version = 1,
    methods = { down = function(depth) return assert(place():back(depth)) end },
  }
end

describe("a handler", function()
  local place, agent

  setup(function()
    process.start(server):expect("ready")
    place, agent = cases.proxy("place", { timeout = 5 })
    agent:serve(caller_service(function() return place end))
  end)
  teardown(cases.cleanup)

  it("that is typed and slow blocks no other call", function()
    local slow, slower, patient = {}, {}, place:with { timeout = 60 }
    for i = 1, 50 do
      slow[i] = patient.async:slow(0.5, i)
      slower[i] = patient.async:slow(30, i)
    end
    for i = 1, 100 do assert.equal(i, (place:quick(i))) end
    for i = 1, 50 do assert.equal(i, (slow[i]:wait())) end
    for i = 1, 50 do
      assert.is_false(slower[i]:done())
      slower[i]:cancel()
    end
  end)

  it("that is raw or inplace must not wait", function()
    for _, method in ipairs { "raw_waits", "inplace_waits" } do
      local got, err = place[method](place, "x")
      assert.is_nil(got)
      assert.equal("remote", err.kind)
      assert.matches("wait", err.message)
    end
    assert.equal(1, (place:quick(1)))
  end)

  it("may call its caller back, deeply", function()
    assert.equal(10, (place:back(10)))
  end)

  it("may wait where Lua cannot yield, and in a coroutine", function()
    assert.same({ 1, 2, 3 }, (place:sorted()))
    assert.same({ 1, 2 }, { place:coroutines() })
  end)
end)

describe("a writer or a reader", function()
  setup(function() process.start(server):expect("ready") end)
  teardown(cases.cleanup)

  it("must not wait, and is told so", function()
    local place = cases.proxy("place", { timeout = 5 })
    local waits = function() return perigee.sleep(0.01) end
    local fine, message = pcall(function()
      place:with({ capacity = 10 }):raw_waits(waits)
    end)
    assert.is_false(fine)
    assert.matches("wait", message)
    local agent = assert(cases.agent())
    agent:serve { name = "echo", version = 1, methods = {
      echo = { raw = true, function(request) return request end } } }
    local other = assert(cases.agent("echoes"))
    other:serve { name = "echo", version = 1, methods = {
      echo = { raw = true, function(request) return request end } } }
    local echo = assert(agent:proxy("echoes", "echo"))
    fine, message = pcall(function()
      echo:with({ reader = waits }):echo("x")
    end)
    assert.is_false(fine)
    assert.matches("wait", message)
  end)
end)

describe("the loop", function()
  local place

  setup(function()
    process.start(server):expect("ready")
    local agent
    place, agent = cases.proxy("place", { timeout = 5 })
    agent:serve(caller_service(function() return place end))
  end)
  teardown(cases.cleanup)

  local agents = {}
  local function local_echo(name)
    local agent = assert(cases.agent(name))
    agents[#agents + 1] = agent
    agent:serve {
      name = "echo", version = 1,
      methods = {
        same = function(...) return ... end,
        sum = function(other, n)
          if n == 0 then return 0 end
          local proxy = assert(agent:proxy(other, "echo"))
          return n + assert(proxy:sum(name, n - 1))
        end,
      },
    }
    return agent
  end

  after_each(function()
    for i = #agents, 1, -1 do
      agents[i]:close()
      agents[i] = nil
    end
  end)

  it("runs on the main thread until the operation ends", function()
    assert.equal(5, (place:slow(0.05, 5)))
    assert.equal(3, (place:back(3)))
  end)

  it("runs in a foreign coroutine", function()
    local co = coroutine.wrap(function()
      coroutine.yield(place:slow(0.01, 1))
      return place:back(4)
    end)
    assert.equal(1, (co()))
    assert.equal(4, (co()))
  end)

  it("runs where Lua cannot yield", function()
    local list = { 3, 1, 2, 5, 4 }
    table.sort(list, function(a, b)
      return assert(place:quick(a)) < assert(place:back(2)) * 0 + b
    end)
    assert.same({ 1, 2, 3, 4, 5 }, list)
    local text = ("a b"):gsub("%a", function(letter)
      return (place:quick(letter:upper()))
    end)
    assert.equal("A B", text)
  end)

  it("runs within a task's sort comparator", function()
    local future = perigee.spawn(function()
      local list = { 2, 1, 3 }
      table.sort(list, function(a, b) return place:quick(a) < b end)
      return list
    end)
    assert.same({ 1, 2, 3 }, (future:wait(5)))
  end)

  it("lets two agents in one state call each other", function()
    local_echo("left")
    local right = local_echo("right")
    local proxy = assert(right:proxy("left", "echo", { timeout = 5 }))
    assert.same({ 1, nil, 3 }, { proxy:same(1, nil, 3) })
    assert.equal(15, (proxy:sum("right", 5)))
  end)

  it("lets an agent call itself", function()
    local own = local_echo("own")
    local proxy = assert(own:proxy("own", "echo", { timeout = 5 }))
    assert.equal("me", (proxy:same("me")))
    assert.equal(10, (proxy:sum("own", 4)))
  end)

  it("runs tasks beside each other", function()
    local order, tasks = {}, {}
    for i = 1, 3 do
      tasks[i] = perigee.spawn(function()
        perigee.sleep(0.8 - i * 0.2)
        order[#order + 1] = i
        return i, nil, i * 2
      end)
    end
    assert(perigee.wait_all(tasks, 5))
    assert.same({ 3, 2, 1 }, order)
    assert.equal(3, select("#", tasks[2]:wait()))
    assert.equal(4, (select(3, tasks[2]:wait())))
  end)

  it("runs main to its results, and raises its error", function()
    assert.same({ 1, nil, 3 }, { perigee.run(function()
      perigee.sleep(0.001)
      return 1, nil, 3
    end) })
    local fine, message = pcall(perigee.run, function()
      perigee.sleep(0.001)
      error("of main", 0)
    end)
    assert.is_false(fine)
    assert.matches("of main", tostring(message))
  end)

  it("logs the error of a task that nobody waits for", function()
    local said = {}
    local before = perigee.log
    perigee.log = function(level, text) said[#said + 1] = level .. text end
    perigee.spawn(function() error("unheard") end)
    perigee.sleep(0.01)
    collectgarbage()
    collectgarbage()
    perigee.sleep(0.01)
    perigee.log = before
    assert.matches("unheard", table.concat(said, ";"))
  end)

  it("stops when it is asked to", function()
    perigee.spawn(function()
      perigee.sleep(0.01)
      perigee.stop()
    end)
    local done, err = perigee.run()
    assert.is_nil(done)
    assert.equal("closed", err.kind)
    assert.equal(7, (place:quick(7)))
  end)
end)
