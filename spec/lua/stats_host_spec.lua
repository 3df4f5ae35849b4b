-- SPDX-License-Identifier: Apache-2.0
-- The stats files of a host are found without a word to an agent.
local cases = require "spec.support.cases"
local host = require "perigee.stats.host"

local agent, registry, scope

before_each(function()
  agent = assert(cases.agent())
  scope = agent.scope
  local base = agent.address:match "^unix:(.*)/[^/]+/[^/]+$"
  registry = "folder:" .. base
end)

after_each(cases.cleanup)

describe("the stats of a host", function()
  it("are in the folders of its scopes", function()
    local found = {}
    for _, each in ipairs(host.scopes(registry)) do found[each] = true end
    assert.is_true(found[scope])
  end)

  it("are those of all agents of a scope", function()
    local other = assert(cases.agent())
    local found = {}
    for _, path in ipairs(host.paths(registry, scope)) do found[path] = true end
    for _, each in ipairs { agent, other } do
      assert.is_true(found[each.address:match "^unix:(.*)%.sock$" .. ".stats"])
    end
  end)

  it("are read by an agent's name", function()
    assert.equal(agent.name, host.read(registry, scope, agent.name).name)
    local none, why = host.read(registry, scope, "nobody")
    assert.is_nil(none)
    assert.is_string(why)
  end)

  it("may be none", function()
    assert.same({}, host.paths(registry, "nowhere"))
    assert.same({}, host.scopes "folder:/nowhere")
  end)
end)
