-- SPDX-License-Identifier: Apache-2.0
-- The guarantees for names, with each registry: the folder of this host, one
-- that a program gives, and a server.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local person, pump = backends.person, cases.pump

local function tell(child, line, answer)
  child:tell(line)
  if not answer then return child:read(30 * cases.slow, pump) end
  child:expect(answer, 30 * cases.slow, pump)
  return child
end

for _, where in ipairs(backends.all) do
  describe("a name in a registry that is a " .. where, function()
    local registry

    before_each(function() registry = backends.start(where) end)
    after_each(cases.cleanup)

    local function start()
      return process.start(person, where):expect("ready", 30 * cases.slow, pump)
    end

    local function take(name, options)
      return backends.take(registry, name, options)
    end

    local function refused(name)
      local none, err = take(name)
      assert.is_nil(none)
      assert.equal("name_taken", err.kind, tostring(err))
      assert.matches(name, tostring(err), 1, true)
    end

    -- The folder notices a dead holder at once, other registries soon.
    local function free(name)
      local agent
      assert.is_true(cases.eventually(function()
        agent = take(name)
        return agent
      end))
      return agent
    end

    it("is refused while another has it, and free when that is closed",
       function()
      local one = assert(take "one")
      for _ = 1, 5 do refused "one" end
      local child = tell(start(), "hold one", "name_taken")
      one:close()
      one = assert(take "one")
      one:close()
      tell(child, "hold one", "yes")
      refused "one"
      tell(child, "close", "closed")
      free "one"
    end)

    it("is free when its holder was killed", function()
      for _ = 1, 3 do
        local child = tell(start(), "hold mortal", "yes")
        refused "mortal"
        child:kill()
        free("mortal"):close()
      end
    end)

    it("is not free while its holder is stopped", function()
      local child = tell(start(), "hold stopped", "yes")
      child:signal "STOP"
      refused "stopped"
      child:signal "CONT"
    end)

    it("is given to one of two who race for it", function()
      local one, two = start(), start()
      local rounds = math.max(10, math.floor(300 * cases.scale))
      for round = 1, rounds do
        local name = round % 3 == 0 and "same" or "race" .. round
        one:tell("hold " .. name)
        two:tell("hold " .. name)
        local got = { one:read(30, pump), two:read(30, pump) }
        table.sort(got)
        assert.same({ "name_taken", "yes" }, got)
        tell(one, "close", "closed")
        tell(two, "close", "closed")
        if where == "board" then free(name):close() end
      end
    end)

    -- The board learns of a death when the name's time is over.
    it("of the dead is given to one of two who race for it", function()
      if where == "board" then return end
      local one, two = start(), start()
      for round = 1, math.max(5, math.floor(300 * cases.scale)) do
        local name = "left" .. round
        tell(start(), "hold " .. name, "yes"):kill()
        one:tell("hold " .. name)
        two:tell("hold " .. name)
        local got = { one:read(30 * cases.slow, pump),
                      two:read(30 * cases.slow, pump) }
        table.sort(got)
        assert.same({ "name_taken", "yes" }, got)
        tell(one, "close", "closed")
        tell(two, "close", "closed")
      end
    end)

    it("is another in another scope", function()
      local one = assert(take "one")
      local two = assert(take("one", { scope = cases.scope .. "-2" }))
      assert.equal("not_found", select(2, take("three",
        { scope = cases.scope .. "-3" }):session "one").kind)
      local three = assert(take("three", { scope = two.scope }))
      assert.equal(assert(three:session "one").epoch,
                   assert(two:session "one").epoch)
      one:close()
    end)

    it("that nobody gave is had by many", function()
      local names = {}
      for _ = 1, 20 do
        local agent = assert(take())
        assert.is_nil(names[agent.name])
        names[agent.name] = true
      end
    end)

    it("is found by others, if there is one", function()
      tell(start(), "hold one", "yes")
      local agent = assert(take())
      for _ = 1, 3 do
        local none, err = agent:session("nobody", { timeout = 5 })
        assert.is_nil(none)
        assert.equal("not_found", err.kind)
        assert.is_false(err.sent)
        assert.matches(("^connecting to nobody: no agent of that name is in "
          .. "scope %s %%(asked: [^:()]+.*%%)$"):format(cases.scope),
          tostring(err))
      end
      assert.equal(7, assert(agent:proxy("one", "x")):same(7))
      tell(tell(start(), "hold two", "yes"), "call one", "yes")
    end)

    it("of one who listens elsewhere too is found on this host", function()
      local one = assert(take("one", { listen = "tcp://127.0.0.1:0" }))
      assert.equal(1, #one.addresses)
      local session = assert(assert(take()):session "one")
      assert.equal(one.address, session.address)
    end)

    it("that came back elsewhere is found by the proxies that there are",
       function()
      local child = tell(tell(start(), "hold one", "yes"), "share", "yes")
      local agent = assert(take())
      local proxy = assert(agent:proxy("one", "x", { reconnect = 60,
                                                     timeout = 60 }))
      local kept = assert(agent:session("one", { keep = true,
                                                 reconnect = 60 }))
      for _ = 1, 2 do
        local before = perigee.session(proxy)
        assert.equal(7, proxy:same(7))
        assert(kept:region "kv")
        child:kill()
        before:ended():wait(20 * cases.slow)
        local call = perigee.spawn(function() return proxy:same(8) end)
        child = start()
        while tell(child, "hold one") ~= "yes" do perigee.sleep(0.01) end
        tell(child, "share", "yes")
        assert.equal(8, (call:wait(60)))
        local session = assert(kept:session(60))
        assert.is_not.equal(before.epoch, session.epoch)
        assert.equal(where:find "folder" ~= nil,
                     before.address == session.address)
        assert(kept:region "kv")
      end
    end)

    it("leaves no socket behind when it is given up", function()
      for i = 1, 5 do
        assert(take("name" .. i, { listen = "tcp://127.0.0.1:0" })):close()
      end
      refused(assert(take "name").name)
      local pipe = io.popen(("find '%s' -name '*name*.sock'"):format(
        cases.folder))
      local text = pipe:read "*a"
      pipe:close()
      assert.is_nil(text:find "name%d")
    end)
  end)
end
