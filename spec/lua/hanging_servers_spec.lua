-- SPDX-License-Identifier: Apache-2.0
-- Several servers of names of which one hangs: it takes what it is sent, and
-- says nothing (SIGSTOP). Names are kept, look-ups go on, and watches hear.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local control = require "spec.support.control"
local etcd = require "spec.support.etcd"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"
local redis = require "spec.support.redis"

local await, slow = cases.await, cases.slow
local N = 3

-- Three control servers over one Redis.
local function controls()
  redis.start()
  local list, urls = {}, {}
  local address = ("redis+unix:%s"):format(redis.path(cases))
  for i = 1, N do
    list[i] = control.start({}, nil, nil, address)
    urls[i] = list[i].url:match "//(.*)$"
  end
  return { stop = function(i, signal) list[i].process:signal(signal) end,
           address = ("http://%s/?ttl=%g&timeout=%g"):format(
             table.concat(urls, ","), 6 * slow, 6 * slow) }
end

-- Three etcd servers; the one that leads does not hang, for etcd itself is away
-- then until it has another.
local function etcds()
  local cluster = etcd.start { n = N }
  return { stop = function(i, signal) cluster.servers[i]:signal(signal) end,
           spares = function(i) return cluster:leader() == i end,
           address = (etcd.address(cases):gsub("ttl=%d+", ("ttl=%d"):format(
             6 * slow))) }
end

for what, case in pairs {
  ["control servers over Redis"] = { start = controls,
                                     needs = { control, redis } },
  etcd = { start = etcds, spares = true, needs = { etcd } },
} do
needing("of several servers of " .. what .. " that one hangs",
        case.needs, function()
  local servers, stopped

  before_each(function()
    servers, stopped = case.start(), false
  end)
  after_each(function()
    if stopped then servers.stop(stopped, "CONT") end
    cases.cleanup()
  end)

  local function of(agent)
    return (agent.registry.client or agent.registry.cluster).servers
  end

  -- Has an agent ask a server that may hang.
  local function choose(agent)
    local list = of(agent)
    if servers.spares and servers.spares(list.at) then
      list.at = list.at % N + 1
    end
  end

  local function stop(i)
    stopped = i
    servers.stop(i, "STOP")
  end

  local function stop_present(agent)
    choose(agent)
    stop(of(agent).at)
  end

  it("costs one look-up a moment, and the next ones nothing", function()
    local one = assert(backends.take(servers.address, "one"))
    assert(one:lookup "one")
    stop_present(one)
    local began = process.now()
    for _ = 1, 50 do assert(one:lookup "one") end
    assert.is_true(process.now() - began < 3 * slow, process.now() - began)
    assert.is_true(one.held)
  end)

  it("costs nobody its name", function()
    local list, lost = {}, 0
    for i = 1, 20 do
      list[i] = assert(backends.take(servers.address, "a" .. i))
      list[i]:on_lost(function() lost = lost + 1 end)
    end
    stop_present(list[1])
    local limit = process.now() + 1.5 * list[1].registry.ttl
    repeat perigee.sleep(0.05) until process.now() > limit
    for _, each in ipairs(list) do assert.is_true(each.held) end
    assert.equal(0, lost)
  end)

  it("costs who watches a moment", function()
    local one = assert(backends.take(servers.address, "one"))
    choose(one)
    local told = backends.watched(one)
    await(function() return told[1] == "up one" end)
    local feed
    for _, each in pairs(one.registry.feeds) do feed = each end
    await(function() return feed.stream end)
    for i, url in ipairs(of(one).urls) do
      if url == feed.stream.server then stop(i) end
    end
    local began = process.now()
    local another = servers.address:gsub("ttl=", "ttl=1")
    local two = assert(backends.take(another, "two"))
    await(function() return told[2] == "up two" end)
    assert.is_true(process.now() - began < 10 * slow, process.now() - began)
    assert.is_true(two.held)
  end)

  if not case.spares then
  it("is asked again when it goes on and the others have gone", function()
    local one = assert(backends.take(servers.address, "one"))
    stop_present(one)
    assert(one:lookup "one")
    servers.stop(stopped, "CONT")
    local others = {}
    for i = 1, N do if i ~= stopped then others[#others + 1] = i end end
    for _, i in ipairs(others) do servers.stop(i, "KILL") end
    await(function() return one:lookup "one" end)
    await(function() return one.held end)
  end)
  end
end)
end
