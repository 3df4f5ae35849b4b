-- SPDX-License-Identifier: Apache-2.0
-- Names in etcd, with servers of the spec's own: what becomes of them when
-- servers are killed, stopped, emptied, compacted or full of other keys; when a
-- name is lost. spec/lua/etcd_access_spec.lua tells who may use it.
local backends = require "spec.support.backends"
local cases = require "spec.support.cases"
local etcd = require "spec.support.etcd"
local needing = require "spec.support.needing"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 30 * cases.slow

local eventually, names, pump = cases.await, backends.names, cases.pump
local watched = backends.watched

local LOST = "^error the name one .* is lost"

needing("etcd", { etcd }, function()
  local cluster, registry

  local function start(options)
    cluster = etcd.start(options)
    registry = etcd.address(cases)
    return cluster
  end

  after_each(cases.cleanup)

  local function take(name, options)
    return backends.take(registry, name, options)
  end

  -- Has agents renew their names now, not in a third of the TTL.
  local function renew(...)
    for _, agent in ipairs { ... } do agent.lease:changed() end
  end

  -- Takes a name with a lease that ends soon.
  local function take_for_short(name)
    registry = etcd.address(cases, "&ttl=4")
    local agent
    eventually(function()
      agent = agent or take(name)
      return agent
    end)
    return agent
  end

  -- The messages that are logged meanwhile, as "level text".
  local function logged()
    local said, log = {}, perigee.log
    perigee.log = function(level, text)
      said[#said + 1] = level .. " " .. text
    end
    finally(function() perigee.log = log end)
    return said
  end

  local function has(said, pattern)
    for _, text in ipairs(said) do
      if text:find(pattern) then return text end
    end
  end

  it("has names and changes again after it was killed and came back", function()
    start()
    local one, two = assert(take "one"), assert(take "two")
    local session = assert(two:session "one")
    local told = watched(two)
    eventually(function() return #told == 2 end)
    cluster:kill()
    local none, err = two:lookup("one", { timeout = 2 })
    assert.is_nil(none)
    assert.is_truthy(({ peer_lost = 1, timeout = 1, closed = 1 })[err.kind],
                     err.kind)
    cluster:begin(1)
    cluster:await(1)
    renew(one, two)
    eventually(function() return names(two) == "one two" end)
    assert.equal(session, (two:session "one"))
    local three = assert(take "three")
    eventually(function() return told[#told] == "up three" end)
    one:close()
    eventually(function() return told[#told] == "down one" end)
    assert.equal("up three", told[#told - 1])
    three:close()
  end)

  it("has names again after it was replaced by an empty one", function()
    start()
    local one = assert(take "one")
    local two = assert(take "two")
    local told = watched(one)
    eventually(function() return #told == 2 end)
    cluster:kill()
    os.execute(("rm -rf '%s/1'"):format(cluster.folder))
    cluster:begin(1)
    cluster:await(1)
    renew(one, two)
    eventually(function() return names(one) == "one two" end)
    two:close()
    eventually(function() return told[#told] == "down two" end)
    assert(take "three")
    eventually(function() return told[#told] == "up three" end)
  end)

  it("that deletes all keys gets them again", function()
    start()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    cluster:ask("kv/deleterange", { key = "AA==", range_end = "AA==" })
    eventually(function() return told[2] end)
    renew(one)
    eventually(function() return names(one) == "one" end)
    eventually(function() return told[3] end)
    assert.same({ "up one", "down one", "up one" }, told)
  end)

  it("that is stopped is waited for as long as was said", function()
    start()
    local one, two = assert(take "one"), assert(take "two")
    local session = assert(two:session "one")
    cluster.servers[1]:signal "STOP"
    for _, f in ipairs { "lookup", "list", "regions" } do
      local none, err = two[f](two, f ~= "list" and "one" or { timeout = 0.05 },
                               { timeout = 0.05 })
      assert.is_nil(none)
      assert.equal("timeout", err.kind, tostring(err))
    end
    assert.is_truthy(session.handle)
    cluster.servers[1]:signal "CONT"
    eventually(function() return names(two) == "one two" end)
    one:close()
  end)

  it("may give a name away that its holder says it has lost, not sooner",
     function()
    start()
    local said = logged()
    local one = take_for_short "one"
    local told = watched(one)
    eventually(function() return #told == 1 end)
    cluster.servers[1]:signal "STOP"
    eventually(function() return has(said, LOST) end)
    assert.is_false(one.held)
    cluster.servers[1]:signal "CONT"
    eventually(function() return one.held end)
    assert.equal("one", names(one))
    assert.is_truthy(cluster:text(cases.scope, "one"))
  end)

  it("gives a name to another when its holder did not come back in time",
     function()
    start()
    local said = logged()
    local one = take_for_short "one"
    -- The holder's requests fail from now on, as if a network was cut.
    local urls = one.registry.cluster.target.urls
    local url = urls[1]
    urls[1] = "http://127.0.0.1:1"
    eventually(function() return has(said, LOST) end)
    eventually(function() return not cluster:text(cases.scope, "one") end)
    process.start(function(child, perigee_)
      local address = require("spec.support.etcd").address(child.cases)
      assert(child.cases.agent("one", { registry = address }))
      child.say "held"
      perigee_.run()
    end):expect("held", LONG, pump)
    local text = cluster:text(cases.scope, "one")
    urls[1] = url
    eventually(function() return has(said, "keeping the name one") end)
    eventually(function() return one.lease.over end)
    assert.is_false(one.held)
    local epoch = text:match '"epoch":"(%x+)"'
    assert.equal(epoch, cluster:text(cases.scope, "one"):match
      '"epoch":"(%x+)"')
    one:close()
    assert.equal(epoch, cluster:text(cases.scope, "one"):match
      '"epoch":"(%x+)"')
  end)

  it("has a name that another took for good", function()
    start()
    local said = logged()
    local one = assert(take "one")
    local text = cluster:text(cases.scope, "one")
    text = text:gsub('"epoch":"%x+"', '"epoch":"0123456789abcdef"')
    cluster:put(cases.scope, "one", text)
    renew(one)
    eventually(function() return #said > 0 end)
    assert.equal(1, #said)
    assert.matches("^error keeping the name one in scope", said[1])
    assert.equal(text, cluster:text(cases.scope, "one"))
    one:close()
    assert.equal(text, cluster:text(cases.scope, "one"))
  end)

  it("tells who watches of what a compaction has hidden", function()
    start()
    local one = assert(take "one")
    local two = assert(take "two")
    local told = watched(one)
    eventually(function() return #told == 2 end)
    local feed = one.registry.feeds[cases.scope]
    eventually(function() return feed.stream end)
    -- The stream ends; it is to be continued from a revision that is gone.
    local wait = feed.etcd.cluster.stream
    local held = true
    function feed.etcd.cluster.stream(...)
      while held do perigee.sleep(0.001) end
      return wait(...)
    end
    feed.etcd.cluster:close(feed.stream)
    two:close()
    assert(take "three")
    assert(take "four")
    local revision
    eventually(function()
      revision = cluster:ask("kv/range", { key = "AA==" }).header.revision
      return not cluster:text(cases.scope, "two")
    end)
    assert(cluster:ask("kv/compaction", { revision = revision,
                                          physical = true }))
    held = false
    eventually(function() return #told == 5 end)
    table.sort(told)
    assert.same({ "down two", "up four", "up one", "up three", "up two" },
                told)
    assert(take "five")
    eventually(function() return told[6] == "up five" end)
  end)

  it("goes on when its leader is killed, with nothing restarted", function()
    start { n = 3 }
    local one, two = assert(take "one"), assert(take "two")
    local lease = one.lease.claim.held
    local told = watched(two)
    eventually(function() return #told == 2 end)
    local id = lease.id
    cluster:kill(assert(cluster:leader()))
    local three
    eventually(function()
      three = three or take "three"
      return three
    end)
    eventually(function() return told[#told] == "up three" end)
    renew(one)
    eventually(function() return lease.id ~= id end) -- of the new leader
    assert.equal("one three two", names(two))
    assert.is_nil(has(told, "down one") or has(told, "down two"))
    one:close()
    eventually(function() return told[#told] == "down one" end)
  end)

  it("may have keys of others among ours", function()
    start()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    local scope = cases.scope
    cluster:put(scope, "junk", "junk")
    cluster:put(scope, "deep", ("["):rep(5000))
    cluster:put(scope, "other", '{"name":"junk","scope":"x","addresses":["a"]}')
    cluster:put(scope, "a/b", "{}")
    cluster:put(scope, "%00\255\0", "{}")
    cluster:put(scope, "types", ('{"name":"types","scope":"%s","addresses":'
      .. '["tcp://a:1"],"kind":[],"since":"x","began":[1]}'):format(scope))
    cluster:put(scope, "z", ("z"):rep(2 ^ 20))
    assert.equal("one types", names(one))
    for _, name in ipairs { "junk", "deep", "other" } do
      local none, err = take(name)
      assert.is_nil(none)
      assert.equal("name_taken", err.kind, tostring(err))
      none, err = one:lookup(name)
      assert.is_nil(none)
      assert.equal("not_found", err.kind)
    end
    assert(take "two")
    eventually(function() return #told == 3 end)
    assert.same({ "up one", "up types", "up two" }, told)
  end)

  it("lists more names than one answer has, and larger ones", function()
    start()
    local one = assert(take "one")
    local much = ("m"):rep(2 ^ 14)
    one.registry.cluster.limit = 2 ^ 17
    for i = 1, 40 do
      cluster:put(cases.scope, ("n%02d"):format(i), ('{"name":"n%02d","scope":'
        .. '"%s","addresses":["tcp://a:1"],"metadata":{"x":"%s"}}')
        :format(i, cases.scope, much))
    end
    local list = assert(one:list { prefix = "n" })
    assert.equal(40, #list)
    for i, entry in ipairs(list) do
      assert.equal(("n%02d"):format(i), entry.name)
    end
    list = assert(one:list { prefix = "n", after = "n10", limit = 3 })
    assert.equal("n11 n12 n13", list[1].name .. " " .. list[2].name .. " "
      .. list[3].name)
    assert.equal(3, #list)
  end)

  it("that is gone says nothing of names, but what was known is told",
     function()
    start()
    local one, two = assert(take "one"), assert(take "two")
    assert(two:lookup "one")
    cluster:kill()
    eventually(function()
      local none, err, known = two:lookup("one", { timeout = LONG })
      assert.is_nil(none)
      assert.is_not.equal("not_found", err.kind)
      assert.equal(one.address, known.addresses[1])
      assert.is_true(known.stale)
      return err.kind == "peer_lost"
    end)
    local none, err, known = two:list({ timeout = LONG })
    assert.is_nil(none)
    assert.equal("peer_lost", err.kind)
    assert.equal("one", known[1].name)
  end)

  it("goes on after a stop of the loop", function()
    start()
    local one = assert(take "one")
    local told = watched(one)
    eventually(function() return #told == 1 end)
    perigee.run(function() perigee.stop() perigee.sleep(1) end)
    assert(take "two")
    eventually(function() return #told == 2 end)
    assert.equal("one two", names(one))
  end)
end)
