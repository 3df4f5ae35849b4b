-- SPDX-License-Identifier: Apache-2.0
-- What a client may read, and until when. Some tests have a cache that is made
-- by hand and scribbles over a place as soon as its lease was given back, as
-- another value would.
local loop = require "perigee.runtime.loop"
local native = require "perigee.cache.native"
local caches = require "spec.support.caches"
local maps = require "perigee.cache.mapped"
local cases = require "spec.support.cases"
local errors = require "perigee.runtime.errors"
local ffi = require "ffi"
local perigee = require "perigee"
local transfer = require "perigee.transfer"

local C = native.C
local answer, place, number = caches.answer, caches.place, caches.number
local SIZE = 16384                      -- too long to come along

-- ---- A cache by hand -------------------------------------------------------

local LOCATE, RELEASE = 3, 4

-- Keys are numbers: key n lies at place n.
local function scribbler(count, lease)
  local lies = { released = 0, located = 0, gone = {}, again = {} }
  local liar = caches.liar(lies)
  local slab = liar.engine:alloc(count * SIZE, { name = "cache.slab.0",
                                                 access = "r" })
  ffi.fill(slab.pointer, slab.length, 0x11)
  function lies.ask(request)
    local what, at, items = request:byte(2), 9, {}
    local asked = request:byte(5) + 256 * request:byte(6)
    for i = 1, asked do
      if what == RELEASE then
        local n = request:byte(at) + 256 * request:byte(at + 1)
        ffi.fill(slab.pointer + n * SIZE, SIZE, 0xee)
        lies.released, lies.gone[n] = lies.released + 1, true
        at, items[i] = at + 8, number(0, 4)
      elseif what == LOCATE then
        local length = request:byte(at)
        lies.located = lies.located + 1
        local n = tonumber(request:sub(at + 2, at + 1 + length))
        lies.again[n] = lies.gone[n]
        items[i] = number(0, 4) .. place { offset = n * SIZE, length = SIZE,
          lease = n + 2 ^ 20, ns = (lease or 30) * 1e9 } .. number(0, 4)
        at = at + 2 + length
      else
        items[i] = number(0, 4) .. number(1, 8)
      end
    end
    return answer(what, asked, table.concat(items))
  end
  return lies, liar
end

local function is_whole(text)
  return text == ("\17"):rep(SIZE)
end

describe("leases", function()
  after_each(cases.cleanup)

  it("that a client has too many of are given back for others", function()
    caches.open { leases = 16 }         -- two for a client
    local blocks, agent = caches.client { map = false, stale = 30 }
    local region = cases.alloc(agent.engine, 10 * SIZE)
    local items = {}
    for i = 1, 10 do
      assert(blocks:put("k" .. i, cases.bytes(SIZE, i)))
      items[i] = { key = "k" .. i, into = region:slice((i - 1) * SIZE, SIZE) }
    end
    for i = 1, 10 do
      assert.is_true(assert(blocks:get("k" .. i)) == cases.bytes(SIZE, i))
    end
    local got = assert(blocks:get_many(items))
    for i = 1, 10 do
      assert.equal(SIZE, got[i], tostring(got[i]))
      assert.is_true(items[i].into:string() == cases.bytes(SIZE, i))
    end
  end)
end)

