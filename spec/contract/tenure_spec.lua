-- SPDX-License-Identifier: Apache-2.0
-- The end of a name whose holder cannot renew it, with each store of names that
-- has a ttl.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local stores = require "spec.hostile.stores"

local await, slow = cases.await, cases.slow

local NAMED = { services = { { name = "who", methods = {
  am_i = function() return perigee.context().session.engine.agent.address end,
  -- Has its caller asked who that is, by the caller's session.
  are_you = function()
    local who = assert(perigee.context():proxy("who", { timeout = 5 }))
    return who:am_i()
  end,
  wait = function(seconds)
    perigee.sleep(seconds)
    return "waited"
  end,
} } } }

for _, where in ipairs(stores.quick) do
  if stores.all[where].ttl then
  describe("a name in " .. where .. " that is not renewed", function()
    local store, server = stores.all[where], nil
    local log

    before_each(function()
      server = store.start()
      log, perigee.log = perigee.log, function() end
    end)
    after_each(function()
      for _, each in ipairs(server:processes()) do
        (each.process or each):signal "CONT"
      end
      cases.cleanup()
      perigee.log = log
    end)

    local function signal(name)
      for _, each in ipairs(server:processes()) do
        (each.process or each):signal(name)
      end
    end

    local function take(name, options, place)
      options = options or {}
      options.registry = store.address(server, place)
      return assert(cases.agent(name, options))
    end

    local function calls(agent, name, timeout)
      return agent:proxy(name, "who", { timeout = (timeout or 30) * slow })
    end

    -- Has f called with each end; returns the list of errors.
    local function ends(agent)
      local list = {}
      agent:on_lost(function(err) list[#list + 1] = err end)
      return list
    end

    it("is lost for its holder before it can be another's, and comes back",
       function()
      local one, two = take("one", NAMED), take "two"
      local told, other = ends(one), ends(one)
      local who = assert(calls(two, "one"))
      local term = two:lookup("one").term
      assert.is_true(one.held)
      assert.equal(one.address, who:am_i())
      signal "STOP"
      await(function() return not one.held end)
      await(function() return told[1] and other[1] end)
      assert.matches("the name one .* is lost", tostring(told[1]))
      local address, err = who:with { timeout = 0.1, reconnect = 0 }:am_i()
      assert.is_nil(address)
      assert.is_false(err.sent)
      local late = ends(one)
      await(function() return late[1] end)
      signal "CONT"
      assert.equal(one.address, assert(who:am_i()))
      await(function() return one.held end)
      await(function()
        local entry = two:lookup "one"
        return entry and entry.term > term and entry.state == "up"
      end)
      assert.same({ 1, 1, 1 }, { #told, #other, #late })
    end)

    it("that came back is served in all sessions, and beside long calls",
       function()
      local one, two = take("one", NAMED), take("two", NAMED)
      local back = assert(calls(one, "two"))
      local who = assert(calls(two, "one"))
      assert.equal(one.address, back:are_you())
      local long = who:with { timeout = math.huge }.async:wait(600)
      signal "STOP"
      await(function() return not one.held and not two.held end)
      signal "CONT"
      await(function() return one.held and two.held end)
      await(function() return back:are_you() == one.address end)
      await(function()
        return who:with { timeout = 5 * slow }:am_i() == one.address
      end)
      assert.is_false(long:done())
      local term = two:lookup("one").term
      assert.equal(one.address, assert(who:with { term = term }:am_i()))
      long:cancel()
    end)

    it("serves nobody once another has it, who can be told by its term",
       function()
      local way = stores.way(server.place)
      local one, asking = take("one", NAMED, way.place), take "asking"
      local told, who = ends(one), assert(calls(asking, "one"))
      local before = asking:lookup("one").term
      assert.equal(one.address, who:am_i())
      way:signal "STOP"
      local two
      await(function()
        two = cases.agent("one", { services = NAMED.services,
                                   registry = store.address(server) })
        return two
      end)
      assert.is_false(one.held)
      assert.equal(1, #told)
      assert.is_true(two.held)
      assert.equal(two.address, who:am_i())
      local term = asking:lookup("one").term
      assert.is_true(term > before)
      local fenced = who:with { term = term }
      assert.equal(two.address, fenced:am_i())
      local fresh = take "fresh"
      local direct = assert(calls(fresh, one.address, 1))
      local _, err = direct:with { term = term, reconnect = 0 }:am_i()
      assert.equal("stale", err.kind, tostring(err))
      _, err = who:with { term = term + 1, reconnect = 0.1 }:am_i()
      assert.equal("stale", err.kind, tostring(err))
      way:signal "CONT"
      await(function() return one.taken.ended end)
      assert.is_false(one.held)
      assert.equal(1, #told)
    end)
  end)
  end
end
