-- SPDX-License-Identifier: Apache-2.0
-- A cache that is killed and started again, or replaced by another that takes
-- its name while it drains: its clients go on, and believe nothing of the
-- former life.
local caches = require "spec.support.caches"
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local SIZE = 20000

local function wrong(kind, got, err)
  assert.is_nil(got)
  assert.is_true(perigee.is_error(err), tostring(err))
  if kind then assert.equal(kind, err.kind, tostring(err)) end
  return err
end

-- Restarts a cache in a child, and waits until its client has noticed.
local function restarted(child, blocks)
  local session = blocks.only.session
  child:kill()
  cases.await(function() return not session.handle end)
  return caches.start()
end

local function put(blocks, key, value, options)
  cases.await(function() return (blocks:put(key, value, options)) end)
end

describe("a client whose cache is stopped", function()
  after_each(cases.cleanup)

  it("waits no longer than its timeout", function()
    local child = caches.start()
    local blocks, agent = caches.client { map = false, timeout = 0.5 }
    local into = cases.alloc(agent.engine, 2 ^ 22):slice()
    put(blocks, "k", cases.bytes(2 ^ 22, 1))
    for _ = 1, 3 do assert(blocks:get("k", { into = into })) end -- leased
    child:signal "STOP"
    local begun = process.now()
    for _, got in ipairs {
      { blocks:get("k", { into = into }) }, { blocks:put("k", "v") },
      { blocks:put("k", ("v"):rep(SIZE)) }, { blocks:stats() },
      { blocks:get_many { { key = "k", into = into } } },
      { blocks:get("none", { wait = 0.1 }) } } do
      assert.is_true(got[1] ~= nil or got[2].kind == "timeout",
                     tostring(got[2]))
    end
    assert.is_true(process.now() - begun < 15 * cases.slow) -- not 30 s each
    child:signal "CONT"
    cases.await(function() return (blocks:get("k", { into = into })) end)
  end)
end)

