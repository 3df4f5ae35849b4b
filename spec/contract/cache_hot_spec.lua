-- SPDX-License-Identifier: Apache-2.0
-- Keys that a client gets so often that several caches have copies of them.
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local perigee = require "perigee"

local NAMES = { "cache:0", "cache:1", "cache:2" }
local HOT = 64                          -- gets after which a key is hot
local MANY = 1e5
local SMALL, LARGE = 3000, 50000
local STALE, LONG = 0.4, 60
-- The CPU cannot touch the values of other kinds of memory: none of them come
-- with an answer, and none have checksums.
local HOST = cases.memory == "host"
local near, agent, far, all

-- A client that reads copies, for so many seconds.
local function reader(stale, options, names)
  local own = { map = false, stale = stale or STALE, hot = 3 }
  for name, value in pairs(options or {}) do own[name] = value end
  return caches.client(own, names or NAMES)
end

local function open(name, options)
  local own = { name = name, checksum = true }
  for key, value in pairs(options or {}) do own[key] = value end
  all[name] = caches.open(own)
end

-- Three caches and two clients.
local function begin(stale, options)
  all = {}
  for _, name in ipairs(NAMES) do open(name) end
  near, agent = reader(stale, options)
  far = caches.client({ map = false }, NAMES)
end

-- Gets a key n times; each time it has to be that value.
local function gets(client, key, value, n)
  for _ = 1, n or 2 * HOT do
    local got, err = client:get(key)
    assert.is_true(got == value, got and "another value" or tostring(err))
  end
end

-- Gets a key until it has the new value; before, it has to have the old one.
local function becomes(client, key, old, new)
  for _ = 1, MANY do
    local got = client:get(key)
    if got == new then return end
    assert.is_true(got == old)
  end
  error "it has the old value for ever"
end

local function counters(name) return all[name]:counters() end

local function sum(what)
  local total = 0
  for name in pairs(all) do total = total + counters(name)[what] end
  return total
end

-- A key that a cache has first; or that it has not.
local function key_of(name, not_it)
  for i = 1, 1000 do
    local key = "key." .. i
    if (far.set:owner(key, 1).name == name) ~= (not_it or false) then
      return key
    end
  end
end

-- The copy of a hot key that this client knows: its key, and a cache of it.
local function copy_of(client, key)
  local one = client.hot.known[key]
  return one.name, one.others[1]
end

