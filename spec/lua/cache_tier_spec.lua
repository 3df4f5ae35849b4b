-- SPDX-License-Identifier: Apache-2.0
-- The file below a cache of this process: what happens to it when the cache is
-- closed, the loop is stopped, or the file fails.
local bytes = require "perigee.cache.bytes"
local cases = require "spec.support.cases"
local errors = require "perigee.runtime.errors"
local failure = require "perigee.cache.failure"
local perigee = require "perigee"
local process = require "spec.support.process"
local wire = require "perigee.cache.wire"

local ffi = require "ffi"
local C = require "perigee.cache.native".C
local core = require "perigee.native".C
local native = require "perigee.cache.native"

local COUNT, LENGTH, MANY = 40, 200000, 500
local FSIZE, XFSZ, IGNORE = 1, 25, 1    -- of Linux

ffi.cdef [[
struct spec_limit { uint64_t soft, hard; };
int spec_getrlimit(int, struct spec_limit *) __asm__("getrlimit");
int spec_setrlimit(int, const struct spec_limit *) __asm__("setrlimit");
intptr_t spec_signal(int, intptr_t) __asm__("signal");
]]

-- Runs f while no file may be written to: the disk fails.
local function without_disk(f)
  local limit = ffi.new "struct spec_limit"
  ffi.C.spec_signal(XFSZ, IGNORE)
  ffi.C.spec_getrlimit(FSIZE, limit)
  local soft = limit.soft
  limit.soft = 0
  ffi.C.spec_setrlimit(FSIZE, limit)
  local fine, why = pcall(f)
  limit.soft = soft
  ffi.C.spec_setrlimit(FSIZE, limit)
  assert(fine, why)
end

