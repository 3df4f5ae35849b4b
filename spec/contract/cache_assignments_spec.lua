-- SPDX-License-Identifier: Apache-2.0
-- Values that belong together: one process stores them, another loads them by
-- the owner and the version that it was told.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

describe("assignments of a cache", function()
  after_each(cases.cleanup)

  local cache, blocks, agent

  before_each(function()
    cache = assert(perigee.cache { name = "cache:0", scope = cases.scope,
      memory = 2 ^ 24, engine = { encrypt = cases.sealed or nil } })
    for _, each in ipairs(cache.agents) do
      cases.opened[#cases.opened + 1] = each
    end
    agent = assert(cases.agent())
    blocks = assert(agent:cache "cache:0")
  end)

  local function store(child)
    local own = assert(child.cases.agent "storer")
    local there = assert(own:cache "cache:0")
    local region = assert(own.engine:alloc(2 ^ 20))
    local bytes = child.cases.bytes(2 ^ 19, 5)
    region:slice(0, 2 ^ 19):write(bytes)
    local owner, version, places = there.assignments:store {
      "small", region:slice(0, 2 ^ 19), "" }
    child.say(owner, ("%.0f"):format(version), #places, places[2].length)
    require "perigee".sleep(1e6)
  end

  it("are loaded by another process, whole", function()
    local child = process.start(store)
    local owner, version, count, length = assert(child:read(nil, function()
      perigee.sleep(0.001)
    end)):match "^(%S+) (%d+) (%d+) (%d+)$"
    assert.same({ "storer", "3", "524288" }, { owner, count, length })
    version = tonumber(version)
    child:kill()                        -- what is stored does not need it
    local places = assert(blocks.assignments:query(owner, version))
    assert.same({ 5, 2 ^ 19, 0 }, { places[1].length, places[2].length,
                                    places[3].length })
    local region = assert(agent.engine:alloc(2 ^ 20))
    local into = { region:slice(0, 64), region:slice(64, 2 ^ 19),
                   region:slice(0, 0) }
    assert.same({ 5, 2 ^ 19, 0 },
                assert(blocks.assignments:load(owner, version, into)))
    assert.equal("small", region:slice(0, 5):string())
    assert.is_true(into[2]:string() == cases.bytes(2 ^ 19, 5))
    local _, err = blocks.assignments:load(owner, version, { into[1] })
    assert.equal("too_large", err.kind)
    into[2] = region:slice(64, 100)
    _, err = blocks.assignments:load(owner, version, into)
    assert.equal("too_large", err.kind)
    assert.is_true(blocks.assignments:delete(owner, version))
    _, err = blocks.assignments:query(owner, version)
    assert.equal("not_found", err.kind)
    assert.same({}, blocks:list())
  end)

  it("have a version of their own each time", function()
    local owner, first = assert(blocks.assignments:store { "a" })
    local other = assert(agent:cache "cache:0")
    local _, second = assert(other.assignments:store { "b" })
    assert.equal(agent.name, owner)
    assert.is_true(second > first)
    assert.is_true(blocks.assignments:delete(owner, first))
    assert.equal(1, #assert(blocks.assignments:query(owner, second)))
  end)

  it("are all there, or none, when one of them has no room", function()
    local _, err = blocks.assignments:store { "a", ("x"):rep(2 ^ 25), "c" }
    assert.is_true(err.kind == "no_memory" or err.kind == "too_large",
                   tostring(err))
    assert.same({}, blocks:list())
  end)

  it("are missed if one of them is, and refuse lists that are none", function()
    local owner, version, places = assert(blocks.assignments:store { "a", "b" })
    assert(blocks:delete(places[2].key))
    local region = assert(agent.engine:alloc(64))
    local into = { region:slice(0, 8), region:slice(8, 8) }
    local _, err = blocks.assignments:load(owner, version, into)
    assert.equal("not_found", err.kind)
    for _, text in ipairs { "", "1 x", " 1", "99999999999999",
                            ("1 "):rep(2000) } do
      assert(blocks:put(("assignments/%s/%.0f"):format(owner, version), text))
      _, err = blocks.assignments:query(owner, version)
      assert.equal("protocol", err.kind, text:sub(1, 20))
    end
  end)

  it("are misused loudly", function()
    for _, f in ipairs {
      function() blocks.assignments:store {} end,
      function() blocks.assignments:store { 7 } end,
      function() blocks.assignments:query("a/b", 1) end,
      function() blocks.assignments:load("a", -1, {}) end,
      function() blocks.assignments:delete("a", 0.5) end,
    } do
      assert.is_false((pcall(f)))
    end
  end)
end)
