-- SPDX-License-Identifier: Apache-2.0
-- Agents that wait for each other over registries of each kind: Agent:mesh and
-- Agent:rendezvous, with agents that die meanwhile.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local errors = require "perigee.runtime.errors"
local perigee = require "perigee"
local process = require "spec.support.process"
local watches = require "perigee.registry.watch"

local LONG = 20 * cases.slow
local pump = cases.pump

-- Has a name, and meets others as its parent says: "meet KEY N".
local function person(child, perigee_, _, where, name)
  local backend = require("spec.support.backends")
  local agent = assert(child.cases.agent(name, {
    registry = backend.registry(where, child.cases) }))
  child.say("ready")
  for line in child.attend do
    local key, n = line:match "^meet (%S+) (%d+)$"
    perigee_.spawn(function()
      local rank, names = agent:rendezvous(key, tonumber(n), 120)
      child.say(rank and rank .. " " .. table.concat(names, " ")
        or tostring(names))
    end)
  end
end

for _, where in ipairs(backends.all) do
  describe("agents with a registry that is a " .. where, function()
    local registry

    before_each(function() registry = backends.start(where) end)
    after_each(cases.cleanup)

    local function take(name, options)
      return assert(backends.take(registry, name, options))
    end

    local function start(name)
      return process.start(person, where, name):expect("ready", LONG, pump)
    end

    local function meet(agent, key, n, timeout)
      return perigee.spawn(function()
        local rank, names = agent:rendezvous(key, n, timeout or 60)
        return rank and rank .. " " .. table.concat(names, " ")
          or names.kind
      end)
    end

    local function places(agent)
      return #assert(agent:list { prefix = "anonymous-m-" })
    end

    it("meet, and all are told the same names and a rank each", function()
      local far = start "c"
      local near = { take "b", take "a", take "d" }
      far:tell "meet start 4"
      local told = {}
      for i, agent in ipairs(near) do told[i] = meet(agent, "start", 4) end
      assert.equal("1 a b c d", (told[1]:wait(60)))
      assert.equal("0 a b c d", (told[2]:wait(60)))
      assert.equal("3 a b c d", (told[3]:wait(60)))
      far:expect("2 a b c d", LONG, pump)
      assert.is_true(cases.eventually(function()
        return places(near[1]) == 0
      end))
      assert.equal("a b c d", (function()
        local text = {}
        for i, entry in ipairs(near[1]:list()) do text[i] = entry.name end
        return table.concat(text, " ")
      end)())
    end)

    it("meet again and again at the same key", function()
      local near = { take "a", take "b", take "c" }
      for _ = 1, 5 do
        local told = {}
        for i, agent in ipairs(near) do told[i] = meet(agent, "step", 3) end
        for i = 1, 3 do
          assert.equal((i - 1) .. " a b c", (told[i]:wait(60)))
        end
      end
    end)

    it("meet without those that died before all were there", function()
      local one, two = take "a", take "b"
      local mortal = start "mortal"
      mortal:tell "meet start 3"
      assert.is_true(cases.eventually(function() return places(one) == 1 end))
      local told = { meet(one, "start", 3) }
      mortal:kill()
      local other = start "c"
      other:tell "meet start 3"
      told[2] = meet(two, "start", 3)
      assert.equal("0 a b c", (told[1]:wait(60)))
      assert.equal("1 a b c", (told[2]:wait(60)))
      other:expect("2 a b c", LONG, pump)
    end)

    it("leave nothing behind when the loop is stopped", function()
      local a, b, c = take "a", take "b", take "c"
      perigee.run(function()
        perigee.spawn(a.rendezvous, a, "start", 2, 60)
        cases.await(function() return places(b) == 1 end)
        perigee.stop()
      end)
      assert.is_true(cases.eventually(function() return places(b) == 0 end))
      local one, other = meet(b, "start", 2, LONG), meet(c, "start", 2, LONG)
      assert.equal("0 b c", (one:wait(2 * LONG)))
      assert.equal("1 b c", (other:wait(2 * LONG)))
    end)

    it("are interrupted, and leave nothing behind", function()
      local agent, new, known = take "a", watches.new, nil
      function watches.new()
        watches.new = new
        errors.pass "interrupted!"
      end
      xpcall(agent.rendezvous, function(e)
        known = errors.is_interrupt(e, 2)
      end, agent, "start", 2, 10)
      assert.is_true(known)
      assert.equal(0, places(agent))
    end)

    it("give up when their time is over, and leave nothing behind", function()
      local one = take "a"
      assert.equal("timeout", (meet(one, "start", 2, 0.05):wait(60)))
      assert.is_true(cases.eventually(function() return places(one) == 0 end))
      local waiting = meet(take "b", "start", 2)
      assert.equal("0 a b", (meet(one, "start", 2):wait(60)))
      assert.equal("1 a b", (waiting:wait(60)))
      local alone = take "c"
      local closed = meet(alone, "start", 2)
      assert.is_true(cases.eventually(function() return places(one) > 0 end))
      alone:close()
      assert.equal("closed", (closed:wait(60)))
      assert.is_true(cases.eventually(function() return places(one) == 0 end))
    end)

    it("have a mesh of sessions when all are there", function()
      local one = take "a"
      local meshed = perigee.spawn(function()
        return one:mesh({ "a", "b", "c" }, 60)
      end)
      local two, three = take "b", take "c"
      local all = assert(meshed:wait(60))
      assert.equal(3, #all)
      for i, agent in ipairs { one, two, three } do
        assert.equal(agent.name, all[i].peer)
        assert.equal(all[i], all[agent.name])
        assert.equal(all[i], assert(one:session(agent.name)))
      end
      local none, err = one:mesh({ "b", "nobody" }, 0.05)
      assert.is_nil(none)
      assert.equal("timeout", err.kind)
      assert.matches("nobody", tostring(err))
    end)
  end)
end

describe("a rendezvous", function()
  after_each(cases.cleanup)

  -- Two rounds never mix, whoever is killed: those who return with one another
  -- in a list have the same list.
  it("tells all who return the same, whoever is killed when", function()
    local count = 0
    local function start()
      count = count + 1
      return process.start(person, "folder", "p" .. count)
        :expect("ready", LONG, pump)
    end
    local people = { start(), start(), start() }
    for round = 1, math.max(5, math.floor(100 * cases.scale)) do
      local key = "round" .. round
      for i = 1, 3 do people[i]:tell("meet " .. key .. " 3") end
      perigee.sleep(round % 7 * 0.0004)
      local victim = round % 3 + 1
      people[victim]:kill()
      people[victim] = start()
      people[victim]:tell("meet " .. key .. " 3")
      local told = {}
      for i = 1, 3 do
        if i ~= victim then
          told[#told + 1] = people[i]:read(LONG, pump):match "^%d (.*)$"
        end
      end
      assert.equal(2, #told)
      assert.equal(told[1], told[2])
      if (told[1] .. " "):find("p" .. count .. " ", 1, true) then
        assert.equal(told[1],
                     people[victim]:read(LONG, pump):match "^%d (.*)$")
      else                              -- they had met before; it waits
        people[victim]:kill()
        people[victim] = start()
      end
    end
  end)

  -- A registry in this process, which fails to take places in these ways first.
  local function failing(kinds)
    local held, registry = {}, {}
    function registry:hold(entry)
      local kind = entry.kind == "rendezvous" and table.remove(kinds)
      if kind then return nil, kind, "it is away" end
      if held[entry.name] then return nil, "name_taken" end
      held[entry.name] = entry
      return entry.name
    end
    function registry:release(name) held[name] = nil end
    function registry:lookup(_, name) return held[name] end
    function registry:renew(name, entry)
      held[name] = entry or held[name]
      return true
    end
    function registry:list(_, filter)
      local list = {}
      for name, entry in pairs(held) do
        if name:find(filter.prefix, 1, true) == 1 then
          list[#list + 1] = entry
        end
      end
      table.sort(list, function(a, b) return a.name < b.name end)
      return list
    end
    return registry
  end

  it("goes on after its registry was away", function()
    local away = { "not_found", "peer_lost", "timeout", "no_memory" }
    local one = assert(cases.agent("one", { registry = failing(away) }))
    local rank, names = one:rendezvous("alone", 1, LONG)
    assert.equal(0, rank, tostring(names))
    assert.same({ "one" }, names)
    assert.same({}, away)
  end)

  it("takes the longest key, of as many as there may be", function()
    local one = assert(cases.agent "one")
    assert.equal(0, (assert(one:rendezvous(("k"):rep(40), 1, LONG))))
    local none, err = one:rendezvous(("k"):rep(40), 65536, 0.1)
    assert.is_nil(none)
    assert.equal("timeout", err.kind, tostring(err))
  end)

  it("is asked for in the right way", function()
    local one = assert(cases.agent "one")
    for _, wrong in ipairs { { 7, 2 }, { "a/b", 2 }, { ("k"):rep(41), 2 },
                             { "k", 0 }, { "k", 1.5 }, { "k", 2, -1 } } do
      local fine, why = pcall(one.rendezvous, one, unpack(wrong))
      assert.is_false(fine)
      assert.matches("rendezvous'", why)
    end
    assert.is_false(pcall(one.mesh, one, { 7 }))
    assert.is_false(pcall(one.mesh, one, "worker"))
    local rank, names = one:rendezvous("alone", 1, 5)
    assert.equal(0, rank)
    assert.same({ "one" }, names)
  end)
end)
