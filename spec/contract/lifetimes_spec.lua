-- SPDX-License-Identifier: Apache-2.0
-- Objects that the library lends are valid for a time; using them later raises.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  local region = child.cases.alloc(agent.engine, 2 ^ 22)
  local kept, sent, busy = {}, {}, false
  local function refusals(object)
    local refused = 0
    for _, use in ipairs {
      function() return object.pointer end,
      function() return object.length end,
      function() return object:string() end,
    } do
      local fine, message = pcall(use)
      if not fine and type(message) == "string" then refused = refused + 1 end
    end
    return refused
  end
  agent:serve {
    name = "keeper", version = 1,
    methods = {
      keep = { raw = true, function(request)
        kept.request = request
        return request
      end },
      loan = { raw = true, inplace = true, function(request, reply)
        kept.request, kept.reply = request, reply
        return 0
      end },
      fails = { raw = true, inplace = true, function(request, reply)
        kept.request, kept.reply = request, reply
        error("no")
      end },
      refused = function()
        local a, b = kept.request, kept.reply
        kept = {}
        return refusals(a), b and refusals(b)
      end,
      slice = function(length, value)
        while busy do perigee_.sleep(0) end
        busy = true
        local slice = region:slice(0, length)
        slice:fill(value)
        local context = perigee_.context()
        perigee_.spawn(function()
          local state = tostring(context:sent())
          sent[#sent + 1] = state
          slice:fill(0)
          busy = false
        end)
        return slice
      end,
      sent = function()
        local now = sent
        sent = {}
        return now
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("what is lent", function()
  local keeper, agent

  setup(function()
    process.start(server):expect("ready")
    keeper, agent = cases.proxy("keeper", { timeout = 5 })
  end)
  teardown(cases.cleanup)

  local function raises(use)
    local fine, message = pcall(use)
    assert.is_false(fine)
    assert.equal("string", type(message))
  end

  it("to a raw handler ends with it", function()
    for _, size in ipairs(cases.sizes) do
      local text = cases.bytes(size)
      assert.is_true(keeper:keep(text) == text)
      assert.equal(3, (keeper:refused()))
    end
  end)

  it("to an inplace handler ends with it, raised or returned", function()
    for _, size in ipairs { 10, 20000, 2 ^ 20 } do
      assert.equal("", keeper:with({ capacity = size }):loan("x"))
      assert.same({ 3, 3 }, { keeper:refused() })
      assert.is_nil((keeper:with({ capacity = size }):fails("x")))
      assert.same({ 3, 3 }, { keeper:refused() })
    end
  end)

  it("to a writer and a reader ends with them", function()
    for _, size in ipairs { 10, 20000, 2 ^ 20 } do
      local loan, reply
      keeper:with({ capacity = size, reader = function(view)
        reply = view
      end }):keep(function(room)
        loan = room
        return size
      end)
      for _, object in ipairs { loan, reply } do
        raises(function() return object.pointer end)
        raises(function() return object.length end)
        raises(function() return object:string() end)
      end
    end
  end)

  it("to a writer that raised ends too", function()
    local loan
    pcall(function()
      keeper:keep(function(room)
        loan = room
        error("no")
      end)
    end)
    raises(function() return loan.pointer end)
  end)

  it("by a handler stays unchanged until the caller has it", function()
    local region = cases.alloc(agent.engine, 2 ^ 22)
    for _, size in ipairs { 1, 100, cases.EAGER, cases.EAGER + 1, 2 ^ 22 } do
      local into = region:slice(0, size)
      for value = 1, 20 do
        local got = assert(keeper:with({ into = into }):slice(size, value))
        assert.is_true(got:string() == string.char(value):rep(size), size)
      end
      local all = {}
      assert.is_true(cases.eventually(function()
        for _, state in ipairs((keeper:sent())) do all[#all + 1] = state end
        return #all == 20
      end), size .. ": " .. #all)
      for _, state in ipairs(all) do assert.equal("true", state) end
    end
  end)

  it("as a pooled slice goes back by close, once", function()
    for _ = 1, 200 do
      local got = assert(keeper:slice(2 ^ 22, 5))
      assert.equal(5, cases.byte(got, 2 ^ 22 - 1))
      got:close()
      got:close()
      raises(function() return got:string() end)
    end
  end)

  it("as a pooled slice goes back by collection otherwise", function()
    for round = 1, 600 do
      local got, err = keeper:slice(2 ^ 22, 6)
      assert(got, tostring(err))
      if round % 50 == 0 then collectgarbage() end
    end
  end)

  it("as memory without a name lives while a slice of it does", function()
    local slice = cases.alloc(agent.engine, 2 ^ 20):slice(100, 1000)
    collectgarbage()
    collectgarbage()
    slice:fill(3)
    local part = slice:slice(10, 20)
    slice = nil
    collectgarbage()
    collectgarbage()
    assert.is_nil(slice)
    assert.equal(string.char(3):rep(20), part:string())
    assert.equal(20, part.length)
  end)

  it("as memory without a name lives while an operation uses it", function()
    local futures = {}
    for i = 1, 20 do
      local memory = cases.alloc(agent.engine, 2 ^ 20)
      memory:slice(0, 2 ^ 20):fill(i)
      futures[i] = keeper.async:keep(memory:slice(0, 2 ^ 20))
    end
    collectgarbage()
    collectgarbage()
    assert(perigee.wait_all(futures, 10))
    for i = 1, 20 do
      assert.is_true(futures[i]:wait() == string.char(i):rep(2 ^ 20))
    end
  end)
end)
