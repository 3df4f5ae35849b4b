-- SPDX-License-Identifier: Apache-2.0
-- Caches whose memory outlives their process: real processes that are killed,
-- and real holders.
local cases = require "spec.support.cases"
local loop = require "perigee.runtime.loop"
local perigee = require "perigee"
local process = require "spec.support.process"

local function server(child, its, _, scope)
  local cache = assert(its.cache { name = "kept", scope = scope,
                                   memory = 2 ^ 24, slab = 2 ^ 20, keep = 60,
                                   checksum = true, lease = 0.2 })
  child.say("ready", cache:counters().entries)
  its.spawn(function()
    its.sleep(1000)
  end)
  for order in child.attend do
    if order == "forget" then
      cache:forget()
      cache:close()
      child.say("forgotten")
    elseif order == "lost" then
      child.say("lost", select(2, next(cache.stores)).keep.lost)
    end
  end
end

-- Returns a function that sends a signal to the holder of this scope's cache.
local function holder()
  local pipe = io.popen([[for p in /proc/[0-9]*; do
    if [ "$(cat $p/comm 2>/dev/null)" = perigee-hold ] &&
      tr '\0' ' ' <$p/cmdline | grep -q '/]] .. cases.scope .. [[/'
    then basename $p; fi; done]])
  local told = pipe:read "*a"
  local pid = assert(tonumber(told), told)
  pipe:close()
  return function(signal)
    assert(os.execute(("kill -%s %d"):format(signal, pid)) == 0)
  end
end

describe("a cache whose memory is kept", function()
  local child, blocks, region

  -- Starts the cache; returns how many entries it has.
  local function starts()
    child = process.start(server, cases.scope)
    local count = tonumber((assert(child:read()):match "ready (%d+)"))
    assert(cases.eventually(function() return blocks:stats() end))
    return count
  end

  before_each(function()
    local agent = assert(cases.agent())
    blocks = assert(agent:cache("kept", { checksum = true, reconnect = 20 }))
    region = agent.engine:alloc(2 ^ 20)
  end)

  after_each(function()
    child:tell "forget"
    child:expect "forgotten"
    cases.cleanup()
  end)

  local function put(key, length)
    region:slice(0, length):write(cases.bytes(length, tonumber(key)))
    return assert(blocks:put(key, region:slice(0, length)))
  end

  -- Are a key's bytes what was put? Or nil: it is not there.
  local function right(key, length)
    local value, err = blocks:get(key)
    if not value and err.kind == "not_found" then return nil end
    return assert(value, err) == cases.bytes(length, tonumber(key))
  end

  it("goes on with what was sealed, after it was killed", function()
    assert.equal(0, starts())
    for i = 1, 40 do put(tostring(i), 20000 + i) end
    assert(blocks:put("41", "mortal", { ttl = 100 }))
    local place = assert(blocks:reserve("42", 100))
    assert(place:write("half"))
    child:kill()
    assert.equal(40, starts())
    for i = 1, 40 do assert.is_true(right(tostring(i), 20000 + i)) end
    assert.is_nil((blocks:get "41"))
    assert.is_nil((blocks:get "42"))
    assert(blocks:put("1", "new"))
    assert.equal("new", blocks:get "1")
  end)

  it("finds room for what is new in place of what is old", function()
    starts()
    for i = 1, 60 do put(tostring(i), 200000) end
    child:kill()
    starts()
    for i = 61, 160 do put(tostring(i), 200000) end
    local found = 0
    for i = 1, 160 do
      local fine = right(tostring(i), 200000)
      assert.not_equal(false, fine)
      found = found + (fine and 1 or 0)
    end
    assert.is_true(found >= 40)
  end)

  it("has only whole values, whenever it was killed", function()
    starts()
    local on = true
    local writer = perigee.spawn(function()
      local i = 0
      while on do
        i = i % 50 + 1
        region:slice(0, 30000):write(cases.bytes(30000, i))
        blocks:put(tostring(i), region:slice(0, 30000))
      end
    end)
    for _ = 1, 4 do
      perigee.sleep(0.05 * process.slow)
      child:kill()
      starts()
      for i = 1, 50 do
        assert.not_equal(false, right(tostring(i), 30000))
      end
    end
    on = false
    writer:wait()
  end)

  it("goes on without a holder that does not answer", function()
    starts()
    put("1", 100)
    local stopped = holder()
    stopped "STOP"
    for i = 2, 40 do put(tostring(i), 200000) end
    cases.await(function()
      child:tell "lost"
      return child:read() == "lost true"
    end)
    for i = 2, 40 do assert.not_equal(false, right(tostring(i), 200000)) end
    stopped "CONT"
  end)

  it("is begun anew once it was forgotten", function()
    starts()
    put("1", 100)
    child:tell "forget"
    child:expect "forgotten"
    child:kill()
    assert.equal(0, starts())
  end)
end)

describe("a cache whose holder is stopped", function()
  after_each(cases.cleanup)

  it("is refused, and others run meanwhile", function()
    local options = { name = "kept", scope = cases.scope, memory = 2 ^ 22,
                      keep = 60 }
    assert(perigee.cache(options)):close()
    local send = holder()
    send "STOP"
    local ended, turns = false, 0
    local ticker = perigee.spawn(function()
      while not ended do
        perigee.sleep(0.001)
        turns = turns + 1
      end
    end)
    local cache, err = perigee.cache(options)
    ended = true
    send "CONT"
    ticker:wait()
    assert.is_nil(cache)
    assert.equal("name_taken", err.kind)
    assert.is_true(turns > 10, turns)
    cases.await(function()
      cache = perigee.cache(options)
      return cache
    end)
    cache:forget()
    cache:close()
  end)

  it("is begun anew when its holder has ended meanwhile", function()
    local options = { name = "kept", scope = cases.scope, memory = 2 ^ 22,
                      keep = 60 }
    local cache = assert(perigee.cache(options))
    local send = holder()
    send "STOP"
    cache:forget()
    cache:close()
    perigee.spawn(function()
      perigee.sleep(0.1)
      send "CONT"
    end)
    cache = assert(perigee.cache(options))
    cache:forget()
    cache:close()
  end)

  -- Who goes on with a part drops what that is not whole without.
  it("for a while amid what it gives loses nothing", function()
    local options = { name = "kept", scope = cases.scope, memory = 2 ^ 24,
                      slab = 2 ^ 20, keep = 60 }
    local cache, agent = assert(perigee.cache(options)), assert(cases.agent())
    local blocks = assert(agent:cache "kept")
    for i = 1, 20 do assert(blocks:put("k" .. i, ("v"):rep(200000))) end
    cache:close()
    local send, deadline, answers = holder(), loop.deadline, 0
    loop.deadline = function(seconds)
      if seconds == 1 then answers = answers + 1 end
      if seconds == 1 and answers == 3 then
        send "STOP"
        perigee.spawn(function()
          perigee.sleep(1.5)
          send "CONT"
        end)
      end
      return deadline(seconds)
    end
    local err
    cache, err = perigee.cache(options)
    loop.deadline = deadline
    assert.is_nil(cache)
    assert.equal("peer_lost", err.kind)
    cases.await(function()
      cache = perigee.cache(options)
      return cache
    end)
    assert.equal(20, cache:counters().entries)
    cache:forget()
    cache:close()
  end)
end)
