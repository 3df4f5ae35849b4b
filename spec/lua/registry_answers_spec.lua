-- SPDX-License-Identifier: Apache-2.0
-- Registries that a program gives, and that fail, wait, never answer or return
-- nonsense.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local futures = require "perigee.runtime.future"
local perigee = require "perigee"
local registries = require "perigee.registry"
local tables = require "spec.support.table_registry"

local sockets, wrong = tables.sockets, tables.wrong

describe("a registry", function()
  local names, registry, asked

  before_each(function() registry, names, asked = tables.new() end)
  after_each(tables.finish)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  local function later(name) return tables.later(registry, name) end

  for how, f in pairs {
    ["nothing"] = function() return nil end,
    ["a kind"] = function() return nil, "name_taken" end,
    ["a kind and why"] = function() return nil, "name_taken", "by me" end,
    ["an error"] = function()
      return nil, require "perigee.runtime.errors".new("name_taken", "by me")
    end,
    ["a future"] = function() return futures.done(nil, "name_taken") end,
    ["a task's future"] = function()
      return perigee.spawn(function()
        perigee.sleep(0.001)
        return nil, "name_taken", "by me"
      end)
    end,
  } do
    it("refuses a name by " .. how, function()
      registry.hold = f
      wrong("name_taken", "taking the name one in scope " .. cases.scope,
            take "one")
      assert.equal(0, asked.release)
      assert.equal("", sockets())
    end)
  end

  for how, f in pairs {
    ["raises"] = function() error("on purpose") end,
    ["raises a table"] = function() error({}) end,
    ["waits"] = function() perigee.sleep(1) end,
    ["fails in words of its own"] = function() return nil, "no luck" end,
    ["fails in no words"] = function() return nil, 7 end,
    ["raises later"] = function()
      local future = futures.new(false, "a registry")
      futures.raise(future, "on purpose")
      return future
    end,
  } do
    it("that " .. how .. " is an error", function()
      local two = assert(take "two")
      registry.hold, registry.lookup = f, f
      wrong("protocol", "taking the name one", take "one")
      wrong("protocol", "connecting to two", two:session "two")
      registry.release = f
      two:close()
      assert.equal("", sockets())
    end)
  end

  it("that tells nonsense is an error", function()
    local two = assert(take())
    for _, junk in ipairs { 7, "unix:/x", true, {}, { addresses = "unix:/x" },
                            { addresses = {} }, { addresses = { 7 } },
                            { addresses = { {} } } } do
      names.junk = junk
      wrong("protocol", "connecting to junk: what the registry has of it is no "
        .. "entry", two:session "junk")
    end
    for address, kind in pairs {
      nonsense = "unsupported", [""] = "unsupported", ["ftp://a:1"] =
      "unsupported", ["%s%n"] = "unsupported", ["unix:"] = "protocol",
      ["tcp://"] = "protocol", ["tcp://a"] = "protocol",
      ["tcp://a:x"] = "protocol", ["unix:/" .. ("x"):rep(200)] = "too_large",
    } do
      names.junk = { addresses = { address } }
      wrong(kind, "connecting to junk: ", two:session "junk")
    end
    names.junk = false
    wrong("not_found", "no agent of that name", two:session "junk")
  end)

  it("may answer later", function()
    local answer = later "hold"
    local entry
    perigee.spawn(function()
      perigee.sleep(0.001)
      entry = { name = "one", scope = cases.scope, addresses = {} }
      answer(entry)
    end)
    local one = assert(take "one")
    assert.equal(entry, names.one)
    entry.addresses[1] = one.address
    local found = later "lookup"
    perigee.spawn(function()
      perigee.sleep(0.001)
      found(cases.scope, "one")
    end)
    registry.hold = function() return true end
    registry.release = function() end
    local two = assert(take())
    local waits = {}
    for i = 1, 5 do
      waits[i] = perigee.spawn(function() return two:session("one") end)
    end
    assert.is_true(perigee.wait_all(waits, 10))
    for i = 2, 5 do assert.equal(waits[1]:wait(), waits[i]:wait()) end
    assert.equal(1, asked.lookup)
  end)

  it("that never answers has its time", function()
    local two = assert(take())
    local _, given = later "lookup"
    wrong("timeout", "its registry has not answered in time",
          two:session("one", { timeout = 0.01 }))
    wrong("cancelled", nil, (function()
      local got, err = given:wait(1)
      err.sent = false
      return got, err
    end)())
    registries.patience = 0.01
    _, given = later "hold"
    wrong("timeout", "taking the name one in scope " .. cases.scope
      .. ": the registry has not answered within 0.01 s", take "one")
    assert.is_true(given:done())
    registry.release = function() end
    two:close()
    assert.equal("", sockets())
  end)

  it("does not keep an agent from being closed", function()
    local two = assert(take())
    later "lookup"
    local waiting = perigee.spawn(function() return two:session("one") end)
    local kept = perigee.spawn(function()
      return two:proxy("one", "x", { timeout = 30 })
    end)
    perigee.sleep(0.001)
    two:close()
    wrong("closed", "connecting to one", waiting:wait(5))
    wrong("closed", "connecting to one", kept:wait(5))
  end)

  it("is asked again when the loop was stopped while it was asked", function()
    local one, two = assert(take "one"), assert(take())
    local lookup = registry.lookup
    later "lookup"
    local none, err = perigee.run(function()
      perigee.spawn(function()
        perigee.sleep(0.001)
        perigee.stop()
      end)
      return two:session "one"
    end)
    assert.is_nil(none)
    assert.equal("closed", err.kind)
    registry.lookup = lookup
    assert.equal("one", assert(two:session "one").peer)
    one:close()
  end)

  it("other than the folder is not for where nothing may wait", function()
    local two = assert(take "two")
    local said
    two:serve { name = "x", methods = { raw = { raw = true, function()
      local fine, why = pcall(perigee.agent, { registry = registry,
                                               scope = cases.scope })
      said = tostring(fine) .. why
    end } } }
    assert(assert(take()):proxy("two", "x")):raw("")
    assert.matches("^false.*must not wait", said)
  end)
end)
