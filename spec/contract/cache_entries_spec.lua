-- SPDX-License-Identifier: Apache-2.0
-- What clients ask of entries besides their values: deletions, pins, lists,
-- events, counters; a cache that is full or gets no memory; scopes; several
-- caches that share the keys.
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local errors = require "perigee.runtime.errors"
local perigee = require "perigee"
local process = require "spec.support.process"
local wire = require "perigee.cache.wire"

local ffi = require "ffi"
local core = require "perigee.native".C

local MIB = 2 ^ 20

local function wrong(kind, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err), tostring(err))
  assert.equal(kind, err.kind, tostring(err))
  return err
end

after_each(cases.cleanup)

describe("an entry", function()
  local blocks

  before_each(function()
    caches.open()
    blocks = caches.client()
  end)

  it("is deleted, touched, pinned, told of", function()
    for _, f in ipairs { "delete", "touch", "pin", "stat" } do
      wrong("not_found", blocks[f](blocks, "k"))
    end
    assert(blocks:put("k", "value"))
    assert.is_true(blocks:touch "k")
    for _, how in ipairs { "soft", "hard", false } do
      assert.is_true(blocks:pin("k", how))
    end
    assert.is_true(blocks:pin "k")
    local told = assert(blocks:stat "k")
    assert.equal(5, told.length)
    assert.equal(caches.name, told.cache)
    assert(blocks:put("k", ("v"):rep(10000)))
    local next_one = assert(blocks:stat "k")
    assert.equal(10000, next_one.length)
    assert.is_true(next_one.version > told.version)
    assert.is_true(blocks:delete "k")
    wrong("not_found", blocks:get "k")
    wrong("not_found", blocks:delete "k")
    assert.same({ false }, blocks:has { "k" })
  end)

  it("is listed once, by its prefix", function()
    local all = {}
    for i = 1, 2500 do
      local key = (i % 2 == 0 and "even/" or "odd/") .. i .. ("."):rep(i % 400)
      all[key] = true
      assert(blocks:put(key, ""))
    end
    local function listed(options, n)
      local list, known = assert(blocks:list(options)), {}
      assert.equal(n, #list)
      for _, key in ipairs(list) do
        assert.is_true(all[key])
        assert.is_nil(known[key])
        known[key] = true
      end
    end
    listed(nil, 2500)
    listed({ prefix = "even/" }, 1250)
    listed({ prefix = "odd/1." }, 1)
    listed({ prefix = ("x"):rep(512) }, 0)
    listed({ limit = 7 }, 7)
    listed({ limit = 0 }, 0)
    listed({ prefix = "odd/", limit = 1249 }, 1249)
  end)

  it("has events, in order, that can be resumed", function()
    local before = assert(blocks:events())
    assert(blocks:put("a", "1"))
    assert(blocks:put("a", "22"))
    assert(blocks:delete "a")
    assert(blocks:put("t", "333", { ttl = 0.01 }))
    cases.await(function() return not blocks:has({ "t" })[1] end)
    cases.await(function()
      return #assert(blocks:events { from = before.next }) == 6
    end)
    local none = assert(blocks:events { from = before.next, limit = 0 })
    assert.equal(0, #none)
    local kinds, from, last = {}, none.next, 0
    repeat                              -- one by one
      local some = assert(blocks:events { from = from, limit = 1 })
      assert.is_false(some.lost)
      for _, event in ipairs(some) do
        kinds[#kinds + 1] = ("%s %s %d"):format(event.kind, event.key,
                                                event.length)
        assert.equal(caches.name, event.cache)
        assert.is_true(event.number > last)
        last = event.number
      end
      from = some.next
    until #some == 0
    table.sort(kinds, function(a, b) return a < b end)
    assert.same({ "deleted a 2", "expired t 3", "replaced a 1", "sealed a 1",
                  "sealed a 2", "sealed t 3" }, kinds)
  end)

  it("has events that are lost if nobody asks in time", function()
    local before = assert(blocks:events())
    for i = 1, 9000 do assert(blocks:put("k" .. i % 10, "")) end
    local some = assert(blocks:events { from = before.next })
    assert.is_true(some.lost)
    assert.is_true(#some > 0)
    some = assert(blocks:events { from = some.next })
    assert.is_false(some.lost)
  end)
end)

describe("a cache that is full", function()
  local function full(options)
    options.memory, options.slab = 8 * MIB, MIB
    local cache = caches.open(options)
    return cache, caches.client()
  end

  it("has old entries go, and those that are used stay", function()
    local cache, blocks = full { lease = 0.05 }
    local other = caches.client()
    assert(blocks:put("hot", ("h"):rep(10000)))
    for i = 1, 100 do
      assert(other:put("k" .. i, ("v"):rep(300000)))
      local limit = process.now() + 0.02
      repeat                            -- as often as a loop can
        assert.equal(10000, #assert(blocks:get "hot"))
        perigee.sleep(0)
      until process.now() > limit
    end
    assert.is_true(cache:counters().evicted > 50)
    assert.is_true(cache:counters().slabs <= 8 * MIB)
    assert.is_true(blocks:has({ "hot" })[1])
  end)

  it("never has hard pins go, and soft ones last", function()
    local _, blocks = full { hard = 2 * MIB }
    for i = 1, 4 do
      assert(blocks:put("hard" .. i, ("h"):rep(300000), { pin = "hard" }))
      assert(blocks:put("soft" .. i, ("s"):rep(300000), { pin = "soft" }))
    end
    wrong("no_memory", blocks:put("more", ("h"):rep(MIB), { pin = "hard" }))
    for i = 1, 60 do assert(blocks:put("k" .. i, ("v"):rep(300000))) end
    for i = 1, 4 do
      assert.is_true(blocks:get("hard" .. i) == ("h"):rep(300000))
      assert.is_true(blocks:get("soft" .. i) == ("s"):rep(300000))
    end
  end)

  -- A request of two puts: for the first there is no slab of its size.
  local function two_puts()
    local put = { group = 0, ttl = 0, pin = 0, if_absent = true }
    local first = wire.put("first", ("v"):rep(7000), 7000, put, 0)
    local second = wire.put("second", "value", 5, put, 0)
    return first:sub(1, 4) .. caches.number(2, 4) .. first:sub(9)
      .. second:sub(9)
  end

  it("puts once what it has room for beside what it has not", function()
    if cases.memory ~= "host" then return end
    local cache = caches.open { memory = MIB, slab = MIB }
    local blocks, store = caches.client(), caches.store(cache)
    assert(blocks:put("pinned", "value", { pin = "hard" }))
    local request, sealed = two_puts(), cache:counters().sealed
    local reply = { pointer = ffi.new "uint8_t[64]", length = 64 }
    assert.equal(32, store:answer(next(store.clients), {
      pointer = ffi.cast("const uint8_t *", request), length = #request },
      reply))
    local told = ffi.cast("int32_t *", reply.pointer + 8)
    assert.equal(core.PERIGEE_NO_MEMORY, told[0])
    assert.equal(0, told[3], "what was put was put again")
    assert.equal(1, cache:counters().sealed - sealed)
  end)

  it("takes no hard pin if there are to be none", function()
    local _, blocks = full { hard = 0 }
    wrong("no_memory", blocks:put("k", "value", { pin = "hard" }))
    assert(blocks:put("k", "value", { pin = "soft" }))
    wrong("no_memory", blocks:pin("k", "hard"))
  end)

  it("of what may not go says so at once", function()
    local _, blocks = full { hard = 8 * MIB }
    local n, err = 0, nil
    for i = 1, 100 do
      local fine, why = blocks:put("h" .. i, ("h"):rep(200000),
                                   { pin = "hard" })
      if fine then n = n + 1 else err = why end
    end
    wrong("no_memory", nil, err)
    assert.is_true(n >= 20, n)
    wrong("no_memory", blocks:put("k", ("k"):rep(900000)))
    wrong("no_memory", blocks:reserve("k", 900000))
    for i = 1, n do assert(blocks:pin("h" .. i, false)) end
    assert(blocks:put("k", ("k"):rep(900000)))
  end)

  it("has groups go together, and parents after their children", function()
    local _, blocks = full {}
    for i = 1, 5 do
      assert(blocks:put("g" .. i, ("g"):rep(100000), { group = 9 }))
    end
    assert(blocks:put("p1", ("p"):rep(100000)))
    for i = 2, 5 do
      assert(blocks:put("p" .. i, ("p"):rep(100000), { parent = "p" .. i - 1 }))
    end
    for i = 1, 60 do
      assert(blocks:put("k" .. i, ("v"):rep(100000)))
      local there = assert(blocks:has { "g1", "g2", "g3", "g4", "g5" })
      for n = 2, 5 do assert.equal(there[1], there[n]) end
      there = assert(blocks:has { "p1", "p2", "p3", "p4", "p5" })
      for n = 2, 5 do assert.is_true(there[n - 1] or not there[n]) end
    end
  end)

  it("refuses what is larger than it is", function()
    local _, blocks = full {}
    wrong("too_large", blocks:reserve("k", 9 * MIB))
    wrong("too_large", blocks:put("k", ("k"):rep(9 * MIB)))
    assert(blocks:put("k", ("k"):rep(7 * MIB)))
  end)
end)

describe("a cache that gets no memory of the system", function()
  it("says so, and goes on with what it has", function()
    local cache = caches.open { memory = 64 * MIB, slab = 4 * MIB }
    local blocks = caches.client()
    assert(blocks:put("k", ("k"):rep(100000)))
    local engine = caches.store(cache).engine
    local alloc, refused = engine.alloc, 0
    function engine.alloc()             -- as if the system had no more
      refused = refused + 1
      return nil, errors.new("no_memory", "none", false)
    end
    local err
    for i = 1, 100 do
      local fine, why = blocks:put("m" .. i, ("m"):rep(500000 + i))
      if not fine then err = why end
    end
    if err then wrong("no_memory", nil, err) end
    assert.is_true(refused > 0)
    cases.await(function() return (blocks:put("small", "s")) end)
    assert.equal("s", blocks:get "small")
    assert.is_true(cache:counters().evicted > 0)
    engine.alloc = alloc
    cases.await(function()
      return (blocks:put("large", ("l"):rep(2 * MIB)))
    end)
    assert.is_true(blocks:get "large" == ("l"):rep(2 * MIB))
  end)
end)

describe("a cache with huge pages", function()
  local before, warnings

  before_each(function()
    before, warnings = perigee.log, {}
    perigee.log = function(_, text) warnings[#warnings + 1] = text end
  end)

  after_each(function() perigee.log = before end)

  it("has them, or says that it has not", function()
    local cache = caches.open { huge = true, node = 0, slab = 2 * MIB }
    local blocks = caches.client()
    for i = 1, 3 do assert(blocks:put("k" .. i, ("v"):rep(MIB * 3 / 2))) end
    local told = assert(blocks:stats())[caches.name]
    assert.equal(cache:counters().huge, told.huge)
    if #warnings == 0 and cases.memory == "host" then
      assert.equal(6 * MIB, told.slabs)
      assert.equal(told.slabs, told.huge)
      for i = 1, 3 do assert(blocks:delete("k" .. i)) end
      cases.await(function()
        local now = cache:counters()
        return now.slabs < 6 * MIB and now.huge == now.slabs
      end)
    else
      assert.equal(0, told.huge)
    end
  end)

  it("says once that its slabs are too small for one", function()
    if cases.memory ~= "host" then return end
    local cache = caches.open { huge = true, slab = MIB }
    local blocks = caches.client()
    for i = 1, 3 do assert(blocks:put("k" .. i, ("v"):rep(MIB / 2 + i))) end
    assert.equal("v", assert(blocks:get "k1"):sub(1, 1))
    assert.equal(0, cache:counters().huge)
    assert.equal(1, #warnings)
  end)

  it("is not made of a NUMA node that is not there", function()
    local err = wrong("not_found",
                      perigee.cache(caches.options { node = 999 }))
    assert.matches("no memory of that NUMA node", tostring(err))
  end)
end)

describe("scopes", function()
  it("do not see each other's entries", function()
    local one, two = "s1" .. cases.scope, "s2" .. cases.scope
    local cache = caches.open { scopes = { one, two } }
    local function client(scope)
      return assert(assert(cases.agent(nil, { scope = scope }))
        :cache(caches.name))
    end
    local a, b = client(one), client(two)
    assert(a:put("k", ("a"):rep(20000)))
    assert(a:put("mine", "x"))
    wrong("not_found", b:get "k")
    assert(b:put("k", ("b"):rep(20000)))
    assert.is_true(a:get "k" == ("a"):rep(20000))
    assert.is_true(b:get "k" == ("b"):rep(20000))
    assert.equal(1, #assert(b:list()))
    assert.equal(2, #assert(a:list()))
    for _, event in ipairs(assert(b:events())) do
      assert.equal("k", event.key)
    end
    wrong("not_found", b:delete "mine")
    assert.equal(3, cache:counters().entries)
    assert.equal(2, #cache.agents)
    local stranger = caches.client({ reconnect = 0 })
    wrong("not_found", stranger:get "k")
  end)

  it("have the memory that they were told", function()
    local one, two = "s1" .. cases.scope, "s2" .. cases.scope
    local cache = caches.open { scopes = { [one] = 4 * MIB, [two] = 32 * MIB },
                                slab = MIB }
    assert.equal(36 * MIB, cache:counters().quota)
    local client = assert(assert(cases.agent(nil, { scope = one }))
      :cache(caches.name))
    for i = 1, 50 do assert(client:put("k" .. i, ("v"):rep(300000))) end
    assert.is_true(cache:counters().slabs <= 4 * MIB)
  end)
end)

-- ---- Several caches --------------------------------------------------------

local NAMES = { "cache:0", "cache:1", "cache:2" }

local function several(options)
  local children = {}
  for i, name in ipairs(NAMES) do
    children[i] = caches.start(("{ name = %q }"):format(name))
  end
  return children, caches.client(options, NAMES)
end

describe("several caches", function()
  it("share the keys", function()
    local _, blocks = several()
    local keys, there = {}, {}
    for i = 1, 300 do
      keys[i], there[i] = "key " .. i, true
      assert(blocks:put(keys[i], "value " .. i))
    end
    for i = 1, 300 do assert.equal("value " .. i, blocks:get(keys[i])) end
    assert.same(there, blocks:has(keys))
    assert.equal(300, blocks:match(keys))
    assert.equal(300, #assert(blocks:list()))
    for _, name in ipairs(NAMES) do
      local n = assert(blocks:stats())[name].entries
      assert.is_true(n > 50 and n < 150, name .. ": " .. n)
    end
    local other = caches.client(nil, { NAMES[3], NAMES[1], NAMES[2] })
    for i = 1, 300 do assert.equal("value " .. i, other:get(keys[i])) end
    assert.equal(300, #assert(blocks:events()))
    for i = 1, 300 do assert(blocks:delete(keys[i])) end
    assert.equal(0, #assert(other:list()))
  end)

  it("of which one is killed miss its keys, and take them then", function()
    local children, blocks = several { timeout = 5 }
    local region = cases.alloc(blocks.set.members[NAMES[1]].agent.engine, 65536)
    for i = 1, 60 do assert(blocks:put("k" .. i, ("v"):rep(i))) end
    local gone = 0
    for i = 1, 60 do
      if blocks:stat("k" .. i).cache == NAMES[2] then gone = gone + 1 end
    end
    children[2]:kill()
    local begun, missed = process.now(), 0
    for i = 1, 60 do
      local got, err = blocks:get("k" .. i)
      if got then
        assert.equal(("v"):rep(i), got)
      else
        wrong("not_found", got, err)
        missed = missed + 1
      end
    end
    assert.equal(gone, missed)
    for i = 1, 60 do assert(blocks:put("k" .. i, ("w"):rep(i))) end
    for i = 1, 60 do assert.equal(("w"):rep(i), blocks:get("k" .. i)) end
    local got = assert(blocks:get_many { { key = "k1", into = region:slice() },
                                         { key = "none",
                                           into = region:slice() } })
    assert.equal(1, got[1])
    assert.equal("not_found", got[2].kind)
    assert.equal(60, #assert(blocks:list()))
    assert.is_true(process.now() - begun < 60 * cases.slow)
    children[2] = caches.start(("{ name = %q }"):format(NAMES[2]))
    cases.await(function()              -- it has its keys again
      assert(blocks:put("k1", "x"))
      for i = 2, 30 do blocks:put("k" .. i, "x") end
      return blocks:stats()[NAMES[2]]
    end)
  end)

  it("keep each key as often as replicas says", function()
    local children, blocks = several { replicas = 2, timeout = 5 }
    for i = 1, 40 do assert(blocks:put("k" .. i, ("v"):rep(i * 500))) end
    local sum = 0
    for _, each in pairs(assert(blocks:stats())) do sum = sum + each.entries end
    assert.equal(80, sum)
    children[1]:kill()
    for i = 1, 40 do
      assert.is_true(assert(blocks:get("k" .. i)) == ("v"):rep(i * 500))
    end
    assert(blocks:delete "k1")
    wrong("not_found", blocks:get "k1")
  end)

  it("are asked by turns which keys are there", function()
    local children, blocks = several { replicas = 2, timeout = 5, map = false }
    local keys = {}
    for i = 1, 40 do
      keys[i] = "k" .. i
      assert(blocks:put(keys[i], "v"))
    end
    for i = 1, 39 do                    -- one of two may lose a key
      local first = caches.client(nil, assert(blocks:stat(keys[i])).cache)
      assert(first:delete(keys[i]))
    end
    keys[41] = "none"
    local there = assert(blocks:has(keys))
    for i = 1, 41 do assert.equal(i ~= 41, there[i], keys[i]) end
    assert.equal(40, blocks:match(keys))
    children[1]:kill()
    for _ = 1, 2 do                     -- as it is lost, and afterwards
      there = assert(blocks:has(keys))
      for i = 1, 41 do
        local got = blocks:get(keys[i])
        assert.equal(got ~= nil, there[i], keys[i])
      end
    end
  end)

  it("tell how many of them have taken what was put", function()
    caches.open { name = "cache:0" }
    caches.open { name = "cache:1", memory = MIB }
    local names = { "cache:0", "cache:1" }
    local blocks = caches.client({ replicas = 2 }, names)
    local function all(...) return { n = select("#", ...), ... } end
    assert.same({ true, 2, n = 3 }, all(blocks:put("k", "v")))
    assert.same({ true, 2, n = 3 }, all(blocks:put("k", "w", { ttl = 60 })))
    assert.same({ true, 2, n = 3 }, all(blocks:touch "k"))
    local fine, count, err = blocks:put("long", ("v"):rep(2 * MIB))
    assert.is_true(fine)
    assert.equal(1, count)
    wrong("too_large", nil, err)
    fine, count, err = blocks:delete "long"
    assert.is_true(fine)
    assert.equal(1, count)
    wrong("not_found", nil, err)
    assert.same({ true }, blocks:put_many { { key = "k", value = "x" } })
    assert.same({ true, n = 1 }, all(caches.client(nil, names):put("k", "v")))
    names[2] = "no:1"
    blocks = caches.client({ replicas = 2 }, names)
    fine, count, err = blocks:put("k", "v")
    assert.is_true(fine)
    assert.equal(1, count)
    wrong("not_found", nil, err)
  end)

  it("of which none is there are misses", function()
    local blocks = caches.client({ timeout = 2 }, { "no:1", "no:2" })
    wrong("not_found", blocks:get "k")
    wrong("not_found", blocks:put("k", "v"))
    assert.same({ false }, blocks:has { "k" })
    assert.equal(0, blocks:match { "k" })
    wrong("not_found", blocks:list())
    wrong("not_found", blocks:view "k")
    wrong("not_found", blocks:get("k", { wait = 0.1 }))
  end)

  it("that are listed come and go", function()
    caches.open { name = "cache:0" }
    local blocks = caches.client(nil, { kind = "cache" })
    for i = 1, 50 do assert(blocks:put("k" .. i, "v" .. i)) end
    local second = caches.start "{ name = 'cache:1' }"
    cases.await(function() return blocks:stats()["cache:1"] end)
    local missed = 0
    for i = 1, 50 do
      local got = blocks:get("k" .. i)
      if got then assert.equal("v" .. i, got) else missed = missed + 1 end
    end
    assert.is_true(missed > 5 and missed < 45)
    for i = 1, 50 do assert(blocks:put("k" .. i, "w" .. i)) end
    second:kill()
    cases.await(function()
      for i = 1, 50 do
        local got, err = blocks:get("k" .. i)
        if not got then wrong("not_found", got, err) end
      end
      return not blocks:stats()["cache:1"]
    end)
    for i = 1, 50 do assert(blocks:put("k" .. i, "x" .. i)) end
    for i = 1, 50 do assert.equal("x" .. i, blocks:get("k" .. i)) end
  end)
end)
