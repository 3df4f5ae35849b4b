-- SPDX-License-Identifier: Apache-2.0
-- A fuzzer of whole agents. A liar (spec/support/liar.lua) floods a server with
-- calls, and answers a client's calls, with anything that the core's scan lets
-- pass. An honest call must be answered after each batch. Nothing may raise out
-- of the loop, and the handler of last resort below the dispatch of events must
-- not have caught anything.
--
-- PERIGEE_FUZZ_SEED is the first seed, PERIGEE_FUZZ_SECONDS the time (make
-- fuzz-agents). A failure is reported with its seed.
local cases = require "spec.support.cases"
local liars = require "spec.support.liar"
local native = require "perigee.native"
local perigee = require "perigee"

local SEED = tonumber(os.getenv "PERIGEE_FUZZ_SEED" or 1)
local SECONDS = tonumber(os.getenv "PERIGEE_FUZZ_SECONDS" or 0)
local BATCHES, BATCH = 20, 100
local METHODS = 9

-- Methods in the order of their names, which is that of their ids.
local function service(engine)
  local region = assert(engine:alloc(2 ^ 18))
  local function given(length)
    if length > 1e5 then return nil, "too much" end
    return region:slice(0, length)
  end
  return { name = "victim", version = 1, methods = {
    add = function(a, b) return a + b end,
    bounded = { raw = true, inplace = true, capacity = 100,
                function(request, reply) return reply:write(request, 10) end },
    copy = { raw = true, inplace = true, function(request, reply)
      return reply:write(request)
    end },
    echo = { raw = true, function(request) return request end },
    fails = function(...) error({ code = (...), message = select(2, ...) }) end,
    put = { landing = given, abandoned = function() end,
            function(slice, key) return #slice:string(), key end },
    same = function(...) return ... end,
    text = { raw = true, function(request) return request:string() end },
    waits = function(...)
      perigee.sleep(0)
      return ...
    end,
  } }
end

describe("agents that a liar talks to", function()
  local before, caught, liar, server, client

  before_each(function()
    before, caught = perigee.log, {}
    perigee.log = function(level, message)
      if level == "error" then caught[#caught + 1] = message end
    end
    server, client = assert(cases.agent "server"), assert(cases.agent "client")
    server:serve(service(server.engine))
  end)
  after_each(function()
    perigee.log = before
    if liar then liar:close() end
    liar = nil
    cases.cleanup()
  end)

  local function meets(seed)
    if liar then liar:close() end
    os.remove((cases.address("liar"):sub(6)))
    liar = liars.new(cases.address("liar"), seed)
  end

  local function all_is_well(seed)
    local future = perigee.spawn(function()
      local victim = assert(client:proxy("server", "victim", { timeout = 10 }))
      return victim:add(1, 2)
    end)
    assert.is_true(liar:until_true(function() return future:done() end, 20),
                   "no answer after seed " .. seed)
    local sum, err = future:wait()
    assert.equal(3, sum, ("seed %d: %s"):format(seed, tostring(err)))
    assert.same({}, caught, "seed " .. seed)
  end

  -- Runs batches with increasing seeds, for the time asked for.
  local function batches(run)
    local finish, lies = native.clock() + SECONDS * 1e9, 0
    local seed = SEED
    repeat
      meets(seed)
      local fine, why = pcall(run, seed)
      if not fine then error("seed " .. seed .. ": " .. tostring(why), 0) end
      all_is_well(seed)
      lies, seed = lies + liar.lies, seed + 1
    until seed >= SEED + BATCHES and native.clock() >= finish
    assert.is_true(lies > BATCHES * BATCH / 4)
    if SECONDS > 0 then
      io.stderr:write(("%d lies, by seeds up to %d\n"):format(lies, seed - 1))
    end
  end

  local function nothing_is_kept(agent)
    assert.is_true(liar:until_true(function()
      collectgarbage()
      return agent.engine:stats().pooled == 0
    end))
  end

  it("serve on, whatever they are asked", function()
    batches(function(seed)
      assert.is_truthy(liar:dial(server.address))
      for _ = 1, BATCH do
        if not liar.session then break end
        liar:call(METHODS + 1)
        if liar.chance.one_in(8) then
          perigee.sleep(0)
          liar:poll()
        end
      end
      assert.is_true(liar:until_true(function()
        return not liar.session or liar.ended == liar.begun
      end, 20), "calls of seed " .. seed .. " did not end")
    end)
    nothing_is_kept(server)
  end)

  -- Makes a random call of a proxy; returns its future.
  local function some_call(chance, proxy, region)
    local kinds = { "typed", "raw", "inplace", "again", "rawly" }
    local name = chance.pick(kinds)
    local options, typed = { timeout = 0.1 }, name == "typed" or name == "again"
    local capacity = chance.pick { 0, 1, 64, 20000 }
    if not typed then options.capacity = capacity end
    if chance.one_in(3) then
      options.into = region:slice(0, chance.pick { 0, 1, 64, 20000, 2 ^ 17 })
    elseif chance.one_in(3) and not typed then
      options.reader = function(view) return view:string() end
    end
    local payload = chance.pick { "", "x", ("y"):rep(20000) }
    if not typed and chance.one_in(3) then
      payload = function(loan) return loan:write("") end
    end
    return proxy:with(options).async[name](proxy:with(options).async, payload)
  end

  local function ended(futures)
    for _, future in ipairs(futures) do
      if not future:done() then return false end
    end
    return true
  end

  it("call on, whatever they are answered", function()
    local region = assert(client.engine:alloc(2 ^ 17))
    batches(function()
      local opened = perigee.spawn(function()
        return assert(client:proxy(cases.address "liar", "liars"))
      end)
      assert.is_true(liar:until_true(function() return opened:done() end))
      local proxy, futures = assert(opened:wait()), {}
      for _ = 1, BATCH do
        futures[#futures + 1] = some_call(liar.chance, proxy, region)
      end
      assert.is_true(liar:until_true(function() return ended(futures) end))
      for _, future in ipairs(futures) do
        local got, err = future:wait()
        if got == nil and perigee.is_error(err) then tostring(err) end
      end
      if proxy then proxy:close() end
    end)
    nothing_is_kept(client)
  end)

  it("open services, however they are described", function()
    batches(function()
      local names = {}
      liar.describes = false
      for i = 1, BATCH do names[i] = "service" .. i end
      local opened = perigee.spawn(function()
        for _, name in ipairs(names) do
          local proxy = client:proxy(cases.address "liar", name,
                                     { timeout = 0.1 })
          if proxy then
            proxy.async:add("x")
            proxy:close()
            local _, err = proxy:add("x")
            assert(err.kind == "closed" or err.kind == "no_method",
                   tostring(err))
          end
        end
        return true
      end)
      assert.is_true(liar:until_true(function() return opened:done() end, 30))
      assert(opened:wait())
    end)
  end)
end)