for _, map in ipairs { true, false } do
  describe("a client whose cache was restarted, map = " .. tostring(map),
           function()
    local child, blocks

    before_each(function()
      child = caches.start()
      blocks = caches.client { map = map, reconnect = 20 * cases.slow }
    end)
    after_each(cases.cleanup)

    it("gets no value of the former life", function()
      for life = 1, 3 do
        local short, long = "short " .. life, cases.bytes(SIZE, life)
        put(blocks, "s", short)
        put(blocks, "l" .. life, long)
        for _ = 1, 3 do
          assert.equal(short, blocks:get "s")
          assert.is_true(assert(blocks:get("l" .. life)) == long)
        end
        child = restarted(child, blocks)
        for _, key in ipairs { "s", "l" .. life } do
          local got, err
          cases.await(function()
            got, err = blocks:get(key)
            return got or err.kind ~= "peer_lost"
          end)
          wrong("not_found", got, err)
        end
        assert.same({ false, false }, blocks:has { "s", "l" .. life })
        assert.equal(0, blocks:match { "s" })
      end
    end)

    it("has no place of the former life", function()
      local place = assert(blocks:reserve("old", 8))
      assert(place:write("old old "))
      local seals = assert(blocks:reserve("old 2", 8))
      local aborts = assert(blocks:reserve("old 3", 8))
      child = restarted(child, blocks)
      put(blocks, "x", "y")
      local news = {}
      for i = 1, 5 do news[i] = assert(blocks:reserve("new " .. i, 8)) end
      for _ = 1, 2 do
        wrong("stale", place:write("12345678"))
        wrong("stale", place:seal())
        wrong("stale", seals:seal())
      end
      assert.is_true(aborts:abort())
      for i = 1, 5 do
        assert(news[i]:write "new new ")
        assert.is_true(news[i]:seal())
        assert.equal("new new ", blocks:get("new " .. i))
      end
      wrong("not_found", blocks:get "old")
    end)

    it("has no view of the former life", function()
      put(blocks, "v", cases.bytes(SIZE, 1))
      local view, err = blocks:view "v"
      if not caches.mapped then return wrong("unsupported", view, err) end
      child = restarted(child, blocks)
      put(blocks, "v", cases.bytes(SIZE, 2))
      assert.equal(0, view:left())
      wrong("stale", view:string())
      view:close()
      local now = assert(blocks:view "v")
      assert.is_true(now:string() == cases.bytes(SIZE, 2))
      now:close()
    end)

    it("is told that events are lost", function()
      for i = 1, 5 do put(blocks, "e" .. i, "x") end
      local before = assert(blocks:events())
      assert.equal(5, #before)
      assert.is_false(before.lost)
      child = restarted(child, blocks)
      for i = 1, 9 do put(blocks, "f" .. i, "x") end
      local after = assert(blocks:events { from = before.next })
      assert.is_true(after.lost)
      assert.equal(9, #after)
      local none = assert(blocks:events { from = after.next })
      assert.is_false(none.lost)
      assert.equal(0, #none)
    end)

    it("waits for the next life", function()
      put(blocks, "w", "1")
      child:kill()
      local session = blocks.only.session
      cases.await(function() return not session.handle end)
      local got = perigee.spawn(function()
        return blocks:get("w", { wait = 30 * cases.slow })
      end)
      perigee.sleep(0.05)
      child = caches.start()
      local other = caches.client()
      put(other, "w", "2")
      assert.equal("2", assert(got:wait(30 * cases.slow)))
    end)

    it("has errors with a kind while it is away", function()
      put(blocks, "k", "v")
      local quick = caches.client { map = map, reconnect = 0, timeout = 5 }
      assert.equal("v", quick:get "k")
      child:kill()
      cases.await(function() return not quick.only.session.handle end)
      wrong(nil, quick:get "k")
      wrong(nil, quick:put("k", "v"))
      wrong(nil, quick:put("k", ("v"):rep(SIZE)))
      wrong(nil, quick:has { "k" })
      wrong(nil, quick:match { "k" })
      wrong(nil, quick:view "k")
      wrong(nil, quick:reserve("k", 8))
      wrong(nil, quick:delete "k")
      wrong(nil, quick:stat "k")
      wrong(nil, quick:stats())
      wrong(nil, quick:list())
      wrong(nil, quick:events())
      wrong(nil, quick:get("k", { wait = 0.01 }))
    end)
  end)

  describe("a client whose cache drains and is replaced, map = "
           .. tostring(map), function()
    after_each(cases.cleanup)

    it("gets what the successor has", function()
      local former = caches.open { lease = 2 }
      local blocks = caches.client { map = map, reconnect = 20 }
      local keeper = caches.client { map = false }
      assert(blocks:put("s", "one"))
      assert(blocks:put("l", cases.bytes(SIZE, 1)))
      assert(blocks:put("m", cases.bytes(SIZE, 11)))
      assert.equal("one", blocks:get "s")
      assert.is_true(blocks:get "l" == cases.bytes(SIZE, 1))
      assert(keeper:stat "l")
      assert(keeper.only:locate "l")    -- a lease, so the drain lasts
      local drained = perigee.spawn(function() return former:drain(10) end)
      perigee.sleep(0.01)
      local successor = caches.open()
      local other = caches.client()
      cases.await(function() return (other:put("first", "x")) end)
      assert(blocks:put("s", "two"))
      assert(blocks:put("l", cases.bytes(SIZE, 2)))
      for _ = 1, 3 do
        assert.equal("two", blocks:get "s")
        assert.is_true(blocks:get "l" == cases.bytes(SIZE, 2))
        local got, err = blocks:get "m"
        if got then
          assert.is_true(got == cases.bytes(SIZE, 11))
        else
          wrong("not_found", got, err)
        end
      end
      assert.equal(3, successor:counters().sealed)
      drained:wait(20)
    end)
  end)
end

-- A client's tasks run while others wait: one finds the successor while another
-- is still about to use what the former has answered.
describe("a client that finds the successor while another task waits",
         function()
  local former, blocks, drained

  before_each(function()
    former = caches.open { lease = 20 }
    blocks = caches.client { map = false, reconnect = 20 }
    put(blocks, "l", cases.bytes(SIZE, 1))
  end)

  after_each(cases.cleanup)

  local function succeed()
    drained = perigee.spawn(function() return former:drain(0.5) end)
    perigee.sleep(0.01)
    caches.open()
    local other = caches.client()
    put(other, "other", cases.bytes(SIZE, 2)) -- where "l" was
    wrong("not_found", blocks:get "none")
  end

  it("views nothing of the former once its session has ended", function()
    local session = blocks.only.session
    function session:region_apart(...)
      self.region_apart = nil
      local remote, err = self:region_apart(...)
      succeed()
      return remote, err
    end
    local view = blocks:view "l"
    drained:wait(20)
    former:close()
    cases.await(function() return not session.handle end)
    if view then                        -- nil: it is not mapped
      assert.equal(0, view:left())
      wrong("stale", view:string())
    end
  end)

  it("gives nothing of the former's back to the successor", function()
    local lease = assert(blocks.only:locate("l"))
    succeed()
    put(blocks, "own", cases.bytes(SIZE, 3))
    assert(blocks.only:locate("own"))
    lease.among:was_read("l", lease)
    assert.is_true(lease.among:flush())
    local before = blocks:stats()["cache:0"].leases
    assert.equal(1, before)
    perigee.sleep(0.1)
    assert.equal(before, blocks:stats()["cache:0"].leases)
  end)

  it("reserves places of the successor", function()
    succeed()
    local place = assert(blocks:reserve("r", 3))
    assert(place:write "one")
    assert.is_true(place:seal())
    assert.equal("one", blocks:get "r")
  end)

  it("reads nothing of the successor where the former's value was", function()
    local by = blocks.only.by
    local located = by.located
    by.located = { ask = function(_, request)
      by.located = located
      local answer = { located:ask(request) }
      succeed()
      return unpack(answer, 1, 10)
    end }
    local got, err = blocks:get "l"
    assert.is_true(got == nil, "another value")
    wrong("not_found", got, err)
    drained:wait(20)
  end)
end)
