-- SPDX-License-Identifier: Apache-2.0
-- What registries of each kind tell about the names that they hold: lists,
-- look-ups, watches, and what agents publish about themselves.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local names, watched = backends.names_in, backends.watched

for _, where in ipairs(backends.all) do
  describe("a registry that is a " .. where, function()
    local registry

    before_each(function() registry = backends.start(where) end)
    after_each(cases.cleanup)

    local function take(name, options)
      return assert(backends.take(registry, name, options))
    end

    local function expect(told, ...)
      local wanted = { ... }
      cases.eventually(function() return #told >= #wanted end)
      assert.same(wanted, told)
    end

    it("has metadata as it was given", function()
      local deep = {}
      for _ = 1, 22 do deep = { deep } end
      for i, given in ipairs {
        { at = 1732567890123456, most = 2 ^ 53, part = 0.1, less = -1e-300,
          third = 1 / 3, huge = 1e300 },
        { list = { 1, "two", { three = true } }, text = "\0\195\164\n%" },
        { deep = deep },
      } do
        take("m" .. i, { metadata = given })
        assert.same(given, assert(take():lookup("m" .. i)).metadata)
      end
    end)

    it("numbers each taking of a name", function()
      local asking, last = take(), 0
      for _ = 1, 3 do
        local one = take "numbered"
        local term = assert(asking:lookup "numbered").term
        if where == "board" then return assert.is_nil(term) end
        assert.is_true(term > last)
        one:serve { name = "x", methods = {} }
        assert.is_true(cases.eventually(function()
          return asking:lookup("numbered").services.x
        end))
        assert.equal(term, asking:lookup("numbered").term)
        last = term
        one:close()
      end
    end)

    it("tells of an agent what it was made with and what it has", function()
      local one = take("one", { listen = "tcp://127.0.0.1:0", kind = "worker",
                                metadata = { rank = 7, text = "\0%s\n" },
                                weight = 2.5 })
      local two = take()
      local entry = assert(two:lookup "one")
      local addresses = { one.address, one.addresses[1] }
      assert.same({ "one", cases.scope, "worker", "up", 2.5 },
                  { entry.name, entry.scope, entry.kind, entry.state,
                    entry.weight })
      assert.same(addresses, entry.addresses)
      assert.same({ rank = 7, text = "\0%s\n" }, entry.metadata)
      assert.equal(process.pid(), entry.pid)
      assert.is_true(#entry.host > 0)
      assert.equal(assert(two:session "one").epoch, entry.epoch)
      assert.is_true(entry.since >= 0 and entry.since < 60)
      assert.same({}, entry.regions)
      one:serve { name = "x", version = 3, methods = {} }
      local kv = one.engine:alloc(8192, { name = "kv", access = "rw" })
      assert.is_true(cases.eventually(function()
        entry = assert(two:lookup "one")
        return entry.services.x == 3 and entry.regions.kv
      end))
      assert.same({ kv = { length = 8192, access = "rw" } },
                  assert(two:regions "one"))
      kv:close()
      assert.is_true(cases.eventually(function()
        return next(assert(two:regions "one")) == nil
      end))
      for _, f in ipairs { "lookup", "regions" } do
        local none, err = two[f](two, "nobody")
        assert.is_nil(none)
        assert.equal("not_found", err.kind)
        assert.matches("nobody", tostring(err))
      end
    end)

    -- The same registry, in which names last longer than a spec.
    local function lasting()
      return type(registry) == "string"
        and (registry:gsub("ttl=[%d.]+", "ttl=" .. 600 * cases.slow))
        or registry
    end

    local function mortal(child, perigee_, _, from, listen, address)
      local registry_ = address ~= "nil" and address
        or require("spec.support.backends").registry(from, child.cases)
      local agent = assert(child.cases.agent("mortal", {
        registry = registry_, listen = listen ~= "nil" and listen or nil }))
      child.say "ready"
      for word in child.attend do
        if word == "leave" then
          while not agent:sessions()[1] do perigee_.sleep(0.001) end
          for _, session in ipairs(agent:sessions()) do session:close() end
        else
          local session = assert(agent:session "watcher")
          perigee_.kept = session
        end
        child.say "done"
      end
    end

    -- Starts one that can be killed, and who watches it.
    local function watch_mortal(address, listen)
      local one = process.start(mortal, where, listen or "nil",
        type(address) == "string" and address or "nil")
        :expect("ready", 30 * cases.slow, cases.pump)
      local watcher = take("watcher", { registry = address })
      local told, _, watch = watched(watcher, { prefix = "mortal" })
      cases.await(function() return #told == 1 end)
      return one, watcher, told, watch
    end

    for who, begin in pairs {
      ["who has a session with it"] = function(_, watcher)
        assert(watcher:session "mortal")
      end,
      ["whom it has a session with"] = function(one)
        one:tell "dial"
        one:expect("done", 30 * cases.slow, cases.pump)
      end,
    } do
      it("tells a death at once to " .. who, function()
        local one, watcher, told = watch_mortal(lasting(), "tcp://127.0.0.1:0")
        begin(one, watcher)
        one:kill()
        if where == "board" then return end -- it says how long names last
        cases.await(function() return #told == 2 end)
        assert.same({ "up mortal", "down mortal" }, told)
      end)
    end

    it("tells no death of who has left a session, or was taken for dead",
       function()
      local one, watcher, told, watch = watch_mortal(lasting())
      for _ = 1, 3 do
        local session = assert(watcher:session "mortal")
        one:tell "leave"
        one:expect("done", 30 * cases.slow, cases.pump)
        assert.is_true(cases.eventually(function()
          return session:ended():done() and not next(watcher.doubted)
        end))
      end
      assert.same({ "up mortal" }, told)
      watch:bury(watch.known.mortal)
      assert(watcher:session "mortal")
      watch:restore(assert(watcher:lookup "mortal"))
      cases.await(function() return #told == 3 end)
      assert.same({ "up mortal", "down mortal", "up mortal" }, told)
    end)

    it("tells who was taken for dead, and has its name after a TTL, as up",
       function()
      if not where:find "^[Rec]" then return end -- others have no TTL, or tell
      local one, watcher, told, watch = watch_mortal(registry)
      local socket = watch.known.mortal.addresses[1]:match "^unix:(.*)"
      assert(watcher:session "mortal")
      assert(os.rename(socket, socket .. "x"))
      one:tell "leave"
      one:expect("done", 30 * cases.slow, cases.pump)
      cases.await(function() return #told == 2 end)
      assert(os.rename(socket .. "x", socket))
      cases.await(function() return #told == 3 end)
      assert.same({ "up mortal", "down mortal", "up mortal" }, told)
    end)

    it("lists names in order, by what is asked for, page by page", function()
      for i = 1, 5 do
        take("w:" .. i, { kind = i % 2 == 0 and "even" or nil })
      end
      local one = take("a")
      local hidden = take()
      one:serve { name = "x", methods = {} }
      assert.equal("a w:1 w:2 w:3 w:4 w:5", names(one:list()))
      assert.equal("w:1 w:2 w:3 w:4 w:5", names(one:list { prefix = "w:" }))
      assert.equal("w:2 w:4", names(one:list { kind = "even" }))
      assert.is_true(cases.eventually(function()
        return names(one:list { service = "x" }) == "a"
      end))
      assert.equal("", names(one:list { service = "y" }))
      assert.equal("a w:1", names(one:list { limit = 2 }))
      assert.equal("w:2 w:3", names(one:list { limit = 2, after = "w:1" }))
      assert.equal("", names(one:list { after = "w:5" }))
      assert.equal(hidden.name, names(one:list { prefix = hidden.name }))
      local far = take("far", { scope = cases.scope .. "-2" })
      assert.equal("far", names(far:list()))
    end)

    it("tells who watches of what is there and of what comes and goes",
       function()
      take "one"
      local watcher = take "watcher"
      local told, entries, watch = watched(watcher, { prefix = "" })
      expect(told, "up one", "up watcher")
      local two = take "two"
      expect(told, "up one", "up watcher", "up two")
      two:serve { name = "x", version = 2, methods = {} }
      expect(told, "up one", "up watcher", "up two", "changed two")
      assert.equal(2, entries[4].services.x)
      two:close()
      expect(told, "up one", "up watcher", "up two", "changed two", "down two")
      watch:close()
      watch:close()
      take "three"
      perigee.sleep(0.05)
      assert.equal(5, #told)
    end)

    it("tells who watches only of what it asks for", function()
      local watcher = take "watcher"
      local of_kind = watched(watcher, { kind = "odd" })
      local of_prefix = watched(watcher, { prefix = "w:" })
      local of_service = watched(watcher, { service = "x" })
      local odd = take("odd", { kind = "odd" })
      expect(of_kind, "up odd")
      local worker = take "w:1"
      expect(of_prefix, "up w:1")
      worker:serve { name = "x", methods = {} }
      expect(of_service, "up w:1")
      expect(of_prefix, "up w:1", "changed w:1")
      odd:close()
      worker:close()
      expect(of_kind, "up odd", "down odd")
      expect(of_service, "up w:1", "down w:1")
      expect(of_prefix, "up w:1", "changed w:1", "down w:1")
    end)

    it("tells who watches of a holder that was killed, and of its next life",
       function()
      local watcher = take "watcher"
      local told, entries = watched(watcher, { kind = "person" })
      local function start()
        return process.start(backends.person, where):expect("ready", nil,
                                                            cases.pump)
      end
      local child = start()
      child:tell("hold mortal")
      expect(told, "up mortal")
      child:kill()
      expect(told, "up mortal", "down mortal")
      local next_life = start()
      next_life:tell("hold mortal")
      expect(told, "up mortal", "down mortal", "up mortal")
      assert.is_not.equal(entries[1].epoch, entries[3].epoch)
      assert.equal(next_life.pid, entries[3].pid)
    end)

    it("is watched by a loop, too, until that is closed", function()
      local watcher = take "watcher"
      local watch = assert(watcher:watch { prefix = "w:" })
      local got = perigee.spawn(function()
        local text = {}
        for change in watch do
          text[#text + 1] = change.kind .. " " .. change.entry.name
        end
        return table.concat(text, ", ")
      end)
      local worker = take "w:1"
      assert.is_true(cases.eventually(function() return watch.known["w:1"] end))
      worker:close()
      assert.is_true(cases.eventually(function()
        return not watch.known["w:1"]
      end))
      perigee.sleep(0.001)
      watcher:close()
      assert.equal("up w:1, down w:1", (got:wait(20 * cases.slow)))
    end)

    it("goes on telling after what it is told to has raised or waits",
       function()
      local watcher = take "watcher"
      local told = {}
      assert(watcher:watch({ prefix = "w:" }, function(change)
        perigee.sleep(0.001)
        told[#told + 1] = change.entry.name
        error("on purpose")
      end))
      for i = 1, 4 do take("w:" .. i) end
      cases.eventually(function() return #told == 4 end)
      assert.same({ "w:1", "w:2", "w:3", "w:4" }, told)
    end)

    it("is watched by many at once", function()
      local watchers, told = {}, {}
      for i = 1, 10 do
        watchers[i] = take()
        told[i] = watched(watchers[i], { prefix = "w:" })
      end
      for i = 1, 3 do take("w:" .. i) end
      for i = 1, 10 do expect(told[i], "up w:1", "up w:2", "up w:3") end
    end)
  end)
end
