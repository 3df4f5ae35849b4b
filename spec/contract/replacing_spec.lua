-- SPDX-License-Identifier: Apache-2.0
-- A worker is replaced by another one, again and again, under a crowd of
-- callers: no call fails, and each is made once. PERIGEE_SPEC_SCALE=1 replaces
-- it 1,000 times, and restarts it 100 times; REPLACED=1 tells the figures.
local cases = require "spec.support.cases"
local crowd = require "spec.support.crowd"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 60 * cases.slow
local TIMES = math.max(2, math.floor(1000 * cases.scale))

-- Serves as "worker" whenever it is told to, until it is told to drain.
local function worker(child, perigee_)
  local crowd_ = require "spec.support.crowd"
  local counted = { calls = 0 }
  child.say "there"
  for line in child.attend do
    assert(line == "begin")
    local agent
    repeat
      agent = child.cases.agent("worker", {
        services = { crowd_.service(perigee_, counted) } })
      if not agent then perigee_.sleep(0.001) end
    until agent
    child.say "serving"
    assert(child.attend() == "drain")
    assert(agent:drain(60))
    agent:close()
    child.say(tostring(counted.calls))
  end
end

describe("a worker that is replaced", function()
  after_each(cases.cleanup)

  local function figures(times, took, longest, made, failed, slowest)
    if not os.getenv "REPLACED" then return end
    print(("%d replacements, %.1f ms each, %.1f ms the longest; %d calls, %d "
      .. "failed, %d ms the longest"):format(times, took / times * 1e3,
      longest * 1e3, made, failed, slowest))
  end

  it("fails no call, and makes each once", function()
    local workers, served = {}, { 0, 0 }
    for i = 1, 2 do
      workers[i] = process.start(worker):expect("there", LONG)
    end
    workers[1]:tell "begin"
    workers[1]:expect("serving", LONG)
    crowd.begin()
    crowd.ready()
    local took, longest = 0, 0
    for n = 1, TIMES do
      perigee.sleep(n % 4 * 0.015)
      local old, new = workers[2 - n % 2], workers[n % 2 + 1]
      local since = process.now()
      old:tell "drain"
      if n % 3 == 0 then                -- the new one waits for the old one
        served[2 - n % 2] = tonumber(assert(old:read(LONG)))
        new:tell "begin"
      else
        new:tell "begin"
        served[2 - n % 2] = tonumber(assert(old:read(LONG)))
      end
      new:expect("serving", LONG)
      took = took + process.now() - since
      longest = math.max(longest, process.now() - since)
    end
    local made, failed, told, slowest = crowd.finish()
    local last = workers[TIMES % 2 + 1]:tell "drain"
      and tonumber(assert(workers[TIMES % 2 + 1]:read(LONG)))
    served[TIMES % 2 + 1] = last
    figures(TIMES, took, longest, made, failed, slowest)
    assert.equal(0, failed, told)
    assert.equal(made, served[1] + served[2])
    assert.is_true(made > TIMES)
  end)

  -- A program that serves by itself, and says how many calls that were.
  local ALONE = [[
    local perigee = require "perigee"
    local counted = { calls = 0 }
    perigee.spawn(function() print "serving" io.stdout:flush() end)
    assert(perigee.serve { name = "worker", scope = ..., services = {
      require "spec.support.crowd".service(perigee, counted) } })
    print(counted.calls)]]
  -- The file that `perigee serve` serves.
  local SERVED = [[
    return { services = { require "spec.support.crowd".service(
      require "perigee", { calls = 0 }) } }]]

  local function file(text)
    local path = os.tmpname()
    local opened = assert(io.open(path, "w"))
    opened:write(text)
    opened:close()
    return path
  end

  local function serve(how, path)
    local words = how == "alone" and { "luajit", path, cases.scope }
      or { "luajit", "lua/perigee/cli/perigee", "serve", "--name", "worker",
           "--scope", cases.scope, path }
    local one = process.spawn(words)
    assert.matches("^serving", assert(one:read(LONG)))
    return one
  end

  for how, text in pairs { alone = ALONE, ["by the command"] = SERVED } do
    it("fails no call when it is served " .. how .. " and restarted", function()
      local path, served = file(text), 0
      finally(function() os.remove(path) end)
      local one = serve(how, path)
      crowd.begin()
      crowd.ready()
      local took, longest, times = 0, 0, math.max(2, math.floor(TIMES / 10))
      for n = 1, times do
        perigee.sleep(n % 4 * 0.03)
        local since = process.now()
        one:signal "TERM"
        if how == "alone" then served = served + tonumber(one:read(LONG)) end
        assert.same({ "exit", 0 }, { one:wait(LONG) })
        one = serve(how, path)
        took = took + process.now() - since
        longest = math.max(longest, process.now() - since)
      end
      local made, failed, told, slowest = crowd.finish()
      one:signal "TERM"
      if how == "alone" then served = served + tonumber(one:read(LONG)) end
      figures(times, took, longest, made, failed, slowest)
      assert.equal(0, failed, told)
      assert.is_true(made > times)
      if how == "alone" then assert.equal(made, served) end
    end)
  end
end)
