-- SPDX-License-Identifier: Apache-2.0
-- One of two caches is killed: its keys are missed at once, not after the
-- timeout of a request. One is stopped: one request finds that out. One goes
-- away from a client that reads its memory and makes no requests.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local LONG = 30 * cases.slow

local function cache(child, _, _, name)
  child.cases.opened[1] = assert(require "perigee".cache {
    name = name, scope = child.cases.scope, memory = 2 ^ 24,
    engine = { encrypt = child.cases.sealed or nil } })
  child.say "ready"
  for _ in child.attend do              -- told to close
    child.cases.opened[1]:close()
    child.say "closed"
  end
end

-- Gets all keys; how many are there, and how many are missed.
local function got(blocks, keys)
  local found, missed = 0, 0
  for _, key in ipairs(keys) do
    local value, err = blocks:get(key)
    if value then
      assert.equal(key, value)
      found = found + 1
    else
      assert.equal("not_found", err.kind, err.message)
      missed = missed + 1
    end
  end
  return found, missed
end

describe("a cache that is killed", function()
  after_each(cases.cleanup)

  it("is misses, though its requests have much time", function()
    local lost = process.start(cache, "cache:1"):expect "ready"
    process.start(cache, "cache:2"):expect "ready"
    local agent = assert(cases.agent())
    local blocks = assert(agent:cache({ "cache:1", "cache:2" },
                                      { timeout = 100 * LONG, map = false }))
    local keys = {}
    for i = 1, 50 do
      keys[i] = "key." .. i
      assert(blocks:put(keys[i], keys[i]))
    end
    lost:kill()
    -- At first it is asked; later, again and again, whether it is back.
    for _ = 1, 2 do
      local found, missed = perigee.spawn(got, blocks, keys):wait(LONG)
      assert.is_number(found, tostring(missed))
      assert.is_true(found > 0 and missed > 0)
      perigee.sleep(1.2)
    end
    blocks:close()
  end)
end)

-- Each command of a shell is a client of its own, which knows nothing yet.
describe("a cache that is not there", function()
  after_each(cases.cleanup)

  it("has no keys: what is put goes to the others at once", function()
    process.start(cache, "cache:1"):expect "ready"
    local agent = assert(cases.agent())
    for i = 1, 20 do
      local blocks = assert(agent:cache { "cache:1", "cache:2", "cache:3" })
      assert(blocks:put("key." .. i, "value"))
      assert.equal("value", blocks:get("key." .. i))
      blocks:close()
    end
    local two = assert(agent:cache({ "cache:1", "cache:2" },
                                   { replicas = 2 }))
    local version, count, err = two:put("two", "value")
    assert.is_truthy(version, tostring(count))
    assert.equal(1, count)
    assert.matches("cache:2", err.message)
    two:close()
  end)

  -- Caches that are stopped are given up after the timeout, when the first may
  -- be asked again.
  it("is not tried twice for one key", function()
    local stopped = {}
    for i = 1, 2 do
      stopped[i] = process.start(cache, "cache:" .. i):expect "ready"
      stopped[i]:signal "STOP"
    end
    process.start(cache, "cache:3"):expect "ready"
    local agent = assert(cases.agent())
    local blocks = assert(agent:cache({ "cache:1", "cache:2", "cache:3" },
                                      { timeout = 1.5 }))
    local ring, members = require "perigee.cache.ring", blocks.set.members
    local list, i = { members["cache:1"], members["cache:2"],
                      members["cache:3"] }, 0
    repeat i = i + 1 until ring.owner(list, "key." .. i, 3).name == "cache:3"
    assert(blocks:put("key." .. i, "value"))
    blocks:close()
    for _, each in ipairs(stopped) do each:signal "CONT" end
  end)

  it("is told, with the reason, if no other is", function()
    local agent = assert(cases.agent())
    local blocks = assert(agent:cache { "cache:8", "cache:9" })
    local version, err = blocks:put("key", "value")
    assert.is_nil(version)
    assert.equal("not_found", err.kind)
    assert.matches("none of cache:8, cache:9 .*connecting to cache:[89]",
                   err.message)
    blocks:close()
  end)
end)