describe("a hot key", function()
  after_each(cases.cleanup)

  it("is read from all caches by turns", function()
    begin(LONG)
    for _, size in ipairs { SMALL, LARGE } do
      local key, value = "key." .. size, cases.bytes(size, size)
      assert(far:put(key, value))
      gets(near, key, value)
      local before, requests = {}, size == SMALL and HOST
      for _, name in ipairs(NAMES) do before[name] = counters(name).hits end
      gets(near, key, value, 300)
      for _, name in ipairs(NAMES) do
        assert.equal(requests and 100 or 0, counters(name).hits - before[name])
      end
    end
    assert.equal(4, sum "copies")
  end)

  it("comes to places", function()
    begin(LONG)
    local region = cases.alloc(agent.engine, 2 ^ 17)
    for _, size in ipairs { 0, SMALL, LARGE } do
      local key, value = "key." .. size, cases.bytes(size, 1)
      assert(far:put(key, value))
      for i = 1, 2 * HOT do
        local into = region:slice(i % 64, 60000)
        local part = assert(near:get(key, { into = into }))
        assert.is_true(part.length == size and part:string() == value)
        part = assert(near:get(key, { into = { into:slice(0, 100),
                                               into:slice(200) } }))
        assert.equal(size, part.length)
      end
    end
    local _, err = near:get("key." .. SMALL,
                            { into = region:slice(0, SMALL - 1) })
    assert.equal("too_large", err.kind)
  end)

  it("has its copies from one client, for all", function()
    begin(LONG)
    assert(far:put("k", "value"))
    gets(near, "k", "value")
    local sealed = sum "sealed"
    local other = reader(LONG)
    gets(other, "k", "value")
    assert.equal(sealed, sum "sealed")
    assert.equal(2, sum "copies")
  end)

  it("has its copies from one task of a client", function()
    begin(LONG)
    assert(far:put("k", "value"))
    local puts, asks, owner = 0, 0, near.set:owner("k", 1)
    owner.version = function(...)
      asks = asks + 1
      perigee.sleep(0.01)
      return getmetatable(owner).version(...)
    end
    for n = 2, 3 do
      local other = near.set:owner("k", n)
      other.put = function(...)
        puts = puts + 1
        perigee.sleep(0.01)
        return getmetatable(other).put(...)
      end
    end
    local tasks = {}
    for i = 1, 20 do
      tasks[i] = perigee.spawn(gets, near, "k", "value", 20)
    end
    for i = 1, 20 do assert(select("#", tasks[i]:wait()) == 0) end
    assert.same({ 2, 1 }, { puts, asks })
  end)

  it("is one key for who lists, looks for, or follows keys", function()
    begin(LONG)
    assert(far:put("k", "value"))
    gets(near, "k", "value")
    assert.equal(2, sum "copies")
    assert.same({ "k" }, far:list())
    local events = assert(far:events())
    assert.equal(1, #events)
    assert.equal("k", events[1].key)
    assert(far:delete "k")
    assert.same({ false }, far:has { "k" })
    assert.equal(0, far:match { "k" })
    assert.same({}, far:list())
  end)

  it("has no copies if it is got seldom, or none are asked for", function()
    begin(LONG)
    assert(far:put("k", "value"))
    gets(near, "k", "value", HOT - 1)
    gets(caches.client({ map = false, stale = LONG }, NAMES), "k", "value")
    assert(near:get_many { { key = "k", into = cases.alloc(agent.engine, 64)
                                                    :slice() } })
    assert.equal(0, sum "copies")
  end)

  it("has no copies for who has mapped its cache", function()
    if not caches.mapped then return end
    begin(LONG, { map = true })
    assert(far:put("k", "value"))
    gets(near, "k", "value")
    assert.same({}, near.hot.known)
  end)

  it("has no copies if it is too long for a copy's key", function()
    begin(LONG)
    for length, copies in pairs { [474] = 2, [475] = 0 } do
      local key, before = ("k"):rep(length), sum "copies"
      assert(far:put(key, "value"))
      gets(near, key, "value")
      assert.equal(copies, sum "copies" - before)
    end
  end)

  it("is not asked for as copies where these find no room", function()
    begin(LONG)
    for _, name in ipairs { "cache:1", "cache:2" } do
      all[name]:close()
      open(name, { memory = 2 ^ 20 })
    end
    local key, value = nil, cases.bytes(2 ^ 20 + 1, 1)
    cases.await(function()
      key = key_of "cache:0"
      return (far:put(key, value))
    end)
    gets(near, key, value, HOT + 6)
    assert.equal(0, sum "copies")
    assert.is_true(counters "cache:1".misses <= 2)
  end)
end)

describe("a copy of a hot key", function()
  after_each(cases.cleanup)

  for _, size in ipairs { SMALL, LARGE } do
    local old, new = cases.bytes(size, 1), cases.bytes(size, 2)

    it("is read no longer than stale after another put, of " .. size, function()
      begin()
      assert(far:put("k", old))
      for _ = 1, 3 do
        gets(near, "k", old)
        assert(far:put("k", new))
        becomes(near, "k", old, new)
        gets(near, "k", new)
        assert(far:put("k", old))
        perigee.sleep(STALE)
        gets(near, "k", old, 6)
      end
    end)

    it("is read no longer than stale after a deletion, of " .. size, function()
      begin()
      assert(far:put("k", old))
      gets(near, "k", old)
      assert(far:delete "k")
      perigee.sleep(STALE)
      for _ = 1, 2 * HOT do
        local got, err = near:get "k"
        assert.is_nil(got)
        assert.equal("not_found", err.kind)
      end
    end)

    it("is not read once this client has changed it, of " .. size, function()
      begin(LONG)
      assert(far:put("k", old))
      gets(near, "k", old)
      assert(near:put("k", new))
      gets(near, "k", new)
      assert(near:delete "k")
      for _ = 1, 6 do assert.is_nil((near:get "k")) end
      assert(near:put("k", old))
      gets(near, "k", old)
    end)
  end

  it("is not read once this client has heard of a newer value", function()
    begin(HOST and LONG or STALE)
    assert(far:put("k", "old"))
    gets(near, "k", "old")
    assert(far:put("k", "new"))
    becomes(near, "k", "old", "new")    -- at the turn of the key's own cache
    gets(near, "k", "new")
  end)

  it("is never of a value that came while it was made", function()
    begin(HOST and LONG or STALE)
    assert(far:put("k", "old"))
    local others = { near.set:owner("k", 2), near.set:owner("k", 3) }
    for _, other in ipairs(others) do
      other.get = function(...)
        local got, err = getmetatable(other).get(...)
        if not got then assert(far:put("k", "new")) end -- it has no copy
        return got, err
      end
    end
    becomes(near, "k", "old", "new")
    local epoch = near.set:owner("k", 1).session.epoch
    for _, other in ipairs(others) do
      other.get = nil
      local value, err = other:get(("\0copy\0%s%016xk"):format(epoch, 1))
      assert.is_true(value == "old" or err.kind == "not_found", value)
    end
    gets(near, "k", "new")
  end)

  it("is not what a get has if the key is put while it is read", function()
    begin(LONG)
    assert(far:put("k", "old"))
    gets(near, "k", "old")
    local came
    for n = 2, 3 do
      local other = near.set:owner("k", n)
      other.get = function(...)
        local got, err = getmetatable(other).get(...)
        came = came or got
        assert(near:put("k", "new"))
        return got, err
      end
    end
    for _ = 1, 3 do
      local got = near:get "k"
      assert.equal(came and "new" or "old", got)
    end
    assert.equal("old", came)
  end)

  it("is not read when the key has another cache", function()
    all = {}
    open "cache:1"
    open "cache:2"
    near = reader(LONG, nil, { kind = "cache" })
    far = caches.client({ map = false }, { kind = "cache" })
    local keys = {}
    for i = 1, 12 do
      keys[i] = "key." .. i
      assert(far:put(keys[i], "old"))
      gets(near, keys[i], "old")
    end
    open "cache:0"
    cases.await(function()
      return #near.set.live == 3 and #far.set.live == 3
    end)
    local moved = 0
    for _, key in ipairs(keys) do
      local moves = near.set:owner(key, 1).name == "cache:0"
      moved = moved + (moves and 1 or 0)
      if moves then assert(far:put(key, "new")) end
      gets(near, key, moves and "new" or "old")
    end
    assert.is_true(moved > 0)
  end)

  it("is not read of another life of its cache", function()
    begin(LONG)
    local name = far.set:owner("k", 1).name
    assert(far:put("k", "old"))
    gets(near, "k", "old")
    all[name]:close()
    open(name)
    cases.await(function() return (caches.client({}, name):put("k", "new")) end)
    cases.await(function() return near:get "k" == "new" end)
    local before = near.hot.reads
    cases.await(function()              -- it asks its cache four times a second
      gets(near, "k", "new")
      return near.hot.reads > before
    end)
  end)
end)

describe("a cache that has copies", function()
  after_each(cases.cleanup)

  it("may be killed", function()
    all = {}
    local children = {}
    for _, name in ipairs(NAMES) do
      children[name] = caches.start(("{ name = %q }"):format(name))
    end
    far = caches.client({ map = false }, NAMES)
    near = reader()
    local key = key_of "cache:0"
    assert(far:put(key, "value"))
    gets(near, key, "value")
    children["cache:2"]:kill()
    gets(near, key, "value")
    children["cache:0"]:kill()          -- whose key it is
    perigee.sleep(STALE)
    local got, err = near:get(key)
    assert.is_nil(got)
    assert.equal("not_found", err.kind)
  end)

  it("may have bytes that are not the value's", function()
    if not HOST then return end
    begin(LONG, { checksum = true })
    for _, size in ipairs { SMALL, LARGE } do
      local key, value = "key." .. size, cases.bytes(size, 1)
      assert(far:put(key, value))
      gets(near, key, value)
      local copy, other = copy_of(near, key)
      assert(other:put(copy, cases.bytes(size, 2)))
      gets(near, key, value)
    end
  end)

  it("may have too many bytes or too few", function()
    begin(LONG)
    assert(far:put("k", "value"))
    gets(near, "k", "value")
    local copy, other = copy_of(near, "k")
    for _, wrong in ipairs { "", "valu", "value and more" } do
      near.hot.known["k"].after = { 0, 0 }
      assert(other:put(copy, wrong))
      gets(near, "k", "value", 6)
    end
  end)

  it("may answer what it likes", function()
    if not HOST then return end
    begin(LONG)
    all["cache:0"]:close()
    local lies = {}
    caches.liar(lies)
    local small = caches.place { length = 5, version = 1 }
      .. caches.number(5, 4)
    local leased = caches.place { length = 5, lease = 7, ns = 1e9, slab = 9 }
    local fine = caches.number(0, 4)
    local said = { "", "\1\1\0", ("\255"):rep(99), caches.answer(3, 0),
      caches.answer(3, 1, caches.number(2 ^ 32 - 7, 4)),
      caches.answer(3, 1, fine .. small .. "other"),
      caches.answer(3, 1, fine .. leased .. caches.number(0, 4)),
      caches.answer(11, 1, fine .. caches.number(1, 8)) }
    local key = key_of("cache:0", true)
    lies.ask = function() return said[1] end
    cases.await(function() return (far:put(key, "value")) end)
    local other = reader(LONG, { checksum = true })
    gets(other, key, "value", HOT)
    for _, text in ipairs(said) do
      lies.ask = function() return text end
      local one = other.hot.known[key]
      for n in ipairs(one.after) do one.after[n] = 0 end
      gets(other, key, "value", 6)
    end
  end)
end)

describe("the option hot", function()
  after_each(cases.cleanup)

  it("wants stale, and two caches at least", function()
    local own = assert(cases.agent())
    assert.error_matches(function()
      own:cache(NAMES, { hot = 3 })
    end, "stale")
    assert.error_matches(function()
      own:cache(NAMES, { hot = 1, stale = 1 })
    end, "2 at least")
  end)

  it("is of no use for one cache, and does no harm", function()
    all = {}
    open "cache:0"
    for _, which in ipairs { "cache:0", { "cache:0" } } do
      local client = reader(LONG, nil, which)
      assert(client:put("k", "value"))
      gets(client, "k", "value")
    end
    assert.equal(0, sum "copies")
  end)
end)
