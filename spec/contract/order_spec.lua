-- SPDX-License-Identifier: Apache-2.0
-- Order: requests reach handlers in the order of submission; what has completed
-- is visible to everything submitted later; calls are executed at most once.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_, ffi_)
  local agent = assert(child.cases.agent("worker"))
  local region = agent.engine:alloc(2 ^ 16, { name = "order", access = "rw" })
  local words = ffi_.cast("uint64_t *", region:slice(0, 2 ^ 16).pointer)
  local seen = {}
  local function note(n)
    seen[#seen + 1] = n
    return n
  end
  agent:serve {
    name = "order", version = 1,
    methods = {
      typed = function(n) return note(n) end,
      padded = function(n) return note(n) end,
      raw = { raw = true, function(request)
        note(tonumber(request:string():match("^%d+")))
        return request
      end },
      inplace = { raw = true, inplace = true, function(request)
        note(tonumber(request:string():match("^%d+")))
        return 0
      end },
      late = function(n, seconds)
        note(n)
        perigee_.sleep(seconds)
        return n
      end,
      word = function(index)
        return tonumber(words[index])
      end,
      set = function(index, value) words[index] = value end,
      seen = function()
        local now = seen
        seen = {}
        return now
      end,
    },
  }
  child.say("ready")
  perigee_.run()
end

describe("requests of one session", function()
  local order, agent

  setup(function()
    process.start(server):expect("ready")
    order, agent = cases.proxy("order", { timeout = 10 })
  end)
  teardown(cases.cleanup)

  it("reach handlers in the order submitted, of any kind and size", function()
    math.randomseed(1)
    local sizes = { 0, 10, 1000, 8000, 9000, 17000, 70000, 300000 }
    for _ = 1, 5 do
      local futures, want = {}, {}
      for n = 1, 200 do
        local padding = ("x"):rep(sizes[math.random(#sizes)])
        local text = n .. " " .. padding
        local kind = math.random(4)
        if kind == 1 then
          futures[n] = order.async:typed(n)
        elseif kind == 2 then
          futures[n] = order.async:padded(n, padding)
        elseif kind == 3 then
          futures[n] = order.async:raw(text)
        else
          futures[n] = order:with({ capacity = #text }).async:inplace(text)
        end
        want[n] = n
      end
      assert(perigee.wait_all(futures, 20))
      assert.same(want, (order:seen()))
    end
  end)

  it("are answered in any order", function()
    local slow = order.async:late(1, 1)
    local quick = order.async:late(2, 0)
    assert.equal(2, (perigee.wait_any({ slow, quick }, 5)))
    assert.is_false(slow:done())
    assert.equal(1, (slow:wait(5)))
    assert.same({ 1, 2 }, (order:seen()))
  end)

  it("see every write that had completed", function()
    local session = assert(agent:session("worker"))
    local remote = assert(session:region("order"))
    local here = agent.engine:alloc(4096)
    local word = ffi.cast("uint64_t *", here:slice(0, 8).pointer)
    for i = 1, 500 do
      word[0] = i
      assert(session:write { from = here:slice(0, 8),
                             to = remote:slice(8 * (i % 100), 8) }:wait(5))
      assert.equal(i, (order:word(i % 100)))
    end
  end)

  it("that were answered are seen by every later read", function()
    local session = assert(agent:session("worker"))
    local remote = assert(session:region("order"))
    local here = agent.engine:alloc(4096)
    local word = ffi.cast("uint64_t *", here:slice(0, 8).pointer)
    for i = 1, 500 do
      order:set(7, i * 3)
      assert(session:read { from = remote:slice(56, 8),
                            to = here:slice(0, 8) }:wait(5))
      assert.equal(i * 3, tonumber(word[0]))
    end
  end)

  it("happen at most once, also when they time out", function()
    order:seen()
    local impatient = order:with { timeout = 0.0005 }
    for n = 1, 300 do impatient:typed(n) end
    perigee.sleep(0.05)
    local seen = order:seen()
    for i = 2, #seen do assert.is_true(seen[i] > seen[i - 1]) end
  end)
end)
