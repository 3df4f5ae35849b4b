-- SPDX-License-Identifier: Apache-2.0
-- What registries may cost those who use them: ones that answer at once and
-- always, or never; many changes; and holders that only seem to be here.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local entries = require "perigee.registry.entry"
local futures = require "perigee.runtime.future"
local machine = require "perigee.registry.machine"
local perigee = require "perigee"
local process = require "spec.support.process"

describe("a registry", function()
  local names, registry

  before_each(function()
    names, registry = {}, {}
    function registry:hold(entry, over)
      local other = names[entry.name]
      if other and other.epoch ~= over then
        return nil, "name_taken", "another", other
      end
      names[entry.name] = entry
      return entry
    end
    function registry:release(entry) names[entry.name] = nil end
    function registry:lookup(_, name) return names[name] end
  end)
  after_each(cases.cleanup)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  -- The number of questions, and the milliseconds that they took.
  local function asked_in(seconds, answer)
    local asked = 0
    function registry:watch(...)
      asked = asked + 1
      return answer(...)
    end
    local one = assert(take "one")
    local watch = assert(one:watch({}, function() end))
    local began = process.now()
    repeat perigee.sleep(0) until process.now() > began + seconds
    watch:close()
    return asked, (process.now() - began) * 1e3
  end

  local function entry(n)
    return { name = "x", addresses = { "tcp://a:1" }, metadata = { n } }
  end

  for what, answer in pairs {
    ["no revision"] = function() return { entries = { entry(1) } } end,
    ["no changes"] = function()
      return { revision = "1", entries = { entry(1) } }
    end,
    ["no changes, by a future"] = function()
      return perigee.spawn(function()
        return { revision = "1", entries = { entry(1) } }
      end)
    end,
    ["that there was no time"] = function() return nil, "timeout" end,
    ["another change each time"] = function()
      return { revision = "1", entries = { entry(math.random()) } }
    end,
  } do
    it("that is watched and answers at once " .. what .. " leaves the loop to "
      .. "others", function()
      local asked, milliseconds = asked_in(0.2, answer)
      assert.is_true(asked < milliseconds + 10, asked)
    end)
  end

  -- Has a registry tell, as soon as it is asked, of a hundred lives of a name.
  local function tell_of_lives()
    local life = 0
    function registry:watch()
      local list = {}
      for i = 1, 100 do
        life = life + 1
        list[i] = { name = "x", entry = { name = "x", epoch = "e" .. life,
                                          addresses = { "tcp://a:1" } } }
      end
      return { revision = tostring(life), changes = list }
    end
    return function() return life end
  end

  it("is asked no more for a loop over a watch that was left", function()
    local lives = tell_of_lives()
    local one = assert(take "one")
    local left = setmetatable({}, { __mode = "k" })
    local function leave()
      local watch = assert(one:watch {})
      left[watch] = true
      assert.equal("up", watch().kind)
    end
    leave()
    local before
    assert.is_true(cases.eventually(function()
      before = lives()
      perigee.sleep(0.2)
      return lives() == before
    end), "it is asked on and on")
    assert.is_true(before < 2000, before)
    collectgarbage()
    collectgarbage()
    assert.is_nil(next(left), "the watch is kept")
  end)

  it("is asked again for a loop over a watch that goes on late", function()
    local lives = tell_of_lives()
    local one = assert(take "one")
    local watch = assert(one:watch {})
    assert.is_true(cases.eventually(function() return watch.full end))
    local last, seen = "e" .. lives() + 1, 0
    local reading = perigee.spawn(function()
      for change in watch do
        seen = seen + 1
        if change.kind == "up" and change.entry.epoch == last then
          return seen
        end
      end
    end)
    assert.equal(2 * tonumber(last:sub(2)) - 1, (reading:wait(20 * cases.slow)))
    watch:close()
  end)

  it("that tells of many names has each moved a few times at most", function()
    local count, moved, got = 2000, 0, 0
    local list = {}
    for i = 1, count do
      list[i] = { name = "w" .. i, addresses = { "tcp://a:1" } }
    end
    function registry.watch(_, _, filter)
      if filter.from then return perigee.spawn(perigee.sleep, 60) end
      return { revision = "1", entries = list }
    end
    local one = assert(take "one")
    local remove = table.remove
    finally(function() table.remove = remove end) -- luacheck: ignore
    function table.remove(t, at) -- luacheck: ignore
      moved = moved + #t - (at or #t)
      return remove(t, at)
    end
    assert(one:watch({}, function() got = got + 1 end))
    assert.is_true(cases.eventually(function() return got == count end))
    assert.is_true(moved < 10 * count, moved)
  end)

  it("that does not answer a renewal is asked again in time", function()
    local renewed = {}
    registry.ttl = 0.2
    function registry.renew()
      renewed[#renewed + 1] = futures.new(false, "a registry")
      if #renewed == 3 then return nil, "name_taken" end
      return renewed[#renewed]
    end
    local one = assert(take "one")
    assert.is_true(cases.eventually(function() return one.lease.over end))
    assert.equal("cancelled", select(2, renewed[1]:wait(0)).kind)
    perigee.sleep(0.3)
    assert.equal(3, #renewed)
  end)

  it("that has a holder on a host of the same name keeps the holder's name",
     function()
    local one = assert(take "one")
    local mine = names.one.machine
    assert.equal(machine.identity(), mine)
    local other = {}
    for key, value in pairs(names.one) do other[key] = value end
    other.epoch = "0123456789abcdef"
    for _, elsewhere in ipairs { mine .. "0", false } do
      for _, address in ipairs { one.address, "tcp://127.0.0.1:1" } do
        other.machine, other.addresses = elsewhere or nil, { address }
        names.two = other
        local none, err = take "two"
        assert.is_nil(none)
        assert.equal("name_taken", err.kind)
      end
    end
    other.machine = mine
    assert(take "two")
  end)

  it("tells no terms that cannot be: without end, or less than 0", function()
    local function told(term)
      return entries.trusted({ name = "x", scope = "s", addresses = { "a" },
                               term = term }, "s", "x").term
    end
    for _, term in ipairs { -1, 0 / 0, math.huge } do
      assert.is_nil(told(term))
    end
    assert.equal(2, told(2))
  end)
end)
