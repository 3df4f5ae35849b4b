-- SPDX-License-Identifier: Apache-2.0
-- Batches of calls (perigee.batch): many raw calls by one submission, with one
-- end for all, and each its own result.
local cases = require "spec.support.cases"
local mortal = require "spec.support.mortal"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 30 * cases.slow

local function server(child)
  local agent = assert(child.cases.agent("worker"))
  agent:serve {
    name = "x",
    methods = {
      add = function(a, b) return a + b end,
      echo = { raw = true, function(request) return request end },
      copy = { raw = true, inplace = true, function(request, reply)
        return reply:write(request)
      end },
      -- Fails if the first byte is F, stands still if it is S, and gives half
      -- of the request if it is H.
      picky = { raw = true, function(request)
        local text = request:string()
        local what = text:sub(1, 1)
        if what == "F" then error("on purpose", 0) end
        if what == "S" then
          require "spec.support.process".usleep(0.4 * child.cases.slow)
        end
        if what == "H" then return text:sub(1, #text / 2) end
        return text
      end },
      traced = { raw = true, function()
        return require("perigee").context():trace() or "none"
      end },
    },
  }
  child.say("ready")
  require("perigee").run()
  agent:close()
end

-- n requests and n places of so many bytes in a region.
local function slots(region, n, bytes)
  local requests, places = {}, {}
  for i = 1, n do
    requests[i] = region:slice(2 * (i - 1) * bytes, bytes)
    places[i] = region:slice((2 * i - 1) * bytes, bytes)
  end
  return requests, places
end

describe("a batch of calls", function()
  local proxy, agent, region

  setup(function()
    process.start(server):expect("ready")
    proxy, agent = cases.proxy("x", { timeout = LONG })
    region = cases.alloc(agent.engine, 2 ^ 20)
  end)
  teardown(cases.cleanup)

  local function batch(on, name, ...)
    return assert(perigee.batch(on, name, ...))
  end

  -- A batch of one short request for each character of text, which begins it.
  local function letters(on, text, name)
    local requests, places = slots(region, #text, 8)
    for i = 1, #text do
      requests[i]:write(("%s%07d"):format(text:sub(i, i), i))
    end
    return batch(on, name or "picky", requests, places)
  end

  for _, name in ipairs { "echo", "copy" } do
    it("brings each reply of " .. name .. " to its place, at each post",
       function()
      for _, size in ipairs { 8, 64, 1000, 5000, 20000 } do
        local n = math.min(64, 2 ^ 19 / size)
        local requests, places = slots(region, n - n % 1, size)
        local all = batch(proxy, name, requests, places)
        for seed = 1, 3 do
          for i, request in ipairs(requests) do
            request:write(cases.bytes(size, seed * 100 + i))
          end
          assert.equal(all, all:post())
          local parts = assert(all:wait(LONG))
          assert.equal(#places, #parts)
          for i, part in ipairs(parts) do
            assert.is_true(part:string() == cases.bytes(size, seed * 100 + i),
                           ("%s of %d bytes, call %d"):format(name, size, i))
          end
        end
      end
      assert.equal(0, agent.engine.flying)
    end)
  end

  it("has ended before it is posted, and is the future of each post", function()
    local all = letters(proxy, "aaaa")
    assert.is_true(all:done())
    for _ = 1, 3 do
      all:post()
      assert.is_true(perigee.wait_all({ all, proxy.async:add(1, 2) }, LONG))
      assert.is_true(all:done())
      assert.equal("a0000004", all:wait()[4]:string())
      assert.equal(all:wait(), all:wait())
    end
  end)

  it("tells what each call has filled of its place", function()
    local all = letters(proxy, "aHaH")
    for _ = 1, 2 do
      local lengths = {}
      for i, part in ipairs(assert(all:post():wait(LONG))) do
        lengths[i] = part.length
        assert.equal(part.length, all:result(i).length)
      end
      assert.same({ 8, 4, 8, 4 }, lengths)
    end
  end)

  it("fails as its first call that failed, and stops no other", function()
    local all = letters(proxy, "aaFaF")
    for _ = 1, 3 do
      local got, err = all:post():wait(LONG)
      assert.is_nil(got)
      assert.equal("remote", err.kind)
      assert.is_true(err.sent)
      assert.matches("calling x.picky of worker: on purpose", tostring(err))
      for i, wanted in ipairs { "a0000001", "a0000002", false, "a0000004" } do
        local part = all:result(i)
        assert.equal(wanted, part and part:string() or false)
      end
      assert.matches("on purpose", tostring(select(2, all:result(5))))
    end
    assert.equal(0, agent.engine.flying)
  end)

  it("fails alone where a reply is longer than its place", function()
    local requests, places = slots(region, 3, 64)
    places[2] = places[2]:slice(0, 10)
    local all = batch(proxy, "echo", requests, places)
    local _, err = all:post():wait(LONG)
    assert.equal("too_large", err.kind)
    assert.equal(64, all:result(1).length)
    assert.equal("too_large", select(2, all:result(2)).kind)
    assert.equal(64, all:result(3).length)
  end)

  it("goes on with a list as place, whatever becomes of the list", function()
    local request = region:slice(0, 8):write "abcdefgh"
    local given = { region:slice(64, 4), region:slice(80, 4) }
    local all = batch(proxy, "echo", { request }, { given })
    for _ = 1, 3 do
      local parts = assert(all:post():wait(LONG))
      assert.equal("abcdefgh", parts[1]:string())
      parts[1][3] = region:slice(96, 4)
      given[2] = region:slice(128, 4)
      assert(proxy:with { into = parts[1] }:echo(request))
      collectgarbage()
    end
  end)

  it("has no room for more calls than there are operations", function()
    local few = assert(cases.agent(nil, {
      engine = { operations = 32 } }))
    local calls = assert(few:proxy("worker", "x", { timeout = LONG }))
    local memory = cases.alloc(few.engine, 8192)
    local requests, places = slots(memory, 32, 64)
    local all = batch(calls, "echo", requests, places)
    local got, err = all:post():wait(LONG)
    assert.is_nil(got)
    assert.equal("no_memory", err.kind)
    assert.is_false(err.sent)
    assert.equal(64, all:result(1).length)
    assert.equal("no_memory", select(2, all:result(32)).kind)
  end)

  it("goes beyond what the ring has room for", function()
    local requests, places = slots(region, 256, 2048)
    local all = batch(proxy, "echo", requests, places)
    for seed = 1, 3 do
      for i, request in ipairs(requests) do
        request:write(cases.bytes(2048, seed + i))
      end
      for i, part in ipairs(assert(all:post():wait(LONG))) do
        assert.is_true(part:string() == cases.bytes(2048, seed + i), i)
      end
    end
  end)

  it("sends and fills slices with a stride", function()
    local request = region:slice(0, 8, { count = 4, stride = 32 })
    local place = region:slice(4096, 16, { count = 2, stride = 64 })
    for i, text in ipairs { "01234567", "89abcdef", "ghijklmn", "opqrstuv" } do
      region:slice(32 * (i - 1), 8):write(text)
    end
    local parts = assert(batch(proxy, "echo", { request }, { place }):post()
                         :wait(LONG))
    assert.equal("0123456789abcdefghijklmnopqrstuv", parts[1]:string())
  end)

  it("sends and fills lists of slices, of length 0, and one slice twice",
     function()
    local request = region:slice(0, 8):write "abcdefgh"
    local list = { region:slice(64, 3), region:slice(80, 0),
                   region:slice(96, 5) }
    local all = batch(proxy, "echo", { request, { request, request }, list,
                                       region:slice(8, 0) },
                      { list, region:slice(128, 16), region:slice(192, 8),
                        region:slice(256, 0) })
    local parts = assert(all:post():wait(LONG))
    assert.equal("abcdefgh", parts[1]:string())
    assert.equal("abcdefghabcdefgh", parts[2]:string())
    assert.equal(8, parts[3].length)
    assert.equal(0, parts[4].length)
    assert.equal("abcdefgh", assert(all:post():wait(LONG))[3]:string())
  end)

  it("is under way beside others, and in tasks", function()
    local tasks = {}
    for t = 1, 4 do
      local requests, places = slots(region:slice(t * 65536, 65536), 32, 64)
      local all = batch(proxy, "echo", requests, places)
      tasks[t] = perigee.spawn(function()
        for round = 1, 20 do
          for i, request in ipairs(requests) do
            request:write(("%64d"):format(t * 10000 + round * 100 + i))
          end
          all:post()
          assert(proxy:add(1, 1) == 2)
          for i, part in ipairs(assert(all:wait(LONG))) do
            local wanted = t * 10000 + round * 100 + i
            assert(part:string() == ("%64d"):format(wanted))
          end
        end
        return true
      end)
    end
    assert.is_true(perigee.wait_all(tasks, LONG))
    for _, task in ipairs(tasks) do assert.is_true(task:wait()) end
  end)

  it("ends at the timeout of its calls, with what had come", function()
    local all = letters(proxy:with { timeout = 0.2 * cases.slow }, "aSaa")
    local _, err = all:post():wait(LONG)
    assert.equal("timeout", err.kind)
    assert.equal("a0000001", all:result(1):string())
    for i = 2, 4 do assert.equal("timeout", select(2, all:result(i)).kind) end
    assert(letters(proxy, "a"):post():wait(LONG))
  end)

  it("is cancelled also if a call has failed before", function()
    local all = letters(proxy, "FSaa")
    all:post()
    cases.await(function() return all.others end)
    all:cancel()
    assert.equal("remote", select(2, all:wait(LONG)).kind)
    for i = 2, 4 do
      local part, err = all:result(i)
      assert.is_true(part ~= nil or err.kind == "cancelled", tostring(err))
    end
    assert.equal(0, agent.engine.flying)
  end)

  it("is cancelled as a whole, and can be posted after that", function()
    local all = letters(proxy, "Saaa")
    all:post()
    assert.is_false(all:done())
    all:cancel()
    local got, err = all:wait(LONG)
    assert.is_nil(got)
    assert.equal("cancelled", err.kind)
    for i = 1, 4 do assert.equal("cancelled", select(2, all:result(i)).kind) end
    all:post()
    assert.equal("timeout", select(2, all:wait(0)).kind)
    assert.equal("S0000001", assert(all:wait(LONG))[1]:string())
    assert.equal(0, agent.engine.flying)
  end)

  it("belongs to the trace of who posts it", function()
    local requests, places = slots(region, 3, 64)
    local all = batch(proxy, "traced", requests, places)
    local own = assert(cases.agent())
    own:serve { name = "own", methods = { post = function()
      local texts = {}
      for i, part in ipairs(assert(all:post():wait(LONG))) do
        texts[i] = part:string():match "^%x+%-(%x+)%-"
      end
      return perigee.context():trace(), unpack(texts)
    end } }
    local calls = assert(own:proxy(own.name, "own"))
    local trace, a, b, c = calls:with { trace = true }:post()
    trace = assert(trace:match "^%x+%-(%x+)%-", trace)
    assert.same({ trace, trace, trace }, { a, b, c })
    assert.equal("none", assert(all:post():wait(LONG))[2]:string())
  end)

  it("begins a trace for each call, if that is asked for", function()
    local requests, places = slots(region, 3, 64)
    local all = batch(proxy:with { trace = true }, "traced", requests, places)
    local seen = {}
    for _ = 1, 2 do
      for _, part in ipairs(assert(all:post():wait(LONG))) do
        local trace = part:string():match "^%x+%-(%x+)%-"
        assert.is_nil(seen[trace])
        seen[assert(trace)] = true
      end
    end
  end)

  it("ends by an error, if its session is closed and no other follows",
     function()
    local other = assert(cases.agent())
    local session = assert(other:session "worker")
    local calls = assert(session:proxy("x", { timeout = LONG }))
    local memory = cases.alloc(other.engine, 4096)
    local requests, places = slots(memory, 3, 64)
    local all = batch(calls, "echo", requests, places)
    assert(all:post():wait(LONG))
    session:close()
    for _ = 1, 2 do
      local got, err = all:post():wait(LONG)
      assert.is_nil(got)
      assert.is_true(perigee.is_error(err), tostring(err))
      assert.equal(err.kind, select(2, all:result(3)).kind)
    end
  end)

  it("takes new memory for no call", function()
    local requests, places = slots(region, 64, 64)
    local all = batch(proxy, "echo", requests, places)
    for _ = 1, 300 do assert(all:post():wait(LONG)) end
    collectgarbage()
    collectgarbage "stop"
    local before = collectgarbage "count"
    for _ = 1, 100 do assert(all:post():wait(LONG)) end
    local taken = 1024 * (collectgarbage "count" - before) / 6400
    collectgarbage "restart"
    assert.is_true(taken < 60, ("%g bytes a call"):format(taken))
  end)

  it("ends in `closed` after its agent was closed", function()
    local other = assert(cases.agent())
    local calls = assert(other:proxy("worker", "x", { timeout = LONG }))
    local memory = cases.alloc(other.engine, 4096)
    local requests, places = slots(memory, 4, 64)
    requests[1]:write("S")
    local all = batch(calls, "picky", requests, places):post()
    other:close()
    assert.equal("closed", select(2, all:wait(LONG)).kind)
    for i = 1, 4 do assert.equal("closed", select(2, all:result(i)).kind) end
    assert.equal("closed", select(2, all:post():wait(LONG)).kind)
    assert.equal("closed", select(2, all:result(4)).kind)
  end)

  it("refuses to be posted twice, and memory that is gone", function()
    local memory = cases.alloc(agent.engine, 4096)
    local requests, places = slots(memory, 2, 64)
    requests[1]:write("S")
    local all = batch(proxy, "picky", requests, places):post()
    assert.has_error(function() all:post() end,
                     "batch:post: it is still posted; wait for it first")
    assert.has_error(function() all:result(1) end,
                     "batch:result: post it, and wait for it first")
    assert(all:wait(LONG))
    memory:close()
    local fine, why = pcall(function() all:post() end)
    assert.is_false(fine)
    assert.matches("call_batches_spec.lua:%d+: x.picky: %a+ 1: .*closed", why)
    assert.is_true(all:done())
  end)

  it("is refused if it names what there is not", function()
    local requests, places = slots(region, 2, 64)
    local all, err = perigee.batch(proxy, "none", requests, places)
    assert.is_nil(all)
    assert.equal("no_method", err.kind)
    local into = proxy:with { into = region:slice(0, 8) }
    local far = cases.alloc(cases.engine(), 64):slice()
    for _, wrong in ipairs {
      { {}, "echo", requests, places },
      { proxy.async, "echo", requests, places },
      { proxy, "add", requests, places }, { proxy, "echo", requests },
      { proxy, "echo", {}, {} }, { proxy, "echo", requests, { places[1] } },
      { proxy, "echo", { "a", "b" }, places },
      { proxy, "echo", { requests[1], nil, requests[2] },
        { places[1], places[2], places[1] } },
      { proxy, "echo", requests, { places[1], far } },
      { into, "echo", requests, places },
    } do
      local fine, why = pcall(function() perigee.batch(unpack(wrong)) end)
      assert.is_false(fine)
      assert.matches("call_batches_spec.lua:%d+: ", why)
    end
    assert.has_error(function() letters(proxy, "a").post() end)
    assert.has_error(function() letters(proxy, "a"):result(1) end)
    local one = letters(proxy, "a")
    assert(one:post():wait(LONG))
    assert.has_error(function() one:result(2) end,
                     "batch:result takes the number of a call, 1 to 1")
  end)
end)

describe("a batch whose worker is killed", function()
  local proxy, agent, region

  before_each(function()
    mortal.begin()
    proxy, agent = cases.proxy("x", { timeout = LONG, reconnect = 60 })
    region = cases.alloc(agent.engine, 65536)
  end)
  after_each(mortal.finish)

  it("waits for the next worker, and goes on there", function()
    local requests, places = slots(region, 8, 16)
    for i, request in ipairs(requests) do request:write(("%16d"):format(i)) end
    local all = assert(perigee.batch(proxy, "echo", requests, places))
    assert(all:post():wait(LONG))
    mortal.kill(perigee.session(proxy))
    assert.is_false(all:post():done())
    mortal.restart()
    for round = 1, 3 do
      for i, part in ipairs(assert(all:wait(LONG))) do
        assert.equal(("%16d"):format(i), part:string())
      end
      assert.equal(round == 1, all.others ~= false) -- later ones as a batch
      all:post()
    end
    assert(all:wait(LONG))
  end)

  -- The number of the batch's operation is another one's by then.
  it("is cancelled while it goes on, and ends nothing else", function()
    local requests, places = slots(region, 4, 16)
    local often = assert(perigee.batch(proxy, "bytes", requests, places))
    often:post()
    mortal.marked("bytes", 1)
    mortal.child:kill()
    cases.await(function() return not perigee.session(proxy).handle end)
    perigee.sleep(0.01)
    local other = assert(cases.agent())
    other:serve { name = "own", methods = {
      nap = function() perigee.sleep(0.05) return "rested" end } }
    local own = assert(agent:proxy(other.name, "own", { timeout = LONG }))
    local naps = {}
    for i = 1, 8 do naps[i] = own.async:nap() end
    often:cancel()
    assert.equal("cancelled", select(2, often:wait(LONG)).kind)
    for i = 1, 8 do assert.equal("rested", naps[i]:wait(LONG)) end
    mortal.restart()
    assert(often:post():wait(LONG))
  end)

  it("is made again, if it is idempotent, and fails if it is not", function()
    local requests, places = slots(region, 4, 16)
    for i, request in ipairs(requests) do request:write(string.char(64 + i)) end
    local often = assert(perigee.batch(proxy, "bytes", requests, places))
    local once = assert(perigee.batch(proxy, "echo", requests, places))
    often:post()
    mortal.marked("bytes", 1)
    once:post()
    mortal.child:kill()
    local _, err = once:wait(LONG)
    assert.equal("peer_lost", err.kind)
    local why = select(2, perigee.session(proxy):ended():wait(LONG))
    local reason = tostring(why):match "[^:]+$"
    assert.is_truthy(tostring(err):find(reason, 1, true),
                     tostring(err) .. " / " .. tostring(why))
    assert.is_false(often:done())
    mortal.restart()
    local parts = assert(often:wait(LONG))
    for i = 1, 4 do assert.equal(string.char(65 + i), parts[i]:string()) end
  end)
end)
