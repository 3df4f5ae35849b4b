-- SPDX-License-Identifier: Apache-2.0
-- What a caller gets: into, reader, capacity; and what a writer may do.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local process = require "spec.support.process"

local function server(child, perigee)
  local calls = 0
  child.serve {
    name = "results", version = 1,
    methods = {
      echo = { raw = true, function(request)
        calls = calls + 1
        return request
      end },
      copy = { raw = true, inplace = true, function(request, reply)
        calls = calls + 1
        return reply:write(request)
      end },
      add = function(a, b) return a + b end,
      compare = function(a, b) return b - a == 1 and a < b end,
      calls = function() return calls end,
      sent = function()
        perigee.sleep(0)
        return calls
      end,
    },
  }
end

describe("a caller", function()
  local calc, agent, region

  setup(function()
    process.start(server):expect("ready")
    calc, agent = cases.proxy("results", { timeout = 5 })
    region = cases.alloc(agent.engine, 2 ^ 21)
  end)
  teardown(cases.cleanup)

  it("gets the filled part of `into`, at every size", function()
    for _, size in ipairs(cases.sizes) do
      for _, method in ipairs { "echo", "copy" } do
        local into = region:slice(512, size + 7)
        local text = cases.bytes(size, 9)
        into:fill(255)
        local options = { into = into, capacity = size + 7 }
        local got = assert(calc:with(options)[method](calc:with(options), text))
        assert.equal(size, got.length)
        assert.equal(into.pointer, got.pointer)
        assert.is_true(got:string() == text)
        assert.equal(255, cases.byte(region, 512 + size))
      end
    end
  end)

  it("gets more than caches keep, wherever `into` begins", function()
    local size = 2 ^ 24 + 77
    local memory = cases.alloc(agent.engine, size + 64)
    local text, into = cases.bytes(size, 5), memory:slice(13, size)
    for _, method in ipairs { "echo", "copy" } do
      memory:slice():fill(255)
      local calling = calc:with { into = into, capacity = size, timeout = 30 }
      assert.equal(size, assert(calling[method](calling, text)).length)
      assert.is_true(into:string() == text)
      assert.equal(255, cases.byte(memory, 12))
      assert.equal(255, cases.byte(memory, 13 + size))
    end
    memory:close()
  end)

  it("is told that a reply is longer than `into`", function()
    for _, size in ipairs { 1, 100, cases.EAGER, cases.RING + 1, 2 ^ 20 } do
      local into = region:slice(0, size - 1)
      region:slice(0, size):fill(7)
      local got, err = calc:with({ into = into }):echo(cases.bytes(size))
      assert.is_nil(got)
      assert.equal("too_large", err.kind)
      assert.equal(7, cases.byte(region, size - 1))
    end
    assert.equal("still", calc:echo("still"))
  end)

  it("is told that `into` was closed after calls that filled it", function()
    local memory = cases.alloc(agent.engine, 4096)
    local into = memory:slice(64, 4)
    local filling = calc:with { into = into }
    for _ = 1, 3 do
      assert.equal("abcd", assert(filling:echo "abcd"):string())
    end
    assert.equal(3, filling:add(1, 2))
    assert.equal("efgh", assert(filling.async:echo("efgh"):wait()):string())
    memory:close()
    assert.error_matches(function() filling:echo "ijkl" end, "closed")
    assert.error_matches(function() filling.async:echo "ijkl" end, "closed")
  end)

  it("gets what its reader returns", function()
    for _, method in ipairs { "echo", "copy" } do
      for _, size in ipairs(cases.sizes) do
        local text = cases.bytes(size, 1)
        local seen
        local proxy = calc:with {
          capacity = size, reader = function(reply)
            seen = reply:string()
            return reply.length, nil, "third", nil
          end,
        }
        local count = select("#", proxy[method](proxy, text))
        local length, second, third = proxy[method](proxy, text)
        assert.equal(4, count)
        assert.equal(size, length)
        assert.is_nil(second)
        assert.equal("third", third)
        assert.is_true(seen == text)
      end
    end
  end)

  it("writes its request into a loan of at least the capacity", function()
    for _, size in ipairs(cases.sizes) do
      local text = cases.bytes(size, 5)
      local proxy = calc:with { capacity = size }
      local got = proxy:copy(function(loan)
        assert(loan.length >= size)
        ffi.copy(loan.pointer, text, size)
        return size
      end)
      assert.is_true(got == text, size)
    end
  end)

  it("may ask for another room for the request than for the reply", function()
    local proxy = calc:with { capacity = 10, request_capacity = 2 ^ 17 }
    local room
    local got, err = proxy:copy(function(loan)
      room = loan.length
      return 2 ^ 17
    end)
    assert.is_true(room >= 2 ^ 17)
    assert.is_nil(got)
    assert.is_true(err.kind == "too_large" or err.kind == "remote")
    assert.equal("ok", proxy:copy(function(loan)
      ffi.copy(loan.pointer, "ok", 2)
      return 2
    end))
  end)

  it("sends nothing when its writer raises", function()
    local before = calc:calls()
    for _ = 1, 100 do
      local fine, message = pcall(function()
        calc:with({ capacity = 2 ^ 16 }):copy(function() error("no", 0) end)
      end)
      assert.is_false(fine)
      assert.matches("no", tostring(message))
    end
    assert.equal(before, calc:calls())
    assert.equal("after", calc:echo("after"))
  end)

  it("sends nothing when its writer closes `into`, and others go on", function()
    local before = calc:calls()
    for _, capacity in ipairs { 64, 2 ^ 16 } do
      local gone = cases.alloc(agent.engine, 64)
      local filling = calc:with { into = gone:slice(), capacity = capacity }
      local line = debug.getinfo(1, "l").currentline + 2
      local _, message = pcall(function()
        assert(filling:echo(function(loan)
          gone:close()
          return loan:write "no"
        end))
      end)
      assert.matches(":" .. line .. ": .*: into: .*has been closed", message)
      assert.equal(before, calc:calls())
      assert.equal("after", calc:echo(function(loan)
        return loan:write "after"
      end))
      before = before + 1
    end
  end)

  it("may not write more than its loan", function()
    for _, count in ipairs { -1, 0.5, 2 ^ 40, "4", false } do
      assert.has_error(function()
        calc:with({ capacity = 64 }):copy(function() return count end)
      end)
    end
    assert.equal("after", calc:echo("after"))
  end)

  it("hears of its reader's error", function()
    local fine, message = pcall(function()
      calc:with({ reader = function() error("unreadable", 0) end }):echo("x")
    end)
    assert.is_false(fine)
    assert.matches("unreadable", tostring(message))
    assert.equal("after", calc:echo("after"))
  end)

  it("keeps the options of each `with` apart", function()
    local one = calc:with { timeout = 1 }
    local two = one:with { into = region:slice(0, 100) }
    assert.equal("string", type(one:echo("x")))
    assert.equal(1, two:echo("x").length)
    assert.equal("string", type(calc:echo("x")))
  end)

  it("is refused an option that is unknown or of the wrong type", function()
    assert.has_error(function() calc:with { inot = region } end)
    assert.has_error(function() calc:with { timeout = "1" } end)
    assert.has_error(function() calc:with { timeout = -1 } end)
    assert.has_error(function() calc:with { capacity = 0.5 } end)
    assert.has_error(function() calc:with { reader = 1 } end)
    assert.has_error(function() calc:with { into = "x" } end)
    assert.has_error(function() calc:with "x" end)
  end)

  it("can use the same options asynchronously", function()
    local into = region:slice(0, 1000)
    local future = calc:with({ into = into }).async:echo("later")
    local got = assert(future:wait(5))
    assert.equal("later", got:string())
    assert.is_true(future:done())
  end)

  it("keeps numbers apart, also in compiled code", function()
    local wrong = 0
    for i = 1, 500 do
      if calc:add(i, 0) >= calc:add(i, 1) then wrong = wrong + 1 end
      if calc:add(i, 1) - calc:add(i, 0) ~= 1 then wrong = wrong + 1 end
      if not calc:compare(i, i + 1) then wrong = wrong + 1 end
    end
    assert.equal(0, wrong)
    assert.equal(-math.huge, 1 / calc:add(-0.0, -0.0))
  end)

  it("gets what its reader raised from every way of waiting", function()
    local perigee = require "perigee"
    local future = calc:with({ reader = function() error("mine", 0) end })
      .async:echo("x")
    local fine, message = pcall(future.wait, future)
    assert.same({ false, "mine" }, { fine, message })
    fine, message = pcall(perigee.wait_all, { future })
    assert.same({ false, "mine" }, { fine, message })
    assert.equal(1, (perigee.wait_any { future }))
  end)
end)
