-- SPDX-License-Identifier: Apache-2.0
-- A cache whose slabs are memory of a GPU, by the fake driver, and a client in
-- another process: what comes and goes whole, with how many copies, what is
-- left when either is killed, and what goes to a file, or to memory of the
-- host, and comes from there.
local cases = require "spec.support.cases"
local links = require "spec.support.links"
local perigee = require "perigee"

local COPIES = 'return count "cuMemcpyAsync" + count "cuMemcpy2DAsync"'
  .. ' + count "cuMemcpyPeerAsync" + count "cuMemcpyBatchAsync"'

-- A cache in a process of its own, which serves. It says through a service how
-- many copies it has made since it last said so, and sets the driver. Of what
-- is below it tells how many values are on their way there, and waits until
-- none is (settled), or until another copy there or back is begun (moved); and
-- whether one is coming back because it is hot.
-- It holds all of these back until they may go on (hold, let_go), or has the
-- driver fail the next one.
local function cache_of(options)
  local cache = links.start ""
  cache:run(([[
    cache = require "spec.support.caches".open { kind = "cuda:0", %s }
  ]]):format(options or ""))
  cache:tell(([[
    function copies() %s end
    local store = select(2, next(cache.stores))
    local moves, moved, fails, held = store.moves, 0, false, false
    local copy = moves.copy
    function moves.copy(...)
      moved = moved + 1
      if held then held[#held + 1] = { ... } return end
      if fails then set "fail=cuMemcpyAsync@1:2" end
      fails = false
      return copy(...)
    end
    cache.agents[1]:serve { name = "spec", version = 1, methods = {
      copies = function() return copies() end,
      set = function(word) set(word) return true end,
      on_way = function() return store.tier.cold.writes end,
      is_coming = function(key) return store.tier.coming[key] ~= nil end,
      settled = function()
        while store.tier.cold.writes > 0 do perigee.sleep(0.001) end
        return true
      end,
      moved = function()
        local before = moved
        while moved == before do perigee.sleep(0) end
        return moved
      end,
      hold = function() held = {} return true end,
      let_go = function()
        local list = held
        held = false
        for i = 1, #list do copy(unpack(list[i], 1, 5)) end
        return true
      end,
      fail_next = function() fails = true return true end,
      holds = function(key) return store:has(key) end,
      count = function(name) return cache:counters()[name] end } }
    child.say "serving"
    perigee.run()
  ]]):format(COPIES))
  assert.equal("serving", cache:said())
  return cache
end

-- A client in a process of its own, with memory of the host and of a GPU, and
-- got(key, slice): "true" if the slice got the bytes of that seed.
local function client_of(options)
  local client = links.start ""
  client:run(([[
    blocks, agent = require "spec.support.caches".client { %s }
    theirs = agent:proxy("cache:0", "spec")
    host = agent.engine:alloc(2 ^ 22)
    gpu = agent.engine:alloc(2 ^ 22, { kind = "cuda:0", share = true })
    function put(key, slice, seed)
      slice:write(bytes(slice.length, seed))
      return tostring(select(2, blocks:put(key, slice)) or true)
    end
    function got(key, slice, seed)
      slice:fill(0xaa)
      local part, err = blocks:get(key, { into = slice })
      if not part then return err.kind end
      return tostring(part:string() == bytes(part.length, seed))
    end
    function becomes(f)
      for _ = 1, 5000 do
        if f() then return true end
        perigee.sleep(0.002)
      end
      return false
    end
  ]]):format(options or ""))
  return client
end

local says = links.says

local KINDS = { "host", "gpu" }

for _, map in ipairs { true, false } do
  describe("a cache in memory of a GPU, map = " .. tostring(map) .. ",",
           function()
    local client

    before_each(function()
      cache_of()
      client = client_of("map = " .. tostring(map))
    end)
    after_each(cases.cleanup)

    it("takes and gives values of the host and of GPUs", function()
      local seed = 0
      for _, size in ipairs { 1, 4096, 7168, 65537, 2 ^ 20 + 3 } do
        for _, from in ipairs(KINDS) do
          seed = seed + 1
          local key = ("k%d"):format(seed)
          says(client, ("put(%q, %s:slice(0, %d), %d)"):format(key, from, size,
                                                               seed), "true")
          for _, to in ipairs(KINDS) do
            says(client, ("got(%q, %s:slice(2 ^ 21, %d), %d)"):format(
              key, to, size, seed), "true")
          end
          says(client, ("blocks:get(%q) == bytes(%d, %d)"):format(key, size,
                                                               seed), "true")
        end
      end
    end)

    it("takes small values and empty ones as strings", function()
      says(client, 'blocks:put("small", "value") and blocks:put("none", "")',
           "true")
      says(client, 'blocks:get "small"', "value")
      says(client, 'blocks:get("small", { into = gpu:slice() }):string()',
           "value")
      says(client, '#blocks:get "none"', "0")
      says(client, 'blocks:get("none", { into = gpu:slice() }).length', "0")
    end)

    it("brings many values to pages of a GPU", function()
      client:run [[
        items = {}
        for i = 1, 8 do
          put("page" .. i, gpu:slice(0, 65536), i)
          items[i] = { key = "page" .. i,
            into = gpu:slice(2 ^ 20 + i * 4096, 4096,
                             { count = 16, stride = 65536 }) }
        end
        items[9] = { key = "none", into = host:slice() }
        lengths = blocks:get_many(items)
      ]]
      for i = 1, 8 do
        says(client, ("lengths[%d]"):format(i), "65536")
        says(client, ("items[%d].into:string() == bytes(65536, %d)"):format(
          i, i), "true")
      end
      says(client, "lengths[9].kind", "not_found")
    end)

    it("is written piece by piece from both kinds of memory", function()
      client:run [[
        place = assert(blocks:reserve("pieces", 2 ^ 17))
        host:slice(0, 2 ^ 16):write(bytes(2 ^ 17, 5):sub(1, 2 ^ 16))
        gpu:slice(0, 2 ^ 16):write(bytes(2 ^ 17, 5):sub(2 ^ 16 + 1))
        assert(place:write(gpu:slice(0, 2 ^ 16), 2 ^ 16))
        assert(place:write(host:slice(0, 2 ^ 16), 0))
      ]]
      says(client, 'got("pieces", gpu:slice(2 ^ 21, 2 ^ 17), 5)', "not_found")
      says(client, "place:seal()", "true")
      says(client, 'got("pieces", gpu:slice(2 ^ 21, 2 ^ 17), 5)', "true")
      client:run [[ place = assert(blocks:reserve("aborted", 2 ^ 17)) ]]
      says(client, 'place:write(gpu:slice(0, 2 ^ 17)) and place:abort()',
           "true")
      says(client, 'blocks:has({ "aborted" })[1]', "false")
    end)

    it("has no views", function()
      says(client, 'put("k", gpu:slice(0, 65536), 1)', "true")
      says(client, 'select(2, blocks:view "k").kind', "unsupported")
    end)

    it("forgets what it evicts", function()
      client:run [[
        for i = 1, 40 do
          assert(put("k" .. i, gpu:slice(0, 2 ^ 20), i) == "true")
        end
      ]]
      says(client, 'got("k1", gpu:slice(2 ^ 21, 2 ^ 20), 1)', "not_found")
      says(client, 'got("k40", gpu:slice(2 ^ 21, 2 ^ 20), 40)', "true")
      client:run [[ n = 0; for i = 1, 39 do
        local found = got("k" .. i, gpu:slice(2 ^ 21, 2 ^ 20), i)
        if found == "true" then n = n + 1 end
        assert(found == "true" or found == "not_found", found)
      end ]]
      says(client, "n > 0", "true")
    end)
  end)
end

describe("a get from memory of a GPU to memory of a GPU", function()
  after_each(cases.cleanup)

  local GET = 'got("k", gpu:slice(2 ^ 21, 2 ^ 20), 7)'
  -- The bytes of a get alone: filling and reading the slice copies, too.
  local BARE = 'blocks:get("k", { into = gpu:slice(2 ^ 21, 2 ^ 20) }).length'

  local function counted(options, map)
    cache_of(options)
    local client = client_of("map = " .. tostring(map))
    says(client, 'put("k", gpu:slice(0, 2 ^ 20), 7)', "true")
    says(client, GET, "true")           -- all is mapped that will be
    client:run("theirs:copies() " .. COPIES)
    says(client, BARE, tostring(2 ^ 20))
    return tonumber(client:run(COPIES)),
      tonumber(client:run "return theirs:copies()")
  end

  it("is one copy, which the client makes, if slabs are shared", function()
    for _, map in ipairs { true, false } do
      local by_client, by_cache = counted("share = true", map)
      assert.equal(1, by_client)
      assert.equal(0, by_cache)
      cases.cleanup()
    end
  end)

  it("is by the cache and through the host otherwise", function()
    local by_client, by_cache = counted()
    assert.is_true(by_client > 1)
    assert.is_true(by_cache > 1)
  end)
end)

describe("a put from shared memory of a GPU", function()
  after_each(cases.cleanup)

  it("is one copy, which the cache makes", function()
    cache_of()
    local client = client_of()
    client:run 'put("first", gpu:slice(0, 2 ^ 20), 1)'
    client:run("theirs:copies() " .. COPIES)
    says(client, 'blocks:put("k", gpu:slice(0, 2 ^ 20))', "true")
    says(client, "theirs:copies()", "1")
    assert.equal("0", client:run(COPIES))
  end)
end)

describe("checksums of a cache in memory of a GPU", function()
  after_each(cases.cleanup)

  it("are not made, and clients that check them get values", function()
    cache_of "checksum = true"
    local client = client_of "checksum = true"
    says(client, 'put("k", gpu:slice(0, 65536), 1)', "true")
    says(client, 'blocks:stat("k").checksum == 0', "true")
    says(client, 'got("k", gpu:slice(2 ^ 21, 65536), 1)', "true")
    says(client, 'got("k", host:slice(0, 65536), 1)', "true")
  end)
end)

describe("a cache in memory of a GPU", function()
  after_each(cases.cleanup)

  for _, share in ipairs { "", "share = true" } do
    it("goes on when a client is killed " .. share, function()
      cache_of(share)
      local first, second = client_of(), client_of()
      says(first, 'put("k", gpu:slice(0, 2 ^ 20), 3)', "true")
      says(second, 'got("k", gpu:slice(2 ^ 21, 2 ^ 20), 3)', "true")
      first:run [[ place = assert(blocks:reserve("half", 2 ^ 20))
                   assert(place:write(gpu:slice(0, 4096), 0)) ]]
      first:tell [[ child.say "putting"
                    while true do blocks:put("own", gpu:slice(0, 2 ^ 20)) end ]]
      assert.equal("putting", first:said())
      first:kill()
      says(second, 'got("k", gpu:slice(2 ^ 21, 2 ^ 20), 3)', "true")
      says(second, 'blocks:has({ "half" })[1]', "false")
      -- The cache learns that the first has gone, and what it reserved goes.
      second:run [[ repeat
        result = put("half", gpu:slice(0, 2 ^ 20), 4)
        perigee.sleep(0.002)
      until result == "true" ]]
      says(second, 'got("half", gpu:slice(2 ^ 21, 2 ^ 20), 4)', "true")
    end)

    it("leaves its clients misses when it is killed " .. share, function()
      local cache = cache_of(share)
      local client = client_of "timeout = 20"
      says(client, 'put("k", gpu:slice(0, 2 ^ 20), 3)', "true")
      says(client, 'got("k", gpu:slice(2 ^ 21, 2 ^ 20), 3)', "true")
      cache:kill()
      client:run [[ session = blocks.only.session
                    while session.handle do perigee.sleep(0.01) end ]]
      cache_of(share)
      client:run [[ repeat
        found = got("k", gpu:slice(2 ^ 21, 2 ^ 20), 3)
      until found ~= "peer_lost" ]]
      says(client, "found", "not_found")
      says(client, 'put("k", gpu:slice(0, 2 ^ 20), 5)', "true")
      says(client, 'got("k", gpu:slice(2 ^ 21, 2 ^ 20), 5)', "true")
    end)
  end
end)

-- Values of 1 MiB, of which the memory has 16, and what is below all.
local COUNT = 26

-- Puts them, or others, as fast as they are taken below.
local function fill(client, from, to)
  client:run(([[
    for i = %d, %d do
      assert(put("k" .. i, gpu:slice(0, 2 ^ 20), i) == "true")
      theirs:settled()
    end
  ]]):format(from or 1, to or COUNT))
end

-- Returns a key that is below alone, and the seed of its value.
local function one_below(client)
  local key = client:run(([[
    for i = 1, %d do
      if not theirs:holds("k" .. i) then return "k" .. i end
    end
    error "memory has all"
  ]]):format(COUNT))
  return key, tonumber(key:match "%d+")
end

-- Returns words that get a value of a seed to memory of that kind.
local function get_of(key, seed, to)
  return ("got(%q, %s:slice(2 ^ 21, 2 ^ 20), %d)"):format(key, to or "gpu",
                                                          seed)
end

local BELOW = {
  { "a file", "file = %q, file_size = 2 ^ 26" },
  { "a file, shared,", "share = true, file = %q, file_size = 2 ^ 26",
    once = true },
  { "memory of the host", "spill = 2 ^ 26" },
  { "memory of the host, mapped,", "spill = 2 ^ 26", map = true },
  { "memory of the host, shared,", "share = true, spill = 2 ^ 26",
    once = true },
}

for _, below in ipairs(BELOW) do
  describe("a cache in memory of a GPU with " .. below[1] .. " below",
           function()
    local path, client
    local is_file = below[2]:find "file" ~= nil

    local function begin(options, instead)
      cache_of(("lease = 0.2, %s %s"):format(options or "", instead
        or below[2]:format(path)))
      client = client_of("map = " .. tostring(below.map or false))
    end

    before_each(function()
      path = os.tmpname()
      os.remove(path)
    end)
    after_each(function()
      cases.cleanup()
      os.remove(path)
    end)

    it("finds all that was put again, also more than it holds", function()
      begin()
      fill(client)
      one_below(client)
      for i = 1, COUNT do
        says(client, get_of("k" .. i, i, KINDS[i % 2 + 1]), "true")
      end
      says(client, 'theirs:count "failed"', "0")
    end)
    if below.once then return end

    it("tells where each value lies", function()
      begin()
      fill(client)
      local key = one_below(client)
      local place = is_file and "file" or "memory"
      says(client, ("blocks:stat(%q).where"):format(key), place)
      says(client, ('blocks:stat("k%d").where'):format(COUNT), "gpu")
      says(client, ("select(2, blocks:list())[%q]"):format(key), place)
      says(client, ('select(2, blocks:list()).k%d'):format(COUNT), "gpu")
      says(client, "#blocks:list()", tostring(COUNT))
    end)

    it("forgets what is deleted or replaced", function()
      begin()
      fill(client)
      local key = one_below(client)
      says(client, ("blocks:delete(%q)"):format(key), "true")
      says(client, get_of(key, 0), "not_found")
      says(client, ("blocks:has({ %q })[1]"):format(key), "false")
      fill(client)
      key = one_below(client)
      says(client, ("put(%q, gpu:slice(0, 2 ^ 20), 77)"):format(key), "true")
      says(client, get_of(key, 77, "host"), "true")
    end)

    it("takes nothing that is deleted or replaced on its way", function()
      begin()
      client:run [[
        for i = 1, 11 do put("k" .. i, gpu:slice(0, 2 ^ 20), i) end
        theirs:hold()
        put("k12", gpu:slice(0, 2 ^ 20), 12)
      ]]
      says(client, "theirs:on_way() > 1", "true")
      says(client, 'blocks:delete "k1"', "true")
      says(client, 'put("k2", gpu:slice(0, 2 ^ 20), 77)', "true")
      client:run "theirs:let_go() theirs:settled()"
      says(client, 'blocks:has({ "k1" })[1]', "false")
      fill(client, 13, 32)
      says(client, 'theirs:holds "k2"', "false")
      says(client, get_of("k2", 77), "true")
      says(client, get_of("k1", 0), "not_found")
    end)

    -- The space of what was evicted is another's when the copies are made.
    it("takes nothing whose lease was over before its copy", function()
      begin "margin = 0.05,"
      client:run [[
        theirs:hold()
        for i = 1, 26 do
          put("k" .. i, gpu:slice(0, 2 ^ 20), i)
          perigee.sleep(0.02)
        end
      ]]
      says(client, "theirs:on_way() > 1", "true")
      says(client, 'theirs:holds "k1"', "false")
      client:run "theirs:let_go() theirs:settled()"
      says(client, get_of("k1", 1), "not_found")
      says(client, get_of("k2", 2), "not_found")
    end)

    it("goes on where a copy fails", function()
      begin()
      client:run [[
        for i = 1, 11 do put("k" .. i, gpu:slice(0, 2 ^ 20), i) end
        theirs:fail_next()
        put("k12", gpu:slice(0, 2 ^ 20), 12)
        theirs:settled()
      ]]
      says(client, 'theirs:count "failed"', "1")
      says(client, get_of("k1", 1), "true")
      fill(client)
      for i = 1, COUNT do says(client, get_of("k" .. i, i), "true") end
    end)

    if is_file then
      it("brings nothing back that is deleted on its way", function()
        begin()
        fill(client)
        local key = one_below(client)
        client:run(([[
          theirs:hold()
          key = %q
          found = perigee.spawn(function()
            return got(key, host:slice(0, 2 ^ 20), 0)
          end)
          theirs:moved()
          assert(blocks:delete(key))
          theirs:let_go()
        ]]):format(key))
        says(client, "found:wait(20)", "not_found")
        says(client, "blocks:has({ key })[1]", "false")
        says(client, 'put(key, host:slice(0, 2 ^ 20), 78)', "true")
        says(client, get_of(key, 78, "host"), "true")
      end)

      it("has a miss where a copy back fails", function()
        begin()
        fill(client)
        local key, seed = one_below(client)
        says(client, "theirs:fail_next()", "true")
        says(client, get_of(key, seed, "host"), "not_found")
        says(client, 'theirs:count "failed"', "1")
        says(client, get_of(key, seed, "host"), "true")
      end)
      return
    end

    it("leases and uses what is below alone", function()
      begin()
      fill(client)
      local key, seed = one_below(client)
      client:run(("key, before = %q, theirs:count 'leases'"):format(key))
      says(client, ("blocks:view(key):string() == bytes(2 ^ 20, %d)"):format(
        seed), "true")
      says(client, "theirs:count 'leases' > before", "true")
      says(client, "blocks:touch(key)", "true")
      says(client, "blocks:pin(key, 'hard')", "true")
      says(client, "blocks:match { key }", "1")
      says(client, ("blocks:get_many({ { key = key, into = gpu:slice(2 ^ 21, "
        .. "2 ^ 20) } })[1]"), tostring(2 ^ 20))
      says(client, "blocks:get(key) == bytes(2 ^ 20, " .. seed .. ")", "true")
      says(client, "theirs:holds(key)", "false")
    end)

    -- Fills it, runs words, and gets a value often that is below alone; returns
    -- its key, and words that get it.
    local function get_often(words)
      begin()
      fill(client)
      local key, seed = one_below(client)
      client:run(("key = %q %s"):format(key, words or ""))
      for i = 1, 10 do
        says(client, get_of(key, seed, KINDS[i % 2 + 1]), "true")
      end
      return key, get_of(key, seed)
    end

    it("brings back what is got often", function()
      local key, get = get_often()
      says(client, "becomes(function() return theirs:holds(key) end)", "true")
      says(client, get, "true")
      says(client, "blocks:stat(key).where", "gpu")
      says(client, "blocks:delete(key)", "true")
      says(client, get_of(key, 0), "not_found")
    end)

    it("gives what is coming back, and not what is deleted then", function()
      local key, get = get_often "theirs:hold()"
      says(client, "becomes(function() return theirs:is_coming(key) end)",
           "true")
      says(client, get, "true")
      says(client, "blocks:delete(key)", "true")
      client:run "theirs:let_go()"
      says(client, "becomes(function() return not theirs:is_coming(key) end)",
           "true")
      says(client, get_of(key, 0), "not_found")
      says(client, "blocks:has({ key })[1]", "false")
      says(client, 'put(key, gpu:slice(0, 2 ^ 20), 78)', "true")
    end)

    it("has what could not be copied back where it was", function()
      local _, get = get_often "theirs:fail_next()"
      says(client, "becomes(function() return theirs:count 'failed' == 1 end)",
           "true")
      says(client, get, "true")
      says(client, "blocks:stat(key).where", "memory")
    end)

    it("counts what it has of each kind apart", function()
      begin()
      fill(client)
      says(client, 'theirs:count "quota"', tostring(2 ^ 24))
      says(client, 'theirs:count "spill_quota"', tostring(2 ^ 26))
      says(client, 'theirs:count "slabs" <= 2 ^ 24', "true")
      says(client, 'theirs:count "spill_used" >= 10 * 2 ^ 20', "true")
      says(client, 'theirs:count "spilled" >= 10', "true")
      says(client, 'blocks:stats()["cache:0"].spilled >= 10', "true")
    end)

    it("loses the coldest when the host's is full, too", function()
      begin("", "spill = 2 ^ 23")
      fill(client)
      client:run [[
        n = 0
        for i = 1, 26 do
          local found = got("k" .. i, gpu:slice(2 ^ 21, 2 ^ 20), i)
          if found == "true" then n = n + 1 end
          assert(found == "true" or found == "not_found", found)
        end
      ]]
      says(client, "n >= 10 and n < 26", "true")
      says(client, get_of("k1", 1), "not_found")
      says(client, 'theirs:count "spill_evicted" > 0', "true")
    end)
  end)
end

describe("a cache of this process in memory of a GPU", function()
  local caches = require "spec.support.caches"
  local path

  before_each(function()
    path = os.tmpname()
    os.remove(path)
  end)
  after_each(function()
    cases.cleanup()
    os.remove(path)
  end)

  local function bytes(i) return cases.bytes(2 ^ 20, i) end

  -- Returns a store, a client, and the number of a value in the file alone.
  local function opens()
    local store = caches.store(caches.open {
      kind = "cuda:0", lease = 0.2, file = path, file_size = 2 ^ 26 })
    local blocks = caches.client { map = false }
    for i = 1, COUNT do
      assert(blocks:put("k" .. i, bytes(i)))
      cases.await(function() return store.tier.cold.writes == 0 end)
    end
    local first = 1
    while store:has("k" .. first) do first = first + 1 end
    return store, blocks, first
  end

  -- Has a task fetch a key until a stop of the loop drops it.
  local function fetch(store, key)
    perigee.spawn(function() store.tier:fetch(key) end)
    perigee.run()
  end

  local function brings(store, blocks, i)
    cases.await(function() return store:counters().reserved == 0 end)
    local key = "k" .. i
    assert.is_false(store:has(key))
    assert.is_true(store.tier:fetch(key))
    assert.equal(0, store.tier.taken)
    assert.is_true(blocks:get(key) == bytes(i))
  end

  it("brings a value back although a stop has dropped who asked", function()
    local store, blocks, i = opens()
    local copy, held = store.moves.copy, nil
    function store.moves.copy(...)
      held = { ... }
      perigee.stop()
    end
    fetch(store, "k" .. i)
    store.moves.copy = copy
    assert.equal(1, store:counters().reserved)
    copy(unpack(held))
    brings(store, blocks, i)
  end)

  it("brings it back although that was when its copy had ended", function()
    local store, blocks, i = opens()
    local copy = store.moves.copy
    function store.moves.copy(self, name, offset, to, done)
      copy(self, name, offset, to, function(fine)
        done(fine)
        perigee.stop()
      end)
    end
    fetch(store, "k" .. i)
    store.moves.copy = copy
    brings(store, blocks, i)
  end)
end)

describe("a cache that is to have memory of a GPU", function()
  after_each(cases.cleanup)

  local caches = require "spec.support.caches"

  it("is refused if there is none of that kind", function()
    for kind, why in pairs { ["cuda:99"] = "not_found",
                             nonsense = "unsupported" } do
      local cache, err = perigee.cache(caches.options { kind = kind })
      assert.is_nil(cache)
      assert.equal(why, err.kind)
    end
  end)

  it("is not kept, for its memory dies with its process", function()
    local _, why = pcall(perigee.cache, caches.options { kind = "cuda:0",
                                                         keep = 5 })
    assert.matches("option keep .* dies with its process", why)
  end)

  it("has memory of the host below it only if it is a GPU's, and no file",
     function()
    local _, why = pcall(perigee.cache, caches.options { spill = 2 ^ 20 })
    assert.matches("option spill .* memory of a GPU", why)
    _, why = pcall(perigee.cache, caches.options {
      kind = "cuda:0", spill = 2 ^ 20, file = cases.folder .. "/file" })
    assert.matches("spill or file, not both", why)
  end)
end)