describe("the file of a cache", function()
  local path, cache, store, blocks

  local function opens(options)
    options = options or {}
    options.name, options.scope = "tiered", cases.scope
    options.memory, options.slab, options.lease = 2 ^ 22, 2 ^ 20, 0.2
    options.file, options.file_size = path, 2 ^ 26
    cache = assert(perigee.cache(options))
    cases.opened[#cases.opened + 1] = cache
    store = cache.stores[cache.agents[1]]
  end

  local function is_ready()
    cases.await(function() return store.tier:state().ready end)
  end

  before_each(function()
    path = os.tmpname()
    os.remove(path)
    opens()
    is_ready()
    blocks = assert(assert(cases.agent()):cache("tiered", { map = false }))
  end)

  after_each(function()
    cases.cleanup()
    os.remove(path)
  end)

  local function is_below(key)
    local below = C.perigee_cache_file_store(store.tier.file)
    return C.perigee_cache_stat(below, key, #key, 0, native.place_t()) == 0
  end

  local function only_below()
    for i = 1, COUNT do
      local key = tostring(i)
      if is_below(key) and not store:has(key) then return key end
    end
  end

  -- Puts more than memory has; returns a key that only the file has. While the
  -- disk is slow puts are refused, or values are gone before they are written.
  local function fill()
    local key
    cases.await(function()
      for i = 1, COUNT do
        local fine, err = blocks:put(tostring(i), cases.bytes(LENGTH, i))
        assert(fine or err.kind == "no_memory", err)
        perigee.sleep(0.01 * process.slow)
      end
      key = only_below()
      return key
    end)
    return key
  end

  it("is closed while a value is read from it", function()
    local key = fill()
    local tier = store.tier
    local fetch = perigee.spawn(function() return tier:fetch(key) end)
    perigee.run(function() cache:close() end) -- before the disk is looked at
    assert.is_nil((fetch:wait(10)))
  end)

  it("keeps the value of a key whose put is refused", function()
    local key = fill()
    local version, err = blocks:put(key, "new", { parent = "nobody" })
    assert.is_nil(version)
    assert.equal("not_found", err.kind)
    assert.is_true(is_below(key))
    assert(blocks:put(key, "new"))
    assert.is_false(is_below(key))
    local other = fill()
    blocks:delete(other)
    assert.is_false(is_below(other))
  end)

  -- Answers a request of a client that changes it as soon as it is answered.
  -- Returns the answer's length, and the answer.
  local function answered(request, change)
    local copied = ffi.new("uint8_t[?]", #request, request)
    local room = ffi.new("uint8_t[?]", 1024)
    local asked = wire.asked
    finally(function() wire.asked = asked end)
    wire.asked = function(view)
      if change then change(copied) end
      return asked(view)
    end
    return store:answer(next(store.clients),
                        { pointer = copied, length = #request },
                        { pointer = room, length = 1024 }), room
  end

  it("forgets what was deleted, whatever its client writes then", function()
    local key = fill()
    answered(wire.key(C.PERIGEE_CACHE_DELETE, 0, key), function(request)
      request[10] = ("x"):byte()
    end)
    assert.is_false(is_below(key), "what was deleted is in the file still")
  end)

  -- Puts values until that many keys are in the file alone; returns them.
  local function fill_many(count)
    local keys, value = {}, ("v"):rep(20000)
    cases.await(function()
      for i = 1, MANY do
        blocks:put("many." .. i, value)
        if i % 8 == 0 then perigee.sleep(0.01 * process.slow) end
      end
      keys = {}
      for i = 1, MANY do
        local key = "many." .. i
        if #keys < count and is_below(key) and not store:has(key) then
          keys[#keys + 1] = key
        end
      end
      return #keys == count
    end)
    return keys
  end

  -- More than the file has errands for.
  it("shows nothing of many that are deleted at once", function()
    local keys = fill_many(100)
    answered(wire.keys(C.PERIGEE_CACHE_DELETE, 0, keys, 1, #keys))
    local n, reply = answered(wire.keys(C.PERIGEE_CACHE_HAS, 0, keys, 1, #keys))
    assert.equal(("\0"):rep(#keys), ffi.string(reply + 8, n - 8),
                 "what was deleted is there still")
    n, reply = answered(wire.put(keys[#keys], "new", 3, {
      group = 0, ttl = 0, pin = 0, if_absent = true }, 0))
    -- Memory may be too full for it.
    assert.are_not.equal(C.PERIGEE_CACHE_EXISTS,
                         (wire.sealed { pointer = reply, length = n }))
    -- It may be written to the file before all is forgotten there.
    cases.await(function()
      return next(store.tier.void) == nil and store.tier.owed == 0
    end)
    for i = 1, #keys - 1 do assert.is_false(is_below(keys[i])) end
  end)

  it("forgets what has come while its key was still to be forgotten", function()
    local key = fill()
    store.tier.void[key], store.tier.voids = true, store.tier.voids + 1
    store.tier:forget(key)
    assert.is_false(is_below(key))
    assert.is_nil(store.tier.void[key])
    assert.equal(0, store.tier.voids)
  end)

  it("reads no more of an answer than there is of it", function()
    local _, reply = answered(wire.put("one", "", 0, {
      group = 0, ttl = 0, pin = 0, if_absent = false }, 0))
    reply[4] = 255
    assert.is_true(wire.has_put({ pointer = reply }, 20, 1))
    assert.is_false(wire.has_put({ pointer = reply }, 20, 2))
  end)

  it("lists what only it has, each key once", function()
    local key = fill()
    local seen = {}
    for _, each in ipairs(assert(blocks:list())) do
      assert.is_nil(seen[each])
      seen[each] = true
    end
    assert.is_true(seen[key])
    local by_one = {}
    assert(blocks.set.live[1]:list("", 1, function(each)
      by_one[each] = true
      return true
    end))
    assert.is_true(by_one[key])
    assert.same({ true }, blocks:has { key })
    assert.equal(1, blocks:match { key })
    assert.equal(LENGTH, assert(blocks:stat(key)).length)
    assert(blocks:delete(key))
    for _, each in ipairs(assert(blocks:list { prefix = key })) do
      assert.are_not.equal(key, each)
    end
  end)

  it("gives memory what is touched or pinned", function()
    local key = fill()
    assert.is_true(blocks:touch(key))
    assert.is_true(store:has(key))
    key = fill()
    assert.is_true(blocks:pin(key, "hard"))
    assert.is_true(store:has(key))
    assert.equal("not_found", select(2, blocks:pin "none").kind)
  end)

  local function evict(key)
    C.perigee_cache_delete(store.cache, key, #key)
  end

  -- Has what is fetched be evicted again before its client looks for it, that
  -- many times.
  local function evicts_again(times)
    local tier = store.tier
    function tier:fetch(key)
      local there, status = getmetatable(tier).fetch(self, key)
      times = times - 1
      if times >= 0 then evict(key) end
      return there, status
    end
  end

  it("gives what is evicted again before it is found", function()
    local key = fill()
    for _, use in ipairs { "get", "touch", "pin", "view" } do
      cases.await(function()            -- of a lease, too
        evict(key)
        return not store:has(key) and is_below(key)
      end)
      evicts_again(2)
      local got, err = blocks[use](blocks, key)
      assert.is_truthy(got, use .. ": " .. tostring(err))
      if use == "view" then got:close() end
    end
  end)

  it("is never told to be without what it has", function()
    local key = fill()
    evicts_again(math.huge)
    for _, use in ipairs { "get", "touch", "pin", "view" } do
      local got, err = blocks[use](blocks, key)
      assert.is_nil(got)
      assert.equal("stale", err.kind, tostring(err))
    end
  end)

  it("is asked again for what was evicted while another had it come", function()
    local key = fill()
    local first = perigee.spawn(function()
      local there = store.tier:fetch(key)
      evict(key)
      return there
    end)
    local second = perigee.spawn(function() return store.tier:fetch(key) end)
    assert.is_true(first:wait(10))
    assert.is_true(second:wait(10))
    assert.is_true(store:has(key))
  end)

  it("gives the value of a key that a writer has reserved", function()
    local key = fill()
    local place = assert(blocks:reserve(key, 3))
    local version = assert(blocks:stat(key)).version
    local value = cases.bytes(LENGTH, tonumber(key))
    assert.is_true(assert(blocks:get(key)) == value)
    evict(key)
    assert.is_true(assert(blocks:get(key, { wait = 10 })) == value)
    assert.equal(version, blocks:stat(key).version)
    assert.is_true(blocks:touch(key))
    assert(place:write "new")
    assert(place:seal())
    assert.equal("new", blocks:get(key))
    evict(key)
    assert.equal("not_found", select(2, blocks:get(key)).kind)
  end)

  it("has its keys be waited for", function()
    local key = fill()
    assert.is_true(blocks.set.live[1]:wait(key, 10))
    assert.is_false(store:has(key))
    assert.is_false(blocks.set.live[1]:wait("none", 0.01))
  end)

  -- Calls f() when what comes back has been copied, before that is known.
  local function after_copy(f)
    local copy = bytes.copy
    finally(function() bytes.copy = copy end)
    bytes.copy = function(...)
      local fine = copy(...)
      bytes.copy = copy
      f()
      return fine
    end
  end

  it("does not bring back what was deleted while it was copied", function()
    local key = fill()
    after_copy(function() store.tier:forget(key) end)
    assert.is_false(store.tier:fetch(key))
    assert.is_false(store:has(key))
    assert.equal(0, store:counters().reserved)
  end)

  it("gives its place up if a stop drops who copies", function()
    local key = fill()
    after_copy(function()
      perigee.stop()
      perigee.sleep(0)
    end)
    perigee.spawn(function() store.tier:fetch(key) end)
    perigee.run()
    assert.equal(1, store:counters().reserved)
    store.tier:turn()
    assert.equal(0, store:counters().reserved)
    assert.equal(0, store.tier.taken)
    assert.is_true(store.tier:fetch(key))
  end)

  it("sums a value on its way while others run, and writes it once", function()
    local summed, sum_in_turns = 0, bytes.sum_in_turns
    local under_way = {}
    finally(function() bytes.sum_in_turns = sum_in_turns end)
    bytes.sum_in_turns = function(part, done)
      local place = tostring(part.pointer)
      assert.is_nil(under_way[place])
      under_way[place], summed = true, summed + 1
      perigee.spawn(function()
        -- Three are summed at a time, faster than fill() evicts others.
        perigee.sleep(0.02)
        under_way[place] = nil
        sum_in_turns(part, done)
      end)
    end
    local key = fill()
    assert.is_true(summed > 0)
    assert.is_true(store.tier:fetch(key))
    cases.await(function() return store.tier.cold.writes == 0 end)
    assert.is_nil(next(store.tier.on_way))
  end)

  -- It may show forgotten values again, when it is opened again.
  it("is removed when it cannot be written to", function()
    local key = fill()
    local was
    store.tier.voids, store.tier.full = 2 ^ 18, true
    without_disk(function()
      store.tier:forget(key)
      was = cases.eventually(function() return not store.tier.file end, 5)
    end)
    assert.is_true(was)
    assert.is_nil((io.open(path)))
    assert.same({ false }, blocks:has { key })
    assert.is_false(store.tier:fetch(key))
    assert(blocks:put(key, "new"))
    assert.equal("new", blocks:get(key))
    assert.is_false(store.tier:fetch "none")
    local late = assert(assert(cases.agent()):cache("tiered", { map = false }))
    assert.same({ false }, late:has { "none" })
    assert.is_false(late.set.live[1].below)
  end)

  it("is removed when it cannot be written to while it is closed", function()
    local key = fill()
    cases.await(function() return store.tier.cold.writes == 0 end)
    without_disk(function()
      store.tier:forget(key)
      cache:close()
    end)
    assert.is_nil((io.open(path)))
  end)

  -- Each value of 200 KB takes 256 KiB on its way; memory has 4 MiB.
  it("takes an eighth of the memory for what is fetched, at most", function()
    fill()
    local before, most, fetches = store.engine:stats().regions, 0, {}
    for i = 1, COUNT do
      fetches[i] = perigee.spawn(function()
        return store.tier:fetch(tostring(i))
      end)
    end
    repeat
      perigee.sleep(0)
      most = math.max(most, store.engine:stats().regions - before)
      local left = 0
      for i = 1, COUNT do left = left + (fetches[i]:done() and 0 or 1) end
    until left == 0
    assert.is_true(most >= 1 and most <= 2, tostring(most))
    assert.equal(0, store.tier.taken)
  end)

  it("takes none of the clients that its cache may have", function()
    cache:close()
    opens { clients = 1 }
    is_ready()
    local one, other = assert(cases.agent()), assert(cases.agent())
    one = assert(one:cache("tiered", { map = false }))
    assert(one:put("k", "value"))
    other = assert(other:cache("tiered", { map = false }))
    for _, ask in ipairs { "get", "reserve" } do
      local got, err = other[ask](other, "k", ask == "reserve" and 1 or nil)
      assert.is_nil(got)
      assert.equal("no_memory", err.kind)
      assert.equal("clients", err.code)
      assert.matches("too many clients %(its option clients%)", err.message)
    end
    assert.equal("value", one:get "k")
  end)

  it("has puts and deletes be refused while it has too much to forget",
     function()
    local key = fill()
    store.tier.voids, store.tier.full = 2 ^ 18, true
    for _, value in ipairs { "new", cases.bytes(LENGTH, 0), false } do
      local change = value and "put" or "delete"
      local _, err = blocks[change](blocks, key, value or nil)
      assert.equal("no_memory", err.kind)
      assert.equal("forgets", err.code)
      assert.matches("the cache's file has too much to forget", err.message)
    end
    assert.equal(LENGTH, #assert(blocks:get(key)))
    store.tier.voids, store.tier.full = 0, false
    assert(blocks:put(key, "new"))
    assert.equal("new", blocks:get(key))
  end)

  it("is not closed before it has forgotten what it is to forget", function()
    local key = fill()
    cache:close()
    opens()
    assert.is_false(store.tier:state().ready)
    store.tier:forget(key)
    cache:close()
    opens()
    is_ready()
    assert.is_false(store.tier:fetch(key))
  end)

  -- A file that is being closed forgets nothing more.
  it("takes no processor while it does not answer, and says so once", function()
    local key, tier, before, said = fill(), store.tier, perigee.log, {}
    tier:forget(key)
    assert.equal(core.PERIGEE_AGAIN, C.perigee_cache_file_close(tier.file))
    tier.void[key], tier.voids, tier.patience = true, 1, 1e9
    perigee.log = function(level, message)
      if level == "error" then said[#said + 1] = message end
    end
    local began = os.clock()
    cache:close()
    local took = os.clock() - began     -- of the processor
    perigee.log = before
    assert.is_true(took < 0.25, tostring(took))
    assert.equal(1, #said)
    assert.is_truthy(said[1]:find("does not answer", 1, true))
    assert.is_nil((io.open(path)))
  end)

  local function any_below()
    for i = 1, COUNT do
      if is_below(tostring(i)) then return tostring(i) end
    end
  end

  -- Opens the cache again with the file's directory half read; returns a key
  -- that was found in it.
  local function half_read()
    cases.await(function() return store.tier.cold.writes == 0 end)
    cache:close()
    opens()
    local tier = store.tier
    local function stays() end
    tier.drive, tier.turn = stays, stays
    perigee.spawn(perigee.stop)         -- drops who reads on
    perigee.run()
    local ends = ffi.new "struct perigee_cache_file_end[1]"
    repeat
      C.perigee_cache_file_poll(tier.file, 0, 1, ends, 1)
    until any_below()
    assert.is_false(tier:state().ready)
    blocks = assert(assert(cases.agent()):cache("tiered", { map = false }))
    return any_below()
  end

  local function reads_the_rest()
    store.tier.drive, store.tier.turn = nil, nil
    store.tier:turn()
    is_ready()
  end

  it("shows nothing before it knows all that it has", function()
    fill()
    local key = half_read()
    assert.same({ false }, blocks:has { key })
    assert.same({}, blocks:list())
    assert.equal("not_found", select(2, blocks:stat(key)).kind)
    assert.equal("not_found", select(2, blocks:get(key)).kind)
    reads_the_rest()
    assert.same({ true }, blocks:has { key })
    assert.equal(LENGTH, #assert(blocks:get(key)))
  end)

  it("shows no value that was forgotten while it was read", function()
    local version = 0
    fill()
    for i = 1, COUNT do
      local there = blocks:stat(tostring(i))
      version = math.max(version, there and there.version or 0)
    end
    local key = half_read()
    blocks:delete(key)
    local other = key == "1" and "2" or "1"
    assert(blocks:put(other, "new"))
    assert.is_true(blocks:stat(other).version > version)
    assert(blocks:delete(other))
    reads_the_rest()
    assert.same({ false, false }, blocks:has { key, other })
    assert.equal("not_found", select(2, blocks:get(key)).kind)
    assert.equal("not_found", select(2, blocks:get(other)).kind)
    assert(blocks:put(key, "newer", { if_absent = true }))
    assert.equal("newer", blocks:get(key))
  end)

  local function head()
    local file = assert(io.open(path))
    local text = file:read(4096)
    file:close()
    return text
  end

  -- Opens another cache with what the file is now, as if its process had been
  -- killed; returns whether it has a key.
  local function would_have(key)
    local copied = path .. ".killed"
    assert.equal(0, os.execute(("cp --sparse=always %s %s"):format(path,
                                                                   copied)))
    local other = assert(perigee.cache { name = "killed", scope = cases.scope,
      memory = 2 ^ 22, slab = 2 ^ 20, file = copied, file_size = 2 ^ 26 })
    local own = other.stores[other.agents[1]]
    cases.await(function() return own.tier:state().ready end)
    local there = own.tier:fetch(key)
    other:close()
    os.remove(copied)
    return there
  end

  it("is begun anew if its process ends before it has forgotten", function()
    fill()
    local key, before = half_read(), head()
    local ends = ffi.new "struct perigee_cache_file_end[1]"
    store.tier:forget(key)
    cases.eventually(function()
      C.perigee_cache_file_poll(store.tier.file, 0, 1, ends, 1)
      return head() ~= before
    end, 5)
    assert.is_false(would_have(key))
    reads_the_rest()
    assert.is_false(store.tier:fetch(key))
    cache:close()
    opens()
    is_ready()
    assert.is_false(store.tier:fetch(key))
    assert.is_truthy(any_below())
    assert.is_true(store.tier:fetch(any_below()))
  end)

  -- It is stopped after its bytes have come, before it goes on with them.
  it("gives memory back of who was dropped with the bytes there", function()
    local key = fill()
    local tier = store.tier
    setmetatable(tier.done, { __newindex = function(all, token, done)
      if tier.taken == 0 then return rawset(all, token, done) end
      setmetatable(all, nil)
      all[token] = function(status)
        done(status)
        perigee.stop()
      end
    end })
    perigee.spawn(function() tier:fetch(key) end)
    perigee.run()
    assert.is_true(tier:fetch(key))
    tier:turn()
    assert.equal(0, tier.taken)
  end)

  it("gives back what a fetch had that was interrupted", function()
    local key = fill()
    local tier, sum = store.tier, bytes.sum
    local function interrupt()
      bytes.sum = sum
      errors.pass "interrupted!"
    end
    bytes.sum = interrupt
    local known
    local fetch = perigee.spawn(function()
      xpcall(tier.fetch, function(e) known = errors.is_interrupt(e, 2) end,
             tier, key)
    end)
    fetch:wait()
    bytes.sum = sum
    assert.is_true(known)
    assert.equal(0, tier.taken)
    assert.is_true(tier:fetch(key))
  end)

  it("can be asked for after a stop has dropped who asked", function()
    local key = fill()
    perigee.spawn(function() store.tier:fetch(key) end)
    perigee.spawn(perigee.stop)         -- before the disk is looked at
    perigee.run()
    assert.is_true(store.tier:fetch(key))
  end)
end)

describe("the files of several scopes", function()
  local path

  before_each(function()
    path = os.tmpname()
    os.remove(path)
  end)

  after_each(function()
    cases.cleanup()
    for i = 1, 3 do os.remove(path .. "." .. cases.scope .. i) end
  end)

  it("are made whatever parts of the memory they have", function()
    local scopes = { cases.scope .. 1, cases.scope .. 2, cases.scope .. 3 }
    cases.opened[1] = assert(perigee.cache { name = "scoped", scopes = scopes,
                                             memory = 2 ^ 22, file = path })
  end)
end)

describe("a file that a cache cannot have", function()
  local path

  before_each(function() path = os.tmpname() end)
  after_each(function()
    cases.cleanup()
    os.remove(path)
  end)

  -- Why is there no cache with that file?
  local function refused(file, size)
    local cache, err = perigee.cache { name = "refused", scope = cases.scope,
      memory = 2 ^ 22, file = file, file_size = size or 2 ^ 22 }
    assert.is_nil(cache)
    return ("%s %s"):format(err.kind, err.code), err.message
  end

  it("is an error that says why", function()
    local text, message = refused(path, 2 ^ 45)
    assert.equal("no_memory no_space", text)
    assert.is_truthy(message:find("are wanted", 1, true), message)
    assert.equal("denied read_only", (refused "/sys/perigee"))
    assert.equal("denied foreign", (refused "/dev/null"))
    local file = assert(io.open(path, "w"))
    file:write "what is no cache's"
    file:close()
    assert.equal("denied foreign", (refused(path)))
    os.remove(path)
    cases.opened[1] = assert(perigee.cache { name = "first",
      scope = cases.scope, memory = 2 ^ 22, file = path, file_size = 2 ^ 22 })
    assert.equal("name_taken in_use", (refused(path)))
  end)

  it("fails in a way of its own", function()
    local known = {}
    for _, name in ipairs { "NO_SPACE", "READ_ONLY", "FOREIGN", "IN_USE", "IO" }
    do
      local err = failure.of(C["PERIGEE_CACHE_" .. name], "opening")
      assert.equal(name:lower(), err.code)
      assert.not_equal("protocol", err.kind)
      assert.is_nil(known[err.message])
      known[err.message] = true
    end
  end)
end)