describe("a cache whose leases are long", function()
  local cache, blocks

  before_each(function()
    cache = caches.open { lease = 600 }
  end)

  after_each(cases.cleanup)

  local function begin(options)
    blocks = caches.client(options)
    assert(blocks:put("k", cases.bytes(SIZE, 1)))
  end

  local function await_none()
    cases.await(function() return cache:counters().leases == 0 end)
  end

  it("has them back a while after what was read", function()
    begin { map = false }
    assert(blocks:get "k")
    await_none()
  end)

  it("has those back of many that had no bytes, or no room", function()
    local agent
    blocks, agent = caches.client { map = false }
    local into = cases.alloc(agent.engine, 64):slice()
    for i, value in ipairs { "", cases.bytes(SIZE, 1) } do
      assert(blocks:put("k", value))
      local got = blocks:get_many { { key = "k", into = into } }
      assert.equal(i == 1 and 0 or "too_large", i == 1 and got[1]
        or got[1].kind)
      await_none()
    end
  end)

  it("lets none get what is older than stale, though a view has kept it",
     function()
       begin { map = false, stale = 0.1 }
       local view = blocks:view "k"     -- nil: it is not mapped
       assert(caches.client():put("k", cases.bytes(SIZE, 2)))
       perigee.sleep(0.15)
       assert.is_true(blocks:get "k" == cases.bytes(SIZE, 2))
       if view then view:close() end
     end)

  it("lets none get what is older than was told, though a view has kept it",
     function()
       local list = require "perigee.cache.leases".new({}, function() end, 30e9)
       local function granted(version)
         return list:add("k", { version = version, till = 60e9, length = 1,
                                views = 0 }, loop.now())
       end
       local newer, older = granted(2), granted(1)
       list:keep("k", older)
       assert.is_nil(list:kept "k")
       assert.is_false(list:will_do("k", older))
       list:keep("k", newer, true)
       assert.equal(newer, list:kept "k")
     end)

  it("has none back that is about to be viewed", function()
    begin { map = false }
    local slab = maps.slab
    finally(function() maps.slab = slab end)
    function maps.slab(...)
      maps.slab = slab
      local found, err = slab(...)
      blocks.only.leases:forget "k"
      blocks.only.leases:flush()
      return found, err
    end
    local view = blocks:view "k"        -- nil: it is not mapped
    if view then
      assert.is_true(view:left() > 500)
      view:close()
    end
    await_none()
  end)

  it("has those back that are kept, but not used again", function()
    for _, stale in ipairs { 0.01, 300 } do
      begin { map = false, stale = stale }
      for _ = 1, 3 do assert(blocks:get "k") end
      await_none()
    end
    begin()
    local view = blocks:view "k"        -- nil: it is not mapped
    if view then
      view:close()
      await_none()
    end
  end)

  it("has them back while it drains", function()
    begin { map = false, reconnect = 0 }
    assert(blocks:stat "k")
    local lease = assert(blocks.only:locate "k")
    local reserved = assert(blocks:reserve("p", 3))
    local drained = perigee.spawn(function() return cache:drain(100) end)
    cases.await(function()
      local fine, err = blocks:put("l", "value", { wait = 0 })
      return not fine and err.code == "draining"
    end)
    perigee.sleep(0.05)
    assert.is_false(drained:done())
    assert.is_true(reserved:write "one")
    assert.is_true(reserved:seal())
    lease.among:was_read("k", lease)
    lease.among:tidy()
    assert.is_true(drained:wait(60 * cases.slow))
    assert.equal(0, cache:counters().leases)
  end)

  it("drains although somebody waits for a key", function()
    begin { map = false, reconnect = 0 }
    local got = perigee.spawn(function()
      return blocks:get("none", { wait = 100 })
    end)
    cases.await(function() return next(caches.store(cache).waiting) end)
    assert.is_true(cache:drain(20))
    assert.is_nil((got:wait(10 * cases.slow)))
    assert.is_true(got:done())
  end)

  it("tells of those that it did not get back", function()
    begin { map = false }
    assert(blocks:stat "k")
    assert(blocks.only:locate "k")
    local fine, err = cache:drain(0.1)
    assert.is_nil(fine)
    assert.equal("timeout", err.kind)
  end)
end)

-- An entry that comes back to memory, as from a file, has the version that it
-- had. What was copied from its former place may be another value's.
describe("a look into the directory", function()
  after_each(cases.cleanup)

  it("does not take an entry that has come back for the one before", function()
    local store = caches.store(caches.open())
    local put = native.put_t { length = 8,
                               client = C.perigee_cache_client(store.cache) }
    local view, at = C.perigee_cache_view_open(), native.place_t()
    assert.equal(0, C.perigee_cache_view_piece(view, 0,
                                               store.pieces[1].pointer))
    local function place_of(key)
      local place_, reserved = native.place_t(), nil
      cases.await(function()
        store:feed()
        reserved = C.perigee_cache_reserve(store.cache, key, 1, put, loop.now(),
                                           place_) == 0
        return reserved
      end)
      return place_.entry
    end
    local entry = place_of "k"
    local version = C.perigee_cache_seal(store.cache, entry, 0, loop.now())
    assert.equal(0, C.perigee_cache_seen(view, "k", 1, at))
    assert.equal(1, C.perigee_cache_same(view, "k", 1, at))
    assert.equal(0, C.perigee_cache_delete(store.cache, "k", 1))
    C.perigee_cache_seal(store.cache, place_of "l", 0, loop.now())
    assert.is_true(version == C.perigee_cache_seal_again(
      store.cache, place_of "k", 0, version, loop.now()))
    assert.equal(0, C.perigee_cache_same(view, "k", 1, at))
    C.perigee_cache_view_close(view)
  end)
end)

