-- SPDX-License-Identifier: Apache-2.0
-- Clients of a cache that lie: what they send is anything, tokens are guessed,
-- leases are never given back, and they die at any moment. The cache lives, and
-- serves an honest client whole values meanwhile.
local bit = require "bit"
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local liars = require "spec.support.liar"
local perigee = require "perigee"
local process = require "spec.support.process"

local contexts = require "perigee.serving.context"
local service = require "perigee.cache.service"
local tasks = require "perigee.runtime.task"

local number = caches.number
local seed = tonumber(os.getenv "PERIGEE_SEED") or 17
local cache, honest, attacker, region

local function wrong(kind, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err), tostring(err))
  if kind then assert.equal(kind, err.kind, tostring(err)) end
  return err
end

local function counters() return cache:counters() end

-- An honest value: whole after whatever was done.
local TEXT = cases.bytes(20000, 3)

local function all_is_well()
  assert.is_true(assert(honest:get "honest") == TEXT)
  assert.is_true(honest:put("other", "value"))
  assert.equal("value", honest:get "other")
  honest.only.leases:clear()
end

before_each(function()
  cache = caches.open { memory = 2 ^ 26, leases = 64, reservations = 16,
                        clients = 16 }
  honest = caches.client()
  assert(honest:put("honest", TEXT, { pin = "hard" }))
  local agent = assert(cases.agent())
  attacker = assert(agent:proxy(caches.name, "cache", { timeout = 20 }))
  region = cases.alloc(agent.engine, 2 ^ 22)
end)
after_each(function()
  local fine, why = pcall(all_is_well)
  cases.cleanup()
  assert(fine, why)
end)

-- ---- Requests --------------------------------------------------------------

describe("a raw request", function()
  it("of any bytes is answered", function()
    local chance = liars.chance(seed)
    for _ = 1, math.max(300, 20000 * cases.scale) do
      local bytes = { "\1", string.char(chance.next(14) - 1) }
      for i = 3, chance.next(80) do
        bytes[i] = string.char(chance.one_in(2) and chance.next(256) - 1
                               or chance.pick { 0, 0, 1, 2, 255 })
      end
      if chance.one_in(4) then bytes[1] = string.char(chance.next(256) - 1) end
      local room = attacker:with { capacity = chance.pick { 8, 9, 64, 600,
                                                            65536 } }
      local method = chance.one_in(8) and "release" or "ask"
      local got, err = room[method](room, table.concat(bytes))
      if got == nil then wrong(nil, got, err) end
    end
  end)

  it("has room for no answer", function()
    for capacity = 0, 12 do
      local got, err = attacker:with { capacity = capacity }
        :ask("\1\1\0\0" .. number(1, 4) .. "\1\0k")
      if got == nil then wrong(nil, got, err) end
    end
  end)

  it("asks for more than there is", function()
    local many = attacker:with { capacity = 2 ^ 20 }
    for what = 0, 12 do
      for _, count in ipairs { 0, 1, 4096, 4097, 2 ^ 32 - 1 } do
        local got, err = many:ask("\1" .. string.char(what) .. "\255\255"
          .. number(count, 4) .. ("\1\0k"):rep(4096))
        if got == nil then wrong(nil, got, err) end
      end
    end
  end)

  it("leases all, and never gives back: the others are told", function()
    local asked = "\1\3\0\0" .. number(64, 4) .. ("\6\0honest"):rep(64)
    local room = attacker:with { capacity = 65536 }
    for _ = 1, 20 do assert(room:ask(asked)) end
    assert.is_true(counters().leases <= 64)
    local other = caches.client { map = false }
    local got, err = other:get "honest"
    if got then return assert.is_true(got == TEXT) end
    wrong("no_memory", got, err)
  end)

  it("to release leases does nothing else", function()
    local room = attacker:with { capacity = 64 }
    for what = 0, 12 do
      local asked = "\1" .. string.char(what) .. "\0\0" .. number(1, 4)
        .. "\6\0honest"
      assert(room:ask("\1\1" .. asked:sub(3)))
      local got = assert(room:release(asked))
      if what ~= 4 then assert.equal(0, got:byte(2)) end -- a refusal
    end
  end)

  it("releases leases of others", function()
    local other = caches.client { map = false }
    assert(other:stat "honest")
    assert(other.only:locate "honest")
    local before, room = counters().leases, attacker:with { capacity = 64 }
    assert(before > 0)
    for lease = 0, 3000 do
      local method = lease % 2 == 0 and room.ask or room.release
      assert(method(room, "\1\4\0\0" .. number(1, 4)
        .. number(bit.band(lease, 127) + lease * 2 ^ 32 % 2 ^ 40, 8)))
    end
    assert.equal(before, counters().leases)
    assert.is_true(assert(other:get "honest") == TEXT)
  end)
end)

