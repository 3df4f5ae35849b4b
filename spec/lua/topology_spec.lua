-- SPDX-License-Identifier: Apache-2.0
-- Agents that a control server's topology joins: who dials, what they keep and
-- drop, and what they report.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"
local registries = require "perigee.registry"
local topologies = require "perigee.registry.topology"

local LONG = 60 * cases.slow

describe("a topology", function()
  it("has each pair of agents once, and one of the two dials", function()
    local value = {
      edges = { { "b", "a" }, { "a", "b" }, { "c", "c" }, { "d", "a" } },
      mesh = { "c", "a", "b", "c", "e" } }
    assert.is_nil(topologies.wrong(value))
    local edges = topologies.edges(value)
    assert.same({ { "b", "a" }, { "d", "a" }, { "c", "a" }, { "c", "b" },
                  { "c", "e" }, { "a", "e" }, { "b", "e" } }, edges)
    local joined = {}
    for _, edge in ipairs(edges) do
      for i, name in ipairs(edge) do
        joined[name] = joined[name] or {}
        joined[name][edge[3 - i]] = i == 1
      end
    end
    for name, peers in pairs(joined) do
      assert.same(peers, topologies.joined(value, name), name)
    end
    assert.same({}, topologies.joined(value, "f"))
  end)

  it("has at most 10,000 edges", function()
    local mesh = {}
    for i = 1, 142 do mesh[i] = "a" .. i end
    assert.matches("10000", topologies.wrong { mesh = mesh })
    mesh[142] = nil
    assert.is_nil(topologies.wrong { mesh = mesh })
  end)
end)

needing("agents that a topology joins", { control }, function()
  local registry, server

  before_each(function()
    server = control.start()
    cases.engine()
    registry = control.address(cases)
  end)

  after_each(cases.cleanup)

  local function eventually(f)
    return assert.is_true(cases.eventually(f, LONG))
  end

  local function ask(method, body)
    return registries.open(registry).client:ask(method,
      ("/v1/scopes/%s/topology"):format(cases.scope), body)
  end

  local function put(body) return assert(ask("PUT", body)) end

  local function edge_of(one, two)
    for _, edge in ipairs((ask("GET") or { actual = {} }).actual) do
      if edge.ends[1] == one and edge.ends[2] == two then return edge end
    end
    return {}
  end

  local function is(state, one, two)
    return eventually(function() return edge_of(one, two).state == state end)
  end

  local function take(name, options)
    return assert(backends.take(registry, name, options))
  end

  local function child(name)
    local started = process.start(function(self, runtime, _, at, called)
      local agent = assert(self.cases.agent(called, { registry = at }))
      self.say "ready"
      runtime.run()
      agent:close()
    end, registry, name)
    started:expect("ready", LONG, function() perigee.sleep(0.001) end)
    return started
  end

  it("connect, also those that come later, or again after a death", function()
    local a, arrived = take "a", 0
    a:on_session(function() arrived = arrived + 1 end)
    put '{"edges":[["a","b"],["b","c"]]}'
    is("absent", "a", "b")
    local b = child "b"
    is("up", "a", "b")
    assert.equal("absent", edge_of("b", "c").state)
    assert.same({ "c" }, edge_of("b", "c").absent)
    take "c"
    is("up", "b", "c")
    b:kill()
    eventually(function() return edge_of("a", "b").state ~= "up" end)
    child "b"
    is("up", "a", "b")
    is("up", "b", "c")
    assert.equal(0, arrived)            -- it is a that dials
  end)

  it("report again to a server that was killed, and after a stop", function()
    put '{"mesh":["a","b"]}'
    take "a"
    take "b"
    is("up", "a", "b")
    server:kill()
    server:begin()
    is("up", "a", "b")
    perigee.run(function()
      perigee.stop()
      perigee.sleep(LONG)
    end)
    put '{"mesh":["b","a"]}'            -- the other one dials
    eventually(function()
      local edge = edge_of("a", "b")
      return edge.dials == "b" and edge.state == "up"
    end)
  end)

  it("keep the sessions that programs use, and those alone", function()
    put '{"edges":[["a","b"],["a","c"]]}'
    local here, there
    take "b":on_session(function(session) here = session end)
    take "c":on_session(function(session) there = session end)
    local a = take "a"
    is("up", "a", "b")
    is("up", "a", "c")
    local asked, first = assert(a:session "b"), here
    asked:close()
    eventually(function() return here ~= first end)
    is("up", "a", "b")
    put "{}"
    eventually(function() return there:ended():done() end)
    assert.equal("peer_lost", select(2, there:ended():wait(LONG)).kind)
    assert.is_false(here:ended():done())
    put '{"edges":[["a","c"]]}'
    is("up", "a", "c")
  end)

  it("may want none of it, and say why they are not connected", function()
    put '{"edges":[["a","b"],["c","b"]]}'
    take("a", { topology = false })
    take "b"
    take("c", { transport = "nothing" })
    eventually(function() return edge_of("b", "c").why end)
    assert.equal("down", edge_of("b", "c").state)
    assert.matches("nothing", edge_of("b", "c").why)
    is("down", "a", "b")
  end)
end)
