-- SPDX-License-Identifier: Apache-2.0
-- The view that handlers have of a store that several control servers share.
local cases = require "spec.support.cases"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local redis = require "spec.support.redis"

needing("a view of a shared store", { redis }, function()
  local stores = require "perigee.control.redis"
  local views = require "perigee.control.view"
  local store

  local function in_task(f)
    local done = perigee.spawn(function()
      f()
      return true
    end)
    assert(done:wait(60 * cases.slow))
  end

  before_each(function()
    cases.engine()
    redis.start()
    store = assert(stores.open(redis.address(cases, "&ttl=60")))
  end)
  after_each(function()
    store:close()
    cases.cleanup()
  end)

  local function entity(name)
    return ('{"name":"%s","kind":"k"'):format(name), { name = name, kind = "k" }
  end

  -- Runs f until it has been told all that it asks for; how often it ran.
  local function run(view, f)
    local runs = 0
    repeat
      runs = runs + 1
      local ended = view:try(f)
      if not ended then assert(view:read()) end
    until ended
    return runs
  end

  local function write(view, name)
    return run(view, function()
      local text, value = entity(name)
      if not view:find("s", "entities", name) then
        view:put("s", "entities", name, text, 0, value)
      end
    end)
  end

  it("runs a handler again that asks for what was not read", function()
    in_task(function()
      local view = views.new(store, {})
      assert.equal(2, write(view, "a"))
      assert.is_true((view:commit()))
      local found = {}
      view = views.new(store, {})
      assert.equal(3, run(view, function()
        found.a = view:find("s", "entities", "a")
        found.b = view:find("s", "entities", found.a and "b" or "x")
      end))
      assert.equal("k", found.a.kind)
      assert.is_nil(found.b)
    end)
  end)

  it("forgets what a handler wrote before it asked for more", function()
    in_task(function()
      local view, before = views.new(store, {}), {}
      run(view, function()
        local text, value = entity "a"
        before[#before + 1] = view:find("s", "entities", "a") or false
        view:put("s", "entities", "a", text, 0, value)
        view:find("s", "entities", "b")
      end)
      assert.same({ false, false }, before)
      assert.is_true((view:commit()))
      assert.is_true(view:has_written())
    end)
  end)

  it("shows a handler what those before it have written", function()
    in_task(function()
      local view, seen = views.new(store, {}), nil
      write(view, "a")
      run(view, function() seen = view:find("s", "entities", "a") end)
      assert.equal("k", seen.kind)
      run(view, function() view:remove(view:find("s", "entities", "a")) end)
      run(view, function() seen = view:find("s", "entities", "a") end)
      assert.is_nil(seen)
      assert.is_true((view:commit()))
    end)
  end)

  it("writes nothing over what another has written meanwhile", function()
    in_task(function()
      local one, two = views.new(store, {}), views.new(store, {})
      write(one, "a")
      write(two, "a")
      assert.is_true((one:commit()))
      assert.is_false((two:commit()))
    end)
  end)

  it("renews no name that another has taken meanwhile for less than its time",
     function()
    local keys = require "perigee.registry.redis.keys"
    in_task(function()
      local function ask(...) return store.connection:ask({ { ... } })[1] end
      local function renew(name, text)
        return store:write { { space = "s", name = name, renew = true, ttl = 1,
                               cell = { text = text } } }
      end
      for name, more in pairs { long = { "PX", 3600000 }, kept = {} } do
        local key = keys.name("s", name)
        ask("SET", key, "mine", "PX", 1000)
        assert.is_true((renew(name, "mine")))
        ask("SET", key, "another's", unpack(more))
        assert.is_false((renew(name, "mine")))
        local left = ask("PTTL", key)
        assert.is_true(more[1] and left > 1800000 or left == -1,
                       ("%s has %d ms left"):format(name, left))
      end
    end)
  end)

  it("forgets what a handler wrote that failed then", function()
    local asked = require "perigee.control.asked"
    in_task(function()
      local view, call = views.new(store, {}), {}
      run(view, function()
        asked.step(call, function()
          local text, value = entity "a"
          view:put("s", "entities", "a", text, 0, value)
          error "made up"
        end)
        return call
      end)
      assert.equal(500, call.status)
      assert.is_false(view:has_written())
      write(view, "a")
      assert.is_true((view:commit()))
    end)
  end)

  it("raises what a handler raises", function()
    in_task(function()
      local view = views.new(store, {})
      assert.has_error(function()
        view:try(function() error("odd", 0) end)
      end, "odd")
    end)
  end)
end)