-- ---- Methods ---------------------------------------------------------------

local ANY = { 0, -1, 0.5, 2 ^ 53, 2 ^ 63, 1e308, -1e308, math.huge, 0 / 0, "",
              "x", "other", ("k"):rep(513), true, false, {}, { 1, 2 },
              { parent = 7, group = {}, ttl = "x", pin = {}, checksum = "y" },
              { parent = ("p"):rep(600), if_absent = 7 }, { ttl = -5 },
              { ttl = 1e308 }, { ttl = 0 / 0 }, { group = 0 / 0 },
              { group = -1 }, { pin = 0 / 0 }, { checksum = 0 / 0 },
              { checksum = -1 }, 5LL, 0xffffffffffffffffULL }

describe("a method of the service", function()
  it("takes anything", function()
    local chance = liars.chance(seed)
    local slices = { region:slice(0, 0), region:slice(0, 100),
                     region:slice(0, 20000), region:slice(),
                     region:slice(0, 64, { count = 10, stride = 128 }) }
    for _ = 1, math.max(300, 20000 * cases.scale) do
      local name = chance.pick { "put", "reserve", "write", "seal", "abort",
                                 "about" }
      local a, b, c = chance.pick(ANY), chance.pick(ANY), chance.pick(ANY)
      if name == "put" or name == "write" then
        if chance.one_in(10) then
          attacker[name](attacker, a, b, c)
        else
          attacker[name](attacker, chance.pick(slices), a, b)
        end
      else
        attacker[name](attacker, a, b, c)
      end
    end
    assert.is_true(counters().reserved <= 16)
  end)

  it("puts nothing without a slice", function()
    for _, value in ipairs { "x", 1, true, {}, 0 / 0 } do
      wrong("protocol", attacker:put(value, "k"))
    end
    wrong("protocol", attacker:put())
    assert.equal(0, counters().reserved)
  end)

  it("waits for nothing that is no key", function()
    for _, key in ipairs { "", ("k"):rep(513), ("k"):rep(2 ^ 19) } do
      wrong("protocol", attacker:wait(key, 0))
      wrong("protocol", attacker:fetch(key))
    end
    for _, each in ipairs(ANY) do
      local got, err = attacker:wait(each, 0)
      if got == nil then wrong(nil, got, err) else assert.is_false(got) end
      assert.is_nil(next(caches.store(cache).waiting))
      if not (type(each) == "number" and each > 1) then
        got, err = attacker:wait("none", each)
        if got == nil then wrong(nil, got, err) else assert.is_false(got) end
      end
    end
  end)

  it("waits, and leaves nothing of that", function()
    for i = 1, 100 do
      assert.is_false(attacker:wait("none " .. i % 7, 0.001))
    end
    assert.is_nil(next(caches.store(cache).waiting))
  end)

  it("reserves no more than there may be", function()
    local tokens, refused = {}, nil
    for i = 1, math.max(2000, 1e6 * cases.scale) do
      local token, err = attacker:reserve("r" .. i, 4096)
      if token then tokens[#tokens + 1] = token else refused = err end
    end
    assert.equal(16, #tokens)
    wrong("no_memory", nil, refused)
    assert.equal(16, counters().reserved)
    for _, token in ipairs(tokens) do assert(attacker:abort(token)) end
    assert.equal(0, counters().reserved)
  end)
end)

-- ---- Tokens ----------------------------------------------------------------

describe("a token", function()
  it("of another session is none", function()
    local place = assert(honest:reserve("mine", 8))
    assert(place:write("12345678"))
    for token = 0, 50 do
      wrong("stale", attacker:seal(token))
      wrong("stale", attacker:abort(token))
      wrong(nil, attacker:write(region:slice(0, 8), token, 0))
    end
    assert.is_true(place:seal())
    assert.equal("12345678", honest:get "mine")
  end)

  it("of a put that is under way is none either", function()
    local size = 2 ^ 21
    local mine, late = region:slice(0, size), region:slice(size, size)
    mine:fill(1)
    late:fill(2)
    local base = assert(attacker:reserve("base", 1))
    assert(attacker:abort(base))
    for try = 1, 10 do
      local token = base + try
      local put = attacker.async:put(mine, "k" .. try)
      local write = attacker.async:write(late, token, 0)
      local seal = attacker.async:seal(token)
      local abort = attacker.async:abort(token)
      assert(put:wait(20))
      wrong("stale", seal:wait(20))
      wrong("stale", abort:wait(20))
      wrong("stale", write:wait(20))
      local got = assert(honest:get("k" .. try))
      assert.is_true(got == ("\1"):rep(size), "a sealed value was written")
    end
  end)

  -- However calls overlap: these are what the engine calls when a put and a
  -- write to its place have arrived.
  it("of a put is none to a write that overlaps it", function()
    local store = caches.store(cache)
    local methods = service.of(store).methods
    local id = next(store.clients)
    contexts.raw.session = id
    local slice = assert(methods.put.landing(8, "k"))
    wrong("stale", methods.write.landing(8, store.tokens, 0))
    assert.is_nil(store:reservation(id, store.tokens))
    slice:write "12345678"
    assert(methods.put[1](slice, "k"))
    assert.equal("12345678", honest:get "k")
  end)

  -- The sum of a large value is made in parts, and meanwhile others run: the
  -- client's session ends, and another's put gets the place.
  it("of a put that has ended is not another put's in its place", function()
    local length = 2 ^ 25
    local summing = caches.open { name = "summing", kind = "host",
                                  memory = length, slab = length,
                                  checksum = true }
    local store = caches.store(summing)
    local methods = service.of(store).methods
    local function put_of_new_client(key)
      local before = {}
      for id in pairs(store.clients) do before[id] = true end
      assert(caches.client({ map = false }, "summing"):has { key })
      for id in pairs(store.clients) do
        if not before[id] then contexts.raw.session = id end
      end
      return assert(methods.put.landing(length, key)), contexts.raw.session
    end
    local first, id = put_of_new_client "first"
    local sleep, second = tasks.sleep, nil
    tasks.sleep = function()            -- luacheck: ignore
      tasks.sleep = sleep               -- luacheck: ignore
      store.engine.sessions[id]:close()
      cases.await(function() return not store.clients[id] end)
      second = put_of_new_client "second"
    end
    local version, err = methods.put[1](first, "first")
    wrong("stale", version, err)
    assert.equal(first.owner, second.owner)
    assert.equal(first.offset, second.offset)
    assert.equal(1, summing:counters().reserved)
    second:fill(7)
    assert(methods.put[1](second, "second"))
    assert.is_nil(next(store.landed))
  end)

  it("of a put is none when the cache is closed", function()
    local store = caches.store(cache)
    local methods = service.of(store).methods
    contexts.raw.session = next(store.clients)
    local slice = assert(methods.put.landing(8, "k"))
    local other = assert(methods.put.landing(8, "l"))
    cache:close()
    wrong("stale", methods.put[1](slice, "k"))
    methods.put.abandoned(other)
    cache = caches.open()
    cases.await(function() return honest:put("honest", TEXT) end)
  end)

  it("is not sealed or aborted while bytes for it come", function()
    local size = 2 ^ 21
    local slice = region:slice(0, size)
    slice:fill(3)
    for try = 1, 10 do
      local token = assert(attacker:reserve("w" .. try, size))
      local write = attacker.async:write(slice, token, 0)
      local seal = attacker.async:seal(token)
      assert(write:wait(20))
      local sealed, err = seal:wait(20)
      if not sealed then
        wrong("no_memory", sealed, err)
        assert(attacker:seal(token))
      end
      assert.is_true(honest:get("w" .. try) == ("\3"):rep(size))
      wrong("stale", attacker:write(slice, token, 0))
      wrong("stale", attacker:abort(token))
    end
  end)

  -- No landing runs for it, and tokens are guessed.
  it("is written to by no call that has no slice", function()
    local store = caches.store(cache)
    local place = assert(honest:reserve("mine", 8))
    local one = assert(store.reserved[place.token])
    for _, value in ipairs { "no slice", place.token, {}, 0 / 0 } do
      wrong("protocol", attacker:write(value, place.token, 0))
    end
    wrong("protocol", attacker:write(nil, place.token))
    assert.equal(0, one.filling)
    assert.is_true(place:write("12345678"))
    assert.equal(0, one.filling)
    assert.is_true(place:seal())
    assert.equal("12345678", honest:get "mine")
  end)

  it("gets no slice that is another argument than the first", function()
    local store = caches.store(cache)
    local token = assert(attacker:reserve("w", 8))
    wrong("protocol", attacker:write(8, region:slice(0, token), 0))
    wrong("protocol", attacker:write(8, token, 0, region:slice(0, 8)))
    wrong("protocol", attacker:put(8, "k", {}, region:slice(0, 8)))
    assert.is_nil(next(store.landed))
    assert(attacker:abort(token))
    assert.equal(0, counters().reserved)
  end)

  it("takes no bytes beyond its place", function()
    local token = assert(attacker:reserve("w", 100))
    for _, at in ipairs { 101, 1, 2 ^ 40, 2 ^ 53, -1, 0.5, 0 / 0, "x", {} } do
      local length = at == 101 and 0 or 100
      wrong(nil, attacker:write(region:slice(0, length), token, at))
    end
    wrong(nil, attacker:write(region:slice(0, 101), token, 0))
    assert(attacker:write(region:slice(0, 0), token, 100))
    assert(attacker:abort(token))
  end)
end)

-- ---- Deaths ----------------------------------------------------------------

-- A client that begins something, says so, and is killed.
local function victim(child, perigee_, _, step)
  local cases_ = child.cases
  local agent = assert(cases_.agent())
  local blocks = assert(agent:cache "cache:0")
  local region_ = cases_.alloc(agent.engine, 2 ^ 23)
  region_:slice():fill(9)
  assert(blocks:has { "k" })
  local proxy = assert(agent:proxy("cache:0", "cache"))
  if step == "put" then
    proxy.async:put(region_:slice(), "dead")
  elseif step == "reserve" then
    assert(proxy:reserve("dead", 2 ^ 23))
  elseif step == "write" then
    proxy.async:write(region_:slice(), assert(proxy:reserve("dead", 2 ^ 23)), 0)
  elseif step == "written" then
    assert(assert(blocks:reserve("dead", 10)):write "0123456789")
  elseif step == "leased" then
    child.lease = blocks:view "honest" or blocks:get "honest"
  elseif step == "waits" then
    for i = 1, 500 do proxy.async:wait("never " .. i, 3000) end
  elseif step == "reading" then
    agent.engine:alloc(64)
    perigee_.spawn(function()
      while true do blocks:get("honest", { into = region_:slice() }) end
    end)
  end
  child.say("now")
  perigee_.run()
end

describe("a client that is killed", function()
  for _, step in ipairs { "put", "reserve", "write", "written", "leased",
                          "waits", "reading" } do
    it("leaves nothing: " .. step, function()
      local before = counters()
      for try = 1, 3 do
        local child = process.start(victim, step)
        child:expect("now", 30 * cases.slow, cases.pump)
        for _ = 1, try * 3 do perigee.sleep(0) end
        child:kill()
        cases.await(function()
          local now = counters()
          return now.reserved == 0 and now.leases == before.leases
            and now.clients == before.clients
            and next(caches.store(cache).reserved) == nil
        end)
        if step == "waits" then         -- nobody waits any more
          cases.await(function() return next(caches.store(cache).waiting) == nil
          end)
        end
        local got, err = honest:get "dead"
        if got then                     -- its put was complete
          assert.equal("put", step)
          assert.is_true(got == ("\9"):rep(2 ^ 23))
          assert(honest:delete "dead")
        else
          wrong("not_found", got, err)
        end
        assert(honest:put("dead", "alive", { if_absent = true }))
        assert(honest:delete "dead")
        all_is_well()
      end
    end)
  end
end)