describe("a slab that was looked up", function()
  after_each(cases.cleanup)

  -- A task that waited for the look-up may go on when the session has ended.
  it("is lost with its session", function()
    scribbler(1)
    local blocks = caches.client { map = false, stale = 30 }
    assert.is_true(is_whole(blocks:get "0"))
    local session = blocks.only.session
    local remote = assert(session:region "cache.slab.0")
    session:close()
    local late = setmetatable({ region_apart = function() return remote end },
                              { __index = session })
    local got, err = maps.slab(maps.slabs(), late, 0)
    assert.is_nil(got)
    assert.equal("closed", err.kind)
  end)
end)

describe("a lease that was given back", function()
  after_each(cases.cleanup)

  it("is read by nobody any more, of more keys than leases are kept", function()
    local MANY = 4300
    local lies = scribbler(MANY)
    local blocks, agent = caches.client { map = false, stale = 30 }
    local region = cases.alloc(agent.engine, MANY * SIZE)
    local items = {}
    for n = 1, MANY do
      items[n] = { key = tostring(n - 1), into = region:slice((n - 1) * SIZE,
                                                              SIZE) }
    end
    local got = assert(blocks:get_many(items))
    cases.await(function() return lies.released > 0 end)
    for n = 1, MANY do
      assert.equal(SIZE, got[n], tostring(got[n]))
      if not is_whole(items[n].into:string()) then
        assert.is_true(lies.again[n - 1], "read when given back")
      end
    end
  end)

  it("is not what a get that waits meanwhile returns", function()
    local lies = scribbler(4)
    local blocks = caches.client { map = false, stale = 30 }
    assert(blocks:has { "0" })
    function lies.put()                 -- ends when the get has its lease
      repeat perigee.sleep(0) until lies.located > 0
      return 1
    end
    local value = ("v"):rep(SIZE)
    local put = perigee.spawn(function() return blocks:put("1", value) end)
    local got = perigee.spawn(function() return blocks:get "1" end)
    assert(put:wait(10))
    local text = assert(got:wait(10))
    assert.is_true(lies.located == 2 or is_whole(text), "read when given back")
  end)
end)

describe("a lease while its value is read", function()
  local read = transfer.read
  local lies, blocks

  before_each(function()
    lies = scribbler(1)
    blocks = caches.client { map = false, stale = 30 }
    assert.is_true(is_whole(blocks:get "0"))
  end)

  after_each(function()
    transfer.read = read
    cases.cleanup()
  end)

  -- Gets the value, and calls f(leases) when its bytes have come, before that
  -- is known.
  local function get_amid(f)
    transfer.read = function(...)
      local operation = read(...)
      return { wait = function()
        local fine, err = operation:wait()
        transfer.read = read
        f(blocks.only.leases)
        return fine, err
      end }
    end
    return assert(blocks:get "0")
  end

  it("may be given back, and is asked for again then", function()
    assert.is_true(is_whole(blocks:get "0")) -- and kept
    assert.equal(2, lies.located)
    get_amid(function(leases) assert.is_true(leases:clear()) end)
    assert.equal(3, lies.located)
  end)

  it("may have lost its place, and is asked for again then", function()
    assert.is_true(is_whole(blocks:get "0")) -- and kept
    transfer.read = function()
      transfer.read = read
      return { wait = function() return nil, errors.new("stale", "gone") end }
    end
    assert.is_true(is_whole(blocks:get "0"))
    assert.equal(3, lies.located)
  end)

  it("may be of what is old by then, and is not kept then", function()
    assert.is_true(is_whole(get_amid(function(leases)
      leases:answered("0", 1000)
    end)))
    assert(blocks:get "0")
    assert.equal(3, lies.located)
  end)
end)
