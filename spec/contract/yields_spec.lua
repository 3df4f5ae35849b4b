-- SPDX-License-Identifier: Apache-2.0
-- Code that runs on the loop (raw and inplace handlers, landings, readers,
-- writers) and yields, by coroutine.yield(). It has failed: whom it was for is
-- told, and nobody else notices.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 30 * cases.slow

local function server(child)
  local agent = assert(child.cases.agent("worker"))
  local region = child.cases.alloc(agent.engine, 4096)
  local yield = coroutine.yield
  local log = {}
  require "perigee".log = function(_, message) log[#log + 1] = message end
  agent:serve { name = "y", methods = {
    raw = { raw = true, function(request)
      for _ = 1, 100 do yield() end
      return request
    end },
    inplace = { raw = true, inplace = true, function(request, reply)
      for _ = 1, 100 do yield() end
      return reply:write(request)
    end },
    echo = { raw = true, function(request) return request end },
    copy = { raw = true, inplace = true, function(request, reply)
      return reply:write(request)
    end },
    lands = { landing = function(length)
      yield()
      return region:slice(0, length)
    end, function() return "landed" end },
    same = function(x) return x end,
    sleeps = function(x) require "perigee".sleep(0.01) return x end,
    -- Waits where Lua cannot yield.
    fill = function(text)
      return (text:gsub("%w+", function(word)
        require "perigee".sleep(0.2)
        return word:upper()
      end))
    end,
    log = function() return log end,
  } }
  child.say("ready")
  require "perigee".run()
end

describe("code that runs on the loop and yields", function()
  local proxy, agent

  setup(function()
    process.start(server):expect("ready")
    proxy, agent = cases.proxy("y", { timeout = LONG })
  end)
  teardown(cases.cleanup)

  local function is_told(what, got, err)
    assert.is_nil(got)
    assert.equal("remote", err.kind, err.message)
    assert.matches(what .. " runs on the loop and must not yield", err.message)
  end

  -- That everything goes on as before.
  local function others_go_on()
    assert.equal("echo", proxy:echo "echo")
    assert.equal("copy", proxy:copy "copy")
    assert.equal(7, proxy:sleeps(7))
  end

  it("in a handler is told to its caller alone", function()
    for name, what in pairs { raw = "a raw handler",
                              inplace = "an inplace handler" } do
      local futures, expected = {}, {}
      for i = 1, 60 do
        local text = tostring(i):rep(i)
        local method = i % 3 == 0 and name or i % 3 == 1 and "echo" or "sleeps"
        futures[i], expected[i] = proxy.async[method](proxy.async, text),
                                  method ~= name and text
      end
      for i, future in ipairs(futures) do
        local got, err = future:wait(LONG)
        if expected[i] then
          assert.equal(expected[i], got, err and err.message)
        else
          is_told(what, got, err)
        end
      end
      others_go_on()
    end
    local logged = table.concat(proxy:log(), "\n")
    assert.matches("y.raw: a raw handler runs on the loop", logged)
  end)

  it("and code that waits where it cannot is bounded in depth", function()
    local futures, done, refused = {}, 0, 0
    for i = 1, 1000 do futures[i] = proxy.async:fill "word" end
    for _, future in ipairs(futures) do
      local got, err = future:wait(LONG)
      if got == "WORD" then
        done = done + 1
      else
        assert.equal("remote", err and err.kind, err and err.message)
        assert.matches("waits are nested", err.message)
        refused = refused + 1
      end
    end
    assert.is_true(done >= 250, done)
    assert.equal(1000, done + refused)
    others_go_on()
  end)

  it("in a landing is told to its caller", function()
    local slice = cases.alloc(agent.engine, 64):slice()
    is_told("a landing", proxy:lands(slice))
    others_go_on()
  end)

  -- In a task, since a program's own coroutine yields to who resumes it.
  local function in_task(f)
    return perigee.spawn(f):wait(LONG)
  end

  it("in a reader is told to who waits for the call", function()
    local reading = proxy:with { reader = function(view)
      coroutine.yield()
      return view:string()
    end }
    is_told("a reader", in_task(function() return reading:echo "x" end))
    is_told("a reader", in_task(function()
      return reading.async:echo "x":wait()
    end))
    others_go_on()
  end)

  it("in a writer is told to its task, and its loan is given back", function()
    is_told("a writer", in_task(function()
      return proxy:copy(function()
        coroutine.yield()
        return 0
      end)
    end))
    assert.equal("mine", proxy:echo(function(loan)
      return loan:write "mine"
    end))
    others_go_on()
  end)

  it("in a caller's landing is told to who waits", function()
    local place = cases.alloc(agent.engine, 64)
    local landing = proxy:with { landing = function(length)
      coroutine.yield()
      return place:slice(0, length)
    end }
    is_told("a landing", in_task(function() return landing:echo "x" end))
    others_go_on()
  end)
end)