-- Gets of mapped memory do not run the loop, which would tell.
describe("a cache that goes away while its client does not run the loop",
         function()
  after_each(cases.cleanup)

  -- Asks again and again, with pauses in between, while the cache goes away.
  local function is_missed(asks, pause, go_away)
    local child = process.start(cache, "cache:1"):expect "ready"
    local agent = assert(cases.agent())
    local blocks = assert(agent:cache("cache:1", { reconnect = 0 }))
    assert(blocks:put("k", "value"))
    for _ = 1, 1000 do assert(asks(blocks)) end
    go_away(child)
    local limit, result, err = process.now() + LONG
    repeat
      process.usleep(pause)
      result, err = asks(blocks)
    until not result or process.now() > limit
    assert.is_nil(result)
    assert.is_true(err.kind == "peer_lost" or err.kind == "not_found",
                   tostring(err))
  end

  it("is missed by gets when it was killed", function()
    for _, pause in ipairs { 0, 0.01 } do
      is_missed(function(blocks) return blocks:get "k" end, pause,
                function(child) child:kill() end)
    end
  end)

  it("is missed by has when it has closed", function()
    is_missed(function(blocks) return blocks:has { "k" } end, 0,
              function(child)
                child:tell "close"
                child:expect "closed"
              end)
  end)
end)

describe("a cache that is stopped", function()
  after_each(cases.cleanup)

  it("costs gets of many keys no more timeouts than one get", function()
    local stopped = process.start(cache, "cache:1"):expect "ready"
    local agent = assert(cases.agent())
    local list, into = {}, cases.alloc(agent.engine, 64):slice()
    for i = 1, 3 do list[i] = { key = "key." .. i, into = into } end
    local function client()
      local blocks = assert(agent:cache({ "cache:1" },
                                        { timeout = 0.3 * cases.slow,
                                          map = false }))
      assert(blocks:put("key.1", "value"))
      return blocks
    end
    local first, second = client(), client()
    stopped:signal "STOP"
    local before = agent.engine:stats().timeouts
    first:get "key.1"
    local between = agent.engine:stats().timeouts
    local results = second:get_many(list)
    local after = agent.engine:stats().timeouts
    stopped:signal "CONT"
    for i = 1, 3 do assert.equal("not_found", results[i].kind) end
    assert.is_true(between > before)
    assert.equal(between - before, after - between)
    first:close()
    second:close()
  end)
end)

-- A program that makes no request about a key, but asks all caches.
describe("a cache that all caches are asked with", function()
  local blocks

  local function two(options)
    local first = process.start(cache, "cache:1"):expect "ready"
    local second = process.start(cache, "cache:2"):expect "ready"
    blocks = assert(assert(cases.agent()):cache({ "cache:1", "cache:2" },
                                                options))
    return first, second
  end

  after_each(function()
    blocks:close()
    cases.cleanup()
  end)

  -- The events from there on, of those that can be asked.
  local function told(from)
    local list
    cases.await(function()
      list = blocks:events { from = from }
      return list
    end)
    return list
  end

  it("is asked again after it was lost", function()
    local lost = two()
    assert.is_table(assert(blocks:stats())["cache:1"])
    lost:kill()
    cases.await(function()
      return not assert(blocks:stats())["cache:1"]
    end)
    process.start(cache, "cache:1"):expect "ready"
    local is_back = cases.eventually(function()
      return assert(blocks:stats())["cache:1"]
    end, LONG)
    assert.is_truthy(is_back, "it was lost once, and is never asked again")
  end)

  it("is missed by an error if no other one can be asked", function()
    blocks = assert(assert(cases.agent()):cache { "cache:1", "cache:2" })
    for _, ask in ipairs { "list", "stats", "events", "list" } do
      local list, err = blocks[ask](blocks)
      assert.is_nil(list, ask .. " of caches that are not there")
      assert.equal("not_found", err.kind)
      assert.matches("none of cache:1, cache:2", err.message)
    end
  end)

  it("tells later only what is new since it was asked", function()
    local stopped = two { timeout = cases.slow, map = false }
    for i = 1, 20 do assert(blocks:put("old." .. i, "value")) end
    local before = assert(blocks:events())
    assert.is_true(#before >= 20)
    stopped:signal "STOP"
    local later, by_number = told(before.next), told(3)
    stopped:signal "CONT"
    assert.same(before.next, later.next)
    assert.equal(3, by_number.next["cache:1"])
    cases.await(function()
      return (blocks:stats() or {})["cache:1"]
    end)
    for i = 1, 20 do assert(blocks:put("new." .. i, "value")) end
    later = told(later.next)
    assert.equal(20, #later)
    for _, event in ipairs(later) do assert.matches("^new", event.key) end
  end)
end)
