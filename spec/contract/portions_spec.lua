-- SPDX-License-Identifier: Apache-2.0
-- Large typed payloads are decoded in portions: meanwhile calls of other
-- clients are served, and nothing overtakes the payload on its own session.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, perigee_)
  local agent = assert(child.cases.agent("worker"))
  local decoder = require "perigee.typed.decoder"
  local seen, begun, meanwhile = {}, 0, 0
  local new = decoder.new
  -- Notes when each large payload begins to be decoded.
  function decoder.new(...)
    begun, meanwhile = begun + 1, 0
    return new(...)
  end
  agent:serve {
    name = "portions", version = 1,
    methods = {
      large = function(n, list)
        seen[#seen + 1] = n
        return #list, meanwhile
      end,
      echo = function(value)
        meanwhile = meanwhile + 1
        return value
      end,
      note = function(n) seen[#seen + 1] = n end,
      raw = { raw = true, function(request)
        seen[#seen + 1] = tonumber(request:string())
        return request
      end },
      slice = function(n, list, slice)
        seen[#seen + 1] = n
        return #list, slice:string()
      end,
      landed = { function(n, slice, list)
        seen[#seen + 1] = n
        return #list, slice:string()
      end, landing = function(_, length, list)
        return #list > 0 and agent.engine:alloc(length):slice(0, length)
      end },
      begun = function() return begun end,
      seen = function()
        local now = seen
        seen = {}
        return now
      end,
      pooled = function() return agent.engine:stats().held_pooled end,
    },
  }
  child.say("ready")
  perigee_.run()
end

-- About 1 MiB of texts, all different.
local MANY = 140000
local function texts(n)
  local list = {}
  for i = 1, n do list[i] = ("%06d"):format(i) end
  return list
end

describe("while a large payload is decoded", function()
  local mine, other, agent, list

  setup(function()
    process.start(server):expect("ready")
    mine, agent = cases.proxy("portions", { timeout = 20 * cases.slow })
    other = cases.proxy("portions", { timeout = 20 * cases.slow })
    list = texts(MANY)
  end)
  teardown(cases.cleanup)

  local function decoding(before)
    return cases.eventually(function() return other:begun() > before end)
  end

  it("others' calls go on", function()
    local future = mine.async:large(1, list)
    local later = mine.async:note(2)
    repeat assert.equal("x", other:echo("x")) until future.ended
    local count, meanwhile = future:wait()
    assert.equal(MANY, count)
    assert.is_true(meanwhile > 2)
    assert.is_nil(select(2, later:wait()))
    assert.same({ 1, 2 }, other:seen())
  end)

  -- LuaJIT allocates a table of 8 MiB in one step, which takes milliseconds.
  it("what could not be cut is far from what comes after it", function()
    local flags = {}
    for i = 1, 2 ^ 20 do flags[i] = i % 3 == 0 end
    local future = mine.async:large(1, flags)
    repeat other:echo("x") until future.ended
    local count, meanwhile = future:wait()
    assert.equal(2 ^ 20, count)
    assert.is_true(meanwhile > 200, meanwhile)
    other:seen()
  end)

  it("later calls of its session wait for its handler", function()
    local many = texts(MANY / 4)
    for _ = 1, 3 do
      local futures, want = {}, {}
      for n = 1, 30, 6 do
        futures[n] = mine.async:large(n, many)
        futures[n + 1] = mine.async:note(n + 1)
        futures[n + 2] = mine.async:raw(tostring(n + 2))
        futures[n + 3] = mine.async:large(n + 3, texts(4000))
        futures[n + 4] = mine.async:large(n + 4, {})
        futures[n + 5] = mine.async:raw(tostring(n + 5))
      end
      for n = 1, 30 do want[n] = n end
      assert(perigee.wait_all(futures, 60 * cases.slow))
      assert.same(want, other:seen())
    end
  end)

  it("it may come with a slice", function()
    local region = agent.engine:alloc(4096)
    region:slice(0, 5):write("slice")
    for n, method in ipairs { "slice", "landed" } do
      local futures = {}
      local slice = region:slice(0, 5)
      if method == "slice" then
        futures[1] = mine.async:slice(n, list, slice)
      else
        futures[1] = mine.async:landed(n, slice, list)
      end
      futures[2] = mine.async:note(n + 10)
      assert(perigee.wait_all(futures, 20 * cases.slow))
      local count, text = futures[1]:wait()
      assert.equal(MANY, count)
      assert.equal("slice", text)
      assert.same({ n, n + 10 }, other:seen())
    end
  end)

  it("what comes is what was sent", function()
    local sent = { list = texts(3000), [-1] = { 1.5, true, [0] = false },
                   deep = { { { x = { y = -0.5 } } } }, [2 ^ 40] = "far" }
    for i = 1, 2000 do sent[i * 7] = { id = i, name = "n" .. i, 5LL == i } end
    assert.same(sent, mine:echo(sent))
  end)

  it("its caller may give up: its handler does not run", function()
    local tries, ran = 10, 0
    for n = 1, tries do
      local before = other:begun()
      local future = mine.async:large(n, list)
      assert.is_true(decoding(before))
      future:cancel()
      local count, err = future:wait()
      assert.is_true(count == MANY or err.kind == "cancelled")
      mine:note(100)
      local seen = other:seen()
      assert.equal(100, seen[#seen])
      ran = ran + #seen - 1
    end
    assert.is_true(ran < tries)
  end)

  it("its time may end", function()
    local hasty = mine:with { timeout = 0.003 }
    for n = 1, 10 do
      local count, err = hasty:large(n, list)
      assert.is_true(count == MANY or err.kind == "timeout")
      mine:note(100)
      local seen = other:seen()
      assert.equal(100, seen[#seen])
      assert.is_true(#seen <= 2)
    end
  end)

  it("its engine may be closed, once it is decoded and before its handler runs",
     function()
    local codec, said, ran = require "perigee.typed.codec", {}, false
    local serving = assert(cases.agent "other")
    serving:serve { name = "x", methods = { f = function() ran = true end } }
    local x = assert(agent:proxy("other", "x", { timeout = 20 * cases.slow,
                                                 reconnect = 0 }))
    local revive = codec.revive
    function codec.revive(...)
      codec.revive = revive
      perigee.spawn(serving.close, serving)
      return revive(...)
    end
    perigee.log = function(_, message) said[#said + 1] = message end
    local got, err = x:f(list)
    perigee.log = nil
    assert.is_nil(got)
    assert.equal("peer_lost", err.kind, tostring(err))
    assert.is_false(ran)
    assert.is_nil(table.concat(said, ";"):match "could not be handled.*")
  end)

  it("its caller may die: what it held is given back", function()
    for _ = 1, 3 do
      local before = other:begun()
      local caller = process.start(function(child, _, _, many)
        local proxy = child.cases.proxy("portions", { timeout = 60 })
        local words = {}
        for i = 1, tonumber(many) do words[i] = ("%06d"):format(i) end
        local futures = {}
        for n = 1, 3 do futures[n] = proxy.async:large(n, words) end
        futures[1]:wait()
        child.hear()
      end, MANY)
      assert.is_true(decoding(before))
      process.signal(caller.pid, "KILL")
      assert.equal("x", other:echo("x"))
      assert.is_true(cases.eventually(function()
        return other:pooled() < 2 ^ 14
      end))
    end
    other:seen()
  end)
end)
