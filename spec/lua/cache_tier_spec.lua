-- SPDX-License-Identifier: Apache-2.0
-- The file below a cache of this process: what happens to it when the cache is
-- closed, the loop is stopped, or the file fails.
local cases = require "spec.support.cases"
local perigee = require "perigee"
local process = require "spec.support.process"

local C = require "perigee.cache.native".C
local native = require "perigee.cache.native"

local COUNT, LENGTH = 40, 200000

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
    cases.await(function() return store.tier:state().ready end)
  end

  before_each(function()
    path = os.tmpname()
    os.remove(path)
    opens()
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

  -- Puts more than memory has; returns a key that only the file has.
  local function fill()
    for i = 1, COUNT do
      assert(blocks:put(tostring(i), cases.bytes(LENGTH, i)))
      perigee.sleep(0.01 * process.slow)
    end
    for i = 1, COUNT do
      local key = tostring(i)
      if is_below(key) and not store:has(key) then return key end
    end
    error "the file has nothing that memory has not"
  end

  it("is closed while a value is read from it", function()
    local key = fill()
    local tier = store.tier
    local fetch = perigee.spawn(function() return tier:fetch(key) end)
    repeat perigee.sleep(0) until tier.fetching[key]
    cache:close()
    assert.is_nil((fetch:wait(10)))
  end)

  it("can be asked for after a stop has dropped who asked", function()
    local key = fill()
    perigee.spawn(function()
      perigee.spawn(function() store.tier:fetch(key) end)
      repeat perigee.sleep(0) until store.tier.fetching[key]
      perigee.stop()
    end)
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
