-- SPDX-License-Identifier: Apache-2.0
-- Three caches that share the keys, as processes. One is killed: what it had is
-- missed, and nothing else; of what two caches have (`replicas`) nothing is
-- missed. It comes back, empty, and takes its share again.
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local ffi = require "ffi"
local perigee = require "perigee"

local NAMES, KEYS, LENGTH, SIGKILL = { "cache:0", "cache:1", "cache:2" }, 300,
                                     5000, 9
local LONG = 60                         -- seconds that a test may take

local roles = {}
for _, name in ipairs(NAMES) do
  roles[name] = function()
    assert(perigee.cache { name = name, scope = common.scope,
                           memory = 2 ^ 26 })
    common.ready()
  end
end

local function value_of(key) return (key .. ","):rep(LENGTH):sub(1, LENGTH) end

-- Gets all keys; returns those that are missed. There may be no other error.
local function missed(blocks, keys)
  local list = {}
  for _, key in ipairs(keys) do
    local value, err = blocks:get(key)
    if value then
      assert(value == value_of(key), "other bytes came")
    else
      assert(err.kind == "not_found", err)
      list[#list + 1] = key
    end
  end
  return list
end

-- Puts keys until they are all there. A put whose cache was just lost fails;
-- the next one goes to another.
local function put(blocks, keys)
  local deadline, rest = common.now() + LONG, keys
  repeat
    local items = {}
    for i, key in ipairs(rest) do
      items[i] = { key = key, value = value_of(key) }
    end
    local left = {}
    for i, fine in ipairs(blocks:put_many(items)) do
      if fine ~= true then left[#left + 1] = rest[i] end
    end
    rest = left
  until #rest == 0 or common.now() > deadline
  assert(#rest == 0, "some could not be put")
end

-- Waits until the client knows that a cache is there, or gone. Until then it
-- may read what it has mapped of one that is gone.
local function await(blocks, name, is_there)
  local deadline = common.now() + LONG
  while (assert(blocks:stats())[name] ~= nil) ~= is_there do
    assert(common.now() < deadline, name .. " has not come or gone")
    perigee.sleep(0.05)
  end
end

local function keys_of(prefix)
  local keys = {}
  for i = 1, KEYS do keys[i] = prefix .. i end
  return keys
end

local function driver(workers)
  local agent = assert(perigee.agent { scope = common.scope })
  local blocks = assert(agent:cache { kind = "cache" })
  local twice = assert(agent:cache({ kind = "cache" }, { replicas = 2 }))
  for _, name in ipairs(NAMES) do       -- listed a moment after it began
    await(blocks, name, true)
    await(twice, name, true)
  end
  local once, doubled = keys_of "once.", keys_of "twice."
  put(blocks, once)
  put(twice, doubled)
  assert(#missed(blocks, once) == 0 and #missed(twice, doubled) == 0)
  local told = {}
  for i, name in ipairs(NAMES) do
    told[i] = assert(blocks:stats())[name].entries
  end
  print(("%d keys, and %d that two caches have; the three have %s"):format(
    KEYS, KEYS, table.concat(told, ", ")))

  local killed = table.remove(workers, 2)
  ffi.C.kill(killed.pid, SIGKILL)
  killed.pipe:close()
  await(blocks, NAMES[2], false)
  local gone = missed(blocks, once)
  assert(#gone > 0 and #gone < KEYS, "a third should be missed")
  local lost = missed(twice, doubled)
  assert(#lost == 0, "what two caches have should be there")
  print(("%s was killed: %d keys are missed; none of those that two have")
    :format(NAMES[2], #gone))

  put(blocks, gone)
  assert(#missed(blocks, once) == 0)
  print "they were put again, to the other two"

  table.insert(workers, common.start(arg[0], NAMES[2]))
  await(blocks, NAMES[2], true)
  gone = missed(blocks, once)
  assert(#gone > 0 and #gone < KEYS, "its share should be its own again")
  put(blocks, gone)
  assert(#missed(blocks, once) == 0)
  print(("it came back empty: %d keys are its own again"):format(#gone))
  agent:close()
end

common.main(driver, roles, NAMES)
