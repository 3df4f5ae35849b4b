-- SPDX-License-Identifier: Apache-2.0
-- Prepared calls: named once, and made again and again by perigee.prepare's
-- objects, each the future of its last post.
local cases = require "spec.support.cases"
local mortal = require "spec.support.mortal"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 30 * cases.slow

local function server(child)
  local agent = assert(child.cases.agent("worker"))
  local stored = child.cases.alloc(agent.engine, 4096)
  agent:serve {
    name = "x",
    methods = {
      add = function(a, b) return a + b, b end,
      same = function(x) return x end,
      counted = function(...) return select("#", ...), ... end,
      sum = function(list)
        local all = 0
        for _, n in ipairs(list) do all = all + n end
        return all
      end,
      nap = function(seconds) require("perigee").sleep(seconds) end,
      fail = function() error("on purpose", 0) end,
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
      put = { landing = function(length) return stored:slice(0, length) end,
              function(slice, key) return key, slice:string() end },
    },
  }
  child.say("ready")
  require("perigee").run()
  agent:close()
end

describe("a prepared call", function()
  local proxy, agent, region

  setup(function()
    process.start(server):expect("ready")
    proxy, agent = cases.proxy("x", { timeout = LONG })
    region = cases.alloc(agent.engine, 2 ^ 18)
  end)
  teardown(cases.cleanup)

  local function prepare(on, ...) return assert(perigee.prepare(on, ...)) end

  it("has ended before it is posted, and is the future of each post", function()
    local call = prepare(proxy, "add", 1, 2)
    assert.is_true(call:done())
    for _ = 1, 3 do
      assert.equal(call, call:post())
      assert.same({ 3, 2 }, { call:wait() })
      assert.is_true(call:done())
    end
  end)

  it("sends the bytes that its slice has at the post", function()
    for _, size in ipairs { 8, 64, 5000, 60000 } do
      local from, into = region:slice(0, size), region:slice(65536, size)
      local call = prepare(proxy:with { into = into }, "echo", from)
      for seed = 1, 5 do
        local bytes = cases.bytes(size, seed)
        from:write(bytes)
        local filled = assert(call:post():wait(LONG))
        assert.equal(size, filled.length)
        assert.is_true(filled:string() == bytes)
      end
    end
  end)

  it("keeps its memory to itself, whatever others of its proxy do", function()
    local one = prepare(proxy, "echo", region:slice(0, 4):write "aaaa")
    local two = prepare(proxy, "echo", region:slice(4, 2):write "bb")
    for _ = 1, 3 do
      assert.equal("aaaa", one:post():wait())
      assert.equal("cc", proxy:echo "cc")
      assert.equal("bb", two:post():wait())
    end
  end)

  it("takes strings, lists of slices and nothing, too", function()
    local list = { region:slice(0, 3):write "abc", region:slice(100, 2) }
    list[2]:write "de"
    for payload, wanted in pairs { hello = "hello", [list] = "abcde" } do
      local call = prepare(proxy, "echo", payload)
      for _ = 1, 3 do assert.equal(wanted, call:post():wait()) end
    end
    assert.equal("", prepare(proxy, "echo"):post():wait())
  end)

  it("calls its writer and its reader at each post", function()
    local n = 0
    local call = prepare(proxy:with { reader = function(reply)
      return reply:string()
    end }, "copy", function(loan)
      n = n + 1
      return loan:write(("x"):rep(n))
    end)
    for i = 1, 3 do assert.equal(("x"):rep(i), call:post():wait()) end
  end)

  it("encodes the arguments of a typed method at each post", function()
    local list = { 1 }
    local call = prepare(proxy, "sum", list)
    for i = 2, 4 do
      list[i] = i
      assert.equal(i * (i + 1) / 2, call:post():wait())
    end
  end)

  it("keeps how many arguments there are, and which are nil", function()
    local calls = { prepare(proxy, "counted"), prepare(proxy, "counted", nil),
                    prepare(proxy, "counted", nil, nil),
                    prepare(proxy, "counted", nil, 2, nil),
                    prepare(proxy, "counted", 1, nil, nil, 4, nil) }
    local wanted = { { 0 }, { 1 }, { 2 }, { 3, nil, 2 }, { 5, 1, nil, nil, 4 } }
    for _ = 1, 2 do
      for i, call in ipairs(calls) do
        assert.same(wanted[i], { call:post():wait(LONG) })
      end
    end
  end)

  it("sends a slice among typed arguments, and asks a landing", function()
    local slice = region:slice(0, 3)
    local call = prepare(proxy, "put", slice, "key")
    for _, text in ipairs { "abc", "xyz" } do
      slice:write(text)
      assert.same({ "key", text }, { call:post():wait() })
    end
    local asked = 0
    call = prepare(proxy:with { landing = function(length)
      asked = asked + 1
      return region:slice(1024, length)
    end }, "echo", slice)
    for i = 1, 2 do
      assert.equal("xyz", call:post():wait():string())
      assert.equal(i, asked)
    end
  end)

  it("is waited for with others", function()
    local calls = {}
    for i = 1, 40 do
      local from, into = region:slice(128 * i, 8), region:slice(128 * i + 64, 8)
      calls[i] = prepare(proxy:with { into = into }, "echo", from)
    end
    for round = 1, 20 do
      for i, call in ipairs(calls) do
        region:slice(128 * i, 8):write(("%4d%4d"):format(round, i))
        call:post()
      end
      if round % 2 == 0 then
        assert(perigee.wait_all(calls, LONG))
      else
        local seen = 0
        for _ in perigee.as_completed(calls, LONG) do seen = seen + 1 end
        assert.equal(40, seen)
      end
      for i, call in ipairs(calls) do
        assert.equal(("%4d%4d"):format(round, i), call:wait():string())
      end
    end
    assert.equal(0, agent.engine.flying)
  end)

  it("takes less new memory for a post than a future takes", function()
    local FUTURE = 60 -- bytes, at least: one of 120, less what is not compiled
    local slice, into = region:slice(0, 64), region:slice(64, 64)
    local fast = proxy:with { into = into }
    local call = prepare(fast, "echo", slice)
    local function bytes_of(start)
      for _ = 1, 3000 do assert(start():wait(LONG)) end
      collectgarbage()
      collectgarbage "stop"
      local before = collectgarbage "count"
      for _ = 1, 1000 do assert(start():wait(LONG)) end
      local taken = collectgarbage "count" - before
      collectgarbage "restart"
      return 1024 * taken / 1000
    end
    local posted = bytes_of(function() return call:post() end)
    local started = bytes_of(function() return fast.async:echo(slice) end)
    assert.is_true(posted + FUTURE < started, ("%d bytes, %d"):format(posted,
                                                                   started))
  end)

  it("is posted again by the task that waited for it", function()
    local call = prepare(proxy, "add", 1, 1)
    local sums = perigee.spawn(function()
      local all = 0
      for _ = 1, 10 do all = all + call:post():wait() end
      return all
    end)
    assert.equal(20, sums:wait(LONG))
  end)

  it("belongs to the trace of who posts it, each time", function()
    local call = prepare(proxy, "same", 1)
    local own = assert(cases.agent())
    own:serve { name = "own", methods = {
      post = function() return call:post():wait(LONG) end } }
    local traced = assert(own:proxy(own.name, "own")):with { trace = true }
    assert.equal(1, traced:post())
    assert.is_truthy(rawget(call, "trace"))
    assert.equal(1, call:post():wait(LONG))
    assert.is_nil(rawget(call, "trace"))
  end)

  it("ends as any other call, and can be posted after that", function()
    local fails = prepare(proxy, "fail")
    local naps = prepare(proxy:with { timeout = 0.02 }, "nap", 60)
    local cancelled = prepare(proxy, "nap", 60)
    for _ = 1, 2 do
      local _, err = fails:post():wait(LONG)
      assert.equal("remote", err.kind)
      assert.equal("timeout", select(2, naps:post():wait(LONG)).kind)
      assert.is_false(cancelled:post():done())
      cancelled:cancel()
      assert.equal("cancelled", select(2, cancelled:wait(LONG)).kind)
    end
  end)

  -- What goes on after the cancel must not end the next post.
  it("is ended by its own post alone, if one was cancelled", function()
    local long = prepare(proxy, "same", ("x"):rep(2 ^ 20))
    for _ = 1, 20 do
      assert.equal(2 ^ 20, #assert(long:post():wait(LONG)))
      long:post()
      perigee.sleep(math.random() * 0.002)
      long:cancel()
      local got, err = long:wait(LONG)
      assert.is_true(got ~= nil or err.kind == "cancelled", tostring(err))
    end
    assert.equal(0, agent.engine.flying)
  end)

  it("ends in `closed` after its agent was closed", function()
    local other = assert(cases.agent())
    local calc = assert(other:proxy("worker", "x", { timeout = LONG }))
    local memory = cases.alloc(other.engine, 64)
    local calls = { prepare(calc, "add", 1, 2), prepare(calc, "echo", "abc"),
                    prepare(calc, "echo", memory:slice(0, 8)) }
    for _, call in ipairs(calls) do assert(call:post():wait(LONG)) end
    local naps = prepare(calc, "nap", 60):post()
    other:close()
    assert.equal("closed", select(2, naps:wait(LONG)).kind)
    for _, call in ipairs(calls) do
      assert.equal("closed", select(2, call:post():wait(LONG)).kind)
    end
  end)

  it("refuses to be posted twice, and memory that is gone", function()
    local naps = prepare(proxy, "nap", 60):post()
    assert.has_error(function() naps:post() end,
                     "call:post: it is still posted; wait for it first")
    naps:cancel()
    naps:wait(LONG)
    local memory = cases.alloc(agent.engine, 128)
    local from = prepare(proxy, "echo", memory:slice(0, 8))
    local into = prepare(proxy:with { into = memory:slice(64, 8) }, "echo",
                         region:slice(0, 8))
    for _, call in ipairs { from, into } do assert(call:post():wait(LONG)) end
    memory:close()
    for _, call in ipairs { from, into } do
      local fine, why = pcall(function() call:post() end)
      assert.is_false(fine)
      assert.matches("prepared_calls_spec.lua:%d+: x.echo: .*closed", why)
      assert.is_true(call:done())
    end
  end)

  it("is refused if it names what there is not", function()
    local call, err = perigee.prepare(proxy, "none")
    assert.is_nil(call)
    assert.equal("no_method", err.kind)
    assert.matches("add", err.message)
    assert.has_error(function() perigee.prepare({}, "add") end)
    assert.has_error(function() perigee.prepare(proxy.async, "add") end)
    assert.has_error(function() perigee.prepare(proxy, 1) end)
    assert.has_error(function() perigee.prepare(proxy, "echo", "a", "b") end)
    assert.has_error(function() perigee.prepare(proxy, "add", 1).post() end)
  end)

  it("says what is wrong at the line of its post", function()
    local call = prepare(proxy, "echo", 7)
    local function two() perigee.prepare(proxy, "echo", 1, 2) end
    for _, f in ipairs { function() call:post() end, two } do
      local fine, why = pcall(f)
      assert.is_false(fine)
      assert.matches("^spec/contract/prepared_calls_spec.lua:%d+: x.echo: ",
                     (why:gsub("^.*/(spec/)", "%1")))
    end
  end)
end)

describe("a prepared call whose worker is killed", function()
  local proxy

  before_each(function()
    mortal.begin()
    proxy = cases.proxy("x", { timeout = LONG, reconnect = 60 })
  end)
  after_each(mortal.finish)

  it("fails once, waits for the next worker, and goes on there", function()
    local same = assert(perigee.prepare(proxy, "same", 7))
    local echo = assert(perigee.prepare(proxy, "echo", "abc"))
    local once = assert(perigee.prepare(proxy, "once", 60))
    assert.equal(7, same:post():wait(LONG))
    once:post()
    mortal.marked("once", 1)
    mortal.child:kill()
    local _, err = once:wait(LONG)
    assert.equal("peer_lost", err.kind)
    echo:post()
    for _ = 1, 3 do -- given up, and begun anew
      assert.is_false(same:post():done())
      perigee.sleep(0.01)
      same:cancel()
      assert.equal("cancelled", select(2, same:wait(LONG)).kind)
    end
    same:post()
    mortal.restart()
    assert.equal(7, same:wait(LONG))
    assert.equal("abc", echo:wait(LONG))
    assert.equal("2", once:post():wait(LONG))
  end)

  it("is made again, if it is idempotent", function()
    local often = assert(perigee.prepare(proxy, "often", 60, "a"))
    often:post()
    mortal.marked("often", 1)
    mortal.child:kill()
    perigee.sleep(0.02)
    often:cancel()
    assert.equal("cancelled", select(2, often:wait(LONG)).kind)
    assert.is_false(often:post():done())
    mortal.restart()
    assert.same({ "2", "a" }, { often:wait(LONG) })
    assert.same({ "2", "a" }, { often:post():wait(LONG) })
  end)
end)
