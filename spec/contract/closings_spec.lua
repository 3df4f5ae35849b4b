-- SPDX-License-Identifier: Apache-2.0
-- Three agents of one state call each other by every kind of call, while tasks,
-- handlers, readers, landings and writers close proxies and sessions at random.
-- Each operation ends, each landing is used or abandoned, each context learns
-- what became of its reply, and nothing is left. A seed that fails goes the
-- same way again as far as timing allows: PERIGEE_SEED=n runs that one alone.
local cases = require "spec.support.cases"
local ffi = require "ffi"
local perigee = require "perigee"

local SEEDS, TASKS, STEPS, CLOSES = 4, 6, 60, 12
local LONGEST, PIECE = 2 ^ 22, 2 ^ 16
local random = math.random

describe("with sessions closed at random, all that was begun ends:", function()
  local agents, regions, tally

  -- Closes a session of one of the agents, one time in CLOSES. With it goes a
  -- proxy that uses it, so that no binding refers to the session.
  local function perhaps_close()
    if random(CLOSES) > 1 then return end
    local agent = agents[random(#agents)]
    local sessions = {}
    for _, session in pairs(agent.engine.sessions) do
      if session.handle then sessions[#sessions + 1] = session end
    end
    if #sessions == 0 then return end
    local session = sessions[random(#sessions)]
    for proxy in pairs(tally.proxies) do
      if perigee.session(proxy) == session then proxy:close() end
    end
    session:close()
    tally.closed = tally.closed + 1
  end

  local function place(i, length)
    return regions[i]:slice(random(0, LONGEST - length), length)
  end

  local function expect_sent(context)
    local future = perigee.spawn(function() return context:sent() end)
    tally.futures[#tally.futures + 1] = { "sent", future }
  end

  local function service(i)
    return { name = "x", methods = {
      same = function(x)
        perhaps_close()
        return x
      end,
      sleep = function(seconds)
        perigee.sleep(seconds)
        perhaps_close()
      end,
      echo = { raw = true, function(request)
        perhaps_close()
        return request
      end },
      copy = { raw = true, inplace = true, function(request, reply)
        perhaps_close()
        return reply:write(request)
      end },
      get = function(length)
        expect_sent(perigee.context())
        perhaps_close()
        return place(i, length)
      end,
      put = {
        landing = function(length)
          perhaps_close()
          tally.landings = tally.landings + 1
          return place(i, length)
        end,
        abandoned = function() tally.over = tally.over + 1 end,
        function(slice)
          tally.over = tally.over + 1
          perhaps_close()
          return slice.length
        end,
      },
    } }
  end

  local function length() return math.floor(LONGEST ^ random()) end

  local kinds = {
    same = function(proxy)
      return proxy.async:same(("x"):rep(length() / 16))
    end,
    sleep = function(proxy) return proxy.async:sleep(random() * 0.002) end,
    echo = function(proxy) return proxy.async:echo(("x"):rep(length())) end,
    copy = function(proxy)
      local n = random(PIECE)
      return proxy:with({ capacity = PIECE }).async:copy(function(loan)
        ffi.fill(loan.pointer, n, 7)
        perhaps_close()
        return n
      end)
    end,
    read = function(proxy)
      return proxy:with({ reader = function(reply)
        perhaps_close()
        return reply.length
      end }).async:echo(("x"):rep(length()))
    end,
    get = function(proxy) return proxy.async:get(length()) end,
    put = function(proxy, i) return proxy.async:put(place(i, length())) end,
    write = function(proxy, i, j)
      local session = perigee.session(proxy)
      local remote = session.handle and session:region("m" .. j)
      if not remote then return end
      local n = length()
      return session:write { from = place(i, n), to = remote:slice(0, n) }
    end,
  }
  local NAMES = {}
  for name in pairs(kinds) do NAMES[#NAMES + 1] = name end
  table.sort(NAMES)

  local function step(i)
    local j = random(#agents)
    local proxy = agents[i]:proxy("closer" .. j, "x", { timeout = 20 })
    if not proxy then return end
    tally.proxies[proxy] = true
    for _ = 1, random(3) do
      local name = NAMES[random(#NAMES)]
      local future = kinds[name](proxy, i, j)
      tally.futures[#tally.futures + 1] = future and { name, future }
      if future and random(8) == 1 then future:cancel() end
      if future and random(2) == 1 then future:wait() end
    end
    perhaps_close()
  end

  local function all_ended(seed)
    for _, one in ipairs(tally.futures) do
      local _, err = one[2]:wait(60 * cases.slow)
      assert.is_true(one[2]:done(), ("seed %d: %s has no end: %s"):format(seed,
        one[1], tostring(err)))
    end
  end

  local function nothing_left(seed)
    cases.eventually(function() return tally.over == tally.landings end)
    assert.equal(tally.landings, tally.over, "landings, seed " .. seed)
    for i, agent in ipairs(agents) do
      local engine = agent.engine
      assert.equal(0, engine.flying, "flying of " .. i .. ", seed " .. seed)
      for _, name in ipairs { "inflight", "landed", "replying" } do
        cases.eventually(function() return not next(engine[name]) end)
        assert.is_nil(next(engine[name]), ("%s of %d, seed %d"):format(name, i,
                                                                       seed))
      end
      assert.equal(0, engine:stats().dropped)
    end
  end

  local function world(seed)
    math.randomseed(seed)
    tally = { futures = {}, proxies = setmetatable({}, { __mode = "k" }),
              landings = 0, over = 0, closed = 0 }
    agents, regions = {}, {}
    for i = 1, 3 do
      agents[i] = assert(cases.agent("closer" .. i))
      regions[i] = cases.alloc(agents[i].engine, LONGEST,
                               { name = "m" .. i, access = "rw" })
      agents[i]:serve(service(i))
    end
    local tasks = {}
    for i = 1, TASKS do
      tasks[i] = perigee.spawn(function()
        for _ = 1, STEPS do step((i - 1) % 3 + 1) end
        return true
      end)
    end
    for i = 1, TASKS do
      local fine, err = tasks[i]:wait(60 * cases.slow)
      assert.is_true(fine, ("seed %d: %s"):format(seed, tostring(err)))
    end
    all_ended(seed)
    nothing_left(seed)
    assert.is_true(tally.closed > 5, "hardly anything was closed")
    cases.cleanup()
  end

  after_each(cases.cleanup)

  local one = tonumber(os.getenv "PERIGEE_SEED")
  for seed = one or 1, one or SEEDS do
    it("seed " .. seed, function() world(seed) end)
  end
end)
