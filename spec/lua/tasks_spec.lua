-- SPDX-License-Identifier: Apache-2.0
-- Tasks and futures without any engine.
local perigee = require "perigee"
local ends = require "perigee.runtime.future"
local signals = require "perigee.runtime.signal"

describe("a task", function()
  local log
  before_each(function()
    log = {}
    perigee.log = function(level, text)
      log[#log + 1] = level .. ": " .. text
    end
  end)

  it("gives its results, counts and nils exact", function()
    local future = perigee.spawn(function(...) return nil, ..., nil end, 2)
    assert.is_false(future:done())
    assert.equal(3, select("#", future:wait()))
    assert.same({ nil, 2, nil }, { future:wait() })
    assert.equal(0, select("#", perigee.spawn(function() end):wait()))
  end)

  it("that fails tells whoever waits, else the log", function()
    local got, err = perigee.spawn(function() error("boom") end):wait()
    assert.is_nil(got)
    assert.equal("remote", err.kind)
    assert.matches("boom", err.message)
    assert.same({}, log)
    perigee.spawn(function() error("nobody") end)
    perigee.sleep(0.001)
    assert.equal(1, #log)
    assert.matches("^error: .*nobody", log[1])
  end)

  it("that fails with what has no text, or with no memory for a traceback, "
     .. "ends itself alone", function()
    local mute = setmetatable({}, { __tostring = function() error "no" end })
    local _, err = perigee.spawn(error, mute):wait()
    assert.equal("a task failed: what cannot be shown", err.message)
    perigee.spawn(error, mute)
    perigee.sleep(0.001)
    local traceback = debug.traceback
    rawset(debug, "traceback", function() error "no memory" end)
    perigee.spawn(error, "boom")
    perigee.sleep(0.001)
    rawset(debug, "traceback", traceback)
    assert.equal(2, #log)
    assert.matches("^error: .*what cannot be shown", log[1])
    assert.matches("^error: .*nobody waits for", log[2])
  end)

  it("that fails with a table whose fields raise ends itself alone", function()
    local strict = setmetatable({ code = 7 }, { __index = function(_, name)
      error("no field " .. name, 2)
    end })
    local bare = setmetatable({}, getmetatable(strict))
    local futures = { perigee.spawn(error, strict), perigee.spawn(error, bare) }
    perigee.sleep(0.001)                -- nothing is raised here
    for i, code in ipairs { 7, "none" } do
      local got, err = futures[i]:wait(5)
      assert.is_nil(got)
      assert.equal("remote", err.kind)
      assert.equal(code, err.code or "none")
    end
    local fine, raised = pcall(perigee.run, function() error(bare) end)
    assert.is_false(fine)
    assert.is_true(rawequal(raised, bare))
  end)

  it("may yield by itself, and goes on", function()
    local steps = {}
    local function step(name)
      return perigee.spawn(function()
        for i = 1, 3 do
          steps[#steps + 1] = name .. i
          coroutine.yield()
        end
      end)
    end
    assert.is_true(perigee.wait_all({ step("a"), step("b") }, 1))
    assert.equal("a1 b1 a2 b2 a3 b3", table.concat(steps, " "))
  end)

  it("is not held up by others that sleep", function()
    local order = {}
    local futures = {}
    for i = 1, 5 do
      futures[i] = perigee.spawn(function()
        perigee.sleep(0.1 * (6 - i))
        order[#order + 1] = i
      end)
    end
    assert.is_true(perigee.wait_all(futures, 10))
    assert.same({ 5, 4, 3, 2, 1 }, order)
  end)

  it("that others got ready runs before the loop sleeps", function()
    local busy, turns = true, 0
    local waiter = perigee.spawn(function()
      while busy do
        perigee.sleep(0)
        turns = turns + 1
      end
    end)
    perigee.spawn(function()
      perigee.spawn(function() perigee.sleep(0.01) busy = false end)
    end)
    assert.is_true(perigee.wait_all({ waiter }, 2))
    assert.is_true(turns > 0)
  end)
end)

describe("a wait", function()
  it("by several tasks ends for each, also beside one whose time is over",
     function()
    local future, tasks = ends.new(false, "it"), {}
    for i = 1, 3 do
      tasks[i] = perigee.spawn(function() return future:wait() end)
    end
    perigee.sleep(0.001)
    assert.is_nil((future:wait(0.001)))
    assert.is_nil((perigee.wait_any({ future, future }, 0.001)))
    ends.settle(future, 7)
    for i = 1, 3 do assert.equal(7, (tasks[i]:wait(5))) end
  end)

  it("leaves nothing with a future when its time is over", function()
    local future = ends.new(false, "it")
    perigee.wait_all({ future, future }, 0.001)
    assert.is_false(future.waiter)
  end)

  it("works where Lua cannot yield, in and out of tasks", function()
    local function sorted()
      local list = { 3, 1, 2 }
      table.sort(list, function(a, b)
        perigee.sleep(0.001)
        return a < b
      end)
      return unpack(list)
    end
    assert.same({ 1, 2, 3 }, { sorted() })
    assert.same({ 1, 2, 3 }, { perigee.spawn(sorted):wait() })
    assert.same({ 1, 2, 3 }, { perigee.run(sorted) })
  end)

  it("works in a coroutine of the program's, in and out of tasks", function()
    local function own()
      return coroutine.wrap(function()
        perigee.sleep(0.001)
        return perigee.spawn(function() return 5 end):wait()
      end)()
    end
    assert.equal(5, own())
    assert.equal(5, perigee.spawn(own):wait())
  end)

  it("ends by its own time and leaves the future as it is", function()
    local future = perigee.spawn(function()
      perigee.sleep(0.05)
      return "late"
    end)
    local got, err = future:wait(0.001)
    assert.is_nil(got)
    assert.equal("timeout", err.kind)
    assert.is_false(future:done())
    assert.equal("late", future:wait())
    assert.equal("late", future:wait(0))
  end)

  it("of several has one total time", function()
    local function slow() return perigee.spawn(perigee.sleep, 3) end
    local futures = { slow(), slow(), slow() }
    local before = os.time()
    local got, err = perigee.wait_all(futures, 0.02)
    assert.is_nil(got)
    assert.equal("timeout", err.kind)
    got, err = perigee.wait_any(futures, 0.02)
    assert.is_nil(got)
    assert.equal("timeout", err.kind)
    assert.is_true(os.time() - before <= 2)
    for _, future in ipairs(futures) do future:cancel() end
    got, err = perigee.wait_all(futures, 0)
    assert.is_nil(got)
    assert.equal("cancelled", err.kind)
  end)

  it("of each as it ends follows their ends, in and out of tasks", function()
    local seen
    local function after(count)         -- `count` of them have been seen
      return perigee.spawn(function()
        while #seen < count do perigee.sleep(0.001) end
      end)
    end
    local function order()
      seen = {}
      local list = { after(2), after(0), after(1) }
      for i, future in perigee.as_completed(list, 60) do
        assert.equal(list[i], future)
        assert.is_true(future:done())
        seen[#seen + 1] = i
      end
      return seen
    end
    assert.same({ 2, 3, 1 }, order())
    assert.same({ 2, 3, 1 }, perigee.run(order))
    for _ in perigee.as_completed {} do error "there is none" end
  end)

  it("of each as it ends stops at its time, or when it is left", function()
    local late = perigee.spawn(perigee.sleep, 60)
    local early = perigee.spawn(error, 7)
    local seen = {}
    for i in perigee.as_completed({ late, early }, 0.05) do
      seen[#seen + 1] = i
    end
    assert.same({ 2 }, seen)
    assert.is_false(late:done())
    perigee.run(function()
      local second = perigee.spawn(perigee.sleep, 0.02)
      local each = perigee.as_completed {
        perigee.spawn(perigee.sleep, 0), second }
      assert.equal(1, (each()))
      local before = signals.now()
      perigee.sleep(0.1)                -- nothing wakes it early
      assert.is_true(signals.now() - before >= 1e8)
      assert.is_true(second:wait(60) == nil and second:done())
    end)
    late:cancel()
    assert.has_error(function() perigee.as_completed { 7 } end)
  end)

  -- A worker that such a wait has parked may later belong to another wait, or
  -- to none.
  it("of each as it ends is over with its time, for futures that go on",
     function()
    for _ = 1, 20 do
      local first = perigee.spawn(perigee.sleep, 0.002)
      local second = perigee.spawn(perigee.sleep, 0.012)
      perigee.spawn(function()
        for _ in perigee.as_completed({ first, second }, 0.006) do end
      end):wait()
      local another = perigee.spawn(perigee.sleep, 0.01)
      assert(perigee.wait_all({ second, another }, 5))
      assert.is_nil(select(2, another:wait()))
    end
  end)

  it("of each as it ends leaves nothing with what is pending", function()
    local logged, over = {}, false
    perigee.log = function(_, text) logged[#logged + 1] = text end
    local failing = perigee.spawn(function()
      while not over do perigee.sleep(0.001) end
      error "nobody waits any more"
    end)
    for _ in perigee.as_completed({ failing }, 0) do end
    for _ in perigee.as_completed({ failing }, 0.001) do end
    over = true
    while not failing:done() do perigee.sleep(0.001) end
    assert.equal(1, #logged)
    assert.matches("nobody waits any more", logged[1])
  end)

  it("of each as it ends, once it is left, leaves what fails to the log",
     function()
    local logged = {}
    perigee.log = function(_, text) logged[#logged + 1] = text end
    local function fail()
      perigee.sleep(0.01)
      error "lost"
    end
    local tasks = { perigee.spawn(fail), perigee.spawn(perigee.sleep, 0) }
    assert.equal(2, (perigee.as_completed(tasks)())) -- as a loop with break
    perigee.sleep(0.05)
    assert.equal(1, #logged)
    assert.matches("nobody waits for failed: .*lost", logged[1])
    tasks = { perigee.spawn(fail), perigee.spawn(perigee.sleep, 0) }
    assert.equal(2, (perigee.as_completed(tasks)()))
    assert.is_nil((tasks[1]:wait()))    -- somebody waits again
    tasks = { perigee.spawn(fail), perigee.spawn(fail) }
    for _ in perigee.as_completed(tasks) do end
    assert.equal(1, #logged)
  end)

  it("of each as it ends tells their order, also of what has ended unseen",
     function()
    local list, seen = {}, {}
    for i = 1, 3 do list[i] = perigee.spawn(perigee.sleep, 60) end
    local each = perigee.as_completed(list, 60)
    for _, i in ipairs { 2, 3, 1 } do list[i]:cancel() end
    for i in each do seen[#seen + 1] = i end
    assert.same({ 2, 3, 1 }, seen)
    assert.is_nil(each())
  end)

  -- Each future wakes the wait once, and the work then does not grow with the
  -- number of pending futures.
  it("of each as it ends is not slower for each of many futures", function()
    local attached, attach = 0, signals.attach
    function signals.attach(...)
      attached = attached + 1
      return attach(...)
    end
    local list, seen = {}, 0
    for i = 1, 300 do
      list[i] = perigee.spawn(function()
        while seen < i - 1 do perigee.sleep(0) end
      end)
    end
    for _ in perigee.as_completed(list, 60) do seen = seen + 1 end
    signals.attach = attach
    assert.equal(300, seen)
    assert.is_true(attached <= 2 * 300)
  end)

  it("of a thousand futures gives each once", function()
    local list, seen, count = {}, {}, 0
    for i = 1, 1000 do list[i] = perigee.spawn(perigee.sleep, i % 7 * 1e-3) end
    for i in perigee.as_completed(list, 30) do
      assert.is_nil(seen[i])
      seen[i], count = true, count + 1
    end
    assert.equal(1000, count)
  end)

  it("for a base ends while a handler below it sleeps longer", function()
    local longer = perigee.spawn(perigee.sleep, 5)
    perigee.sleep(0.01)
    assert.is_false(longer:done())
    longer:cancel()
  end)
end)

describe("run", function()
  it("ends at a stop what its tasks were to end", function()
    local parked, unborn, failing
    perigee.run(function()
      parked = perigee.spawn(perigee.sleep, 60)
      failing = perigee.spawn(error, "before", 0)
      perigee.sleep(0.01)
      unborn = perigee.spawn(function() return 1 end)
      perigee.stop()
      perigee.sleep(60)
    end)
    for _, future in ipairs { parked, unborn } do
      assert.is_true(future:done())
      local got, err = future:wait()
      assert.is_nil(got)
      assert.equal("closed", err.kind)
      assert.matches("the loop was stopped", err.message)
    end
    assert.equal("remote", select(2, failing:wait()).kind)
    assert.equal(2, perigee.spawn(function() return 2 end):wait())
  end)

  it("gives main's results and raises its error", function()
    assert.same({ 1, nil, 3 }, { perigee.run(function() return 1, nil, 3 end) })
    local thrown = {}
    local fine, got = pcall(perigee.run, function() error(thrown) end)
    assert.is_false(fine)
    assert.equal(thrown, got)
  end)

  it("ends at once at a stop, and parked tasks stay where they are", function()
    local went_on = false
    local got, err = perigee.run(function()
      perigee.spawn(perigee.stop)
      perigee.sleep(0.02)
      went_on = true
    end)
    assert.is_nil(got)
    assert.equal("closed", err.kind)
    perigee.sleep(0.05)
    assert.is_false(went_on)
  end)

  it("without main runs until stopped", function()
    perigee.spawn(function()
      perigee.sleep(0.01)
      perigee.stop()
    end)
    local got, err = perigee.run()
    assert.is_nil(got)
    assert.equal("closed", err.kind)
  end)

  it("does not nest", function()
    perigee.run(function()
      assert.has_error(function() perigee.run(print) end)
    end)
  end)
end)
