-- SPDX-License-Identifier: Apache-2.0
-- The two processes of bench/cache.lua: the cache's, on the second core, which
-- also has what the floors need (a service "bench", a region "bench"); and the
-- bench's own side, on the first core. One engine of the cache's process serves
-- both, so the cache and its floors are waited for in the same way.

local loop = require "perigee.runtime.loop"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"
local turns = require "bench.lib.turns"

local M = {}

-- Seconds of polling before a side sleeps; seconds after which a silent side
-- counts as dead, which is longer than any turn of a floor.
local SPIN, PATIENCE = 0.02, 600
M.SPIN = SPIN
local NAME = "cache:bench"
local LONG = { timeout = 60 }

local function engine() return { spin = SPIN, dead_after = PATIENCE } end

-- ---- The cache's process ---------------------------------------------------

-- Places in which the slices of a landed call land, one after the other.
local function landings(engine_of)
  local places, next_place, last = {}, 0, nil
  local service = {}
  function service.rotate(length, count)
    local region = assert(engine_of:alloc(length * count, { populate = true }))
    places, next_place = {}, 0
    for i = 1, count do
      places[i] = region:slice((i - 1) * length, length)
    end
    return true
  end
  service.land = {
    landing = function()
      next_place = next_place % #places + 1
      return places[next_place]
    end,
    function(slice)
      last = slice
      return slice.length
    end,
  }
  -- Tells whether other stamps than those of the round have landed.
  function service.landed_wrong(round)
    return payload.check(last.pointer, last.length, round) ~= 0
  end
  return service
end

-- The resident memory of this process, pages of others that it has mapped
-- included.
local function resident()
  local file = assert(io.open "/proc/self/statm")
  local pages = file:read "*a":match "^%d+ (%d+)"
  file:close()
  return tonumber(pages) * payload.PAGE
end

-- Tells whether a key has a value with other stamps than those of the round.
-- The cache's process looks itself, as it does for the floor: a client that
-- looked would move the bytes to its core.
local function put_wrong(cache, agent)
  local native = require "perigee.cache.native"
  local place, store = native.place_t(), cache.stores[agent]
  return function(key, round)
    local status = native.C.perigee_cache_stat(store.cache, key, #key,
                                               loop.now(), place)
    if status < 0 then return true end
    local pointer = store.slabs[tonumber(place.slab)].pointer + place.offset
    return payload.check(pointer, tonumber(place.length), round) ~= 0
  end
end

-- Opens so many caches more, besides all[1]; returns the names of all.
local function more(given, all)
  local names = { NAME }
  return function(count)
    for i = #names, count do
      names[i + 1] = NAME .. "." .. i
      all[i + 1] = assert(require "perigee".cache {
        name = names[i + 1], scope = given.scope, memory = given.memory,
        engine = engine() })
    end
    return names
  end
end

--- Serves until the bench ends.
function M.serve(given)
  process.die_with_parent(given.parent)
  assert(process.pin(0, given.pin[2]))
  local perigee = require "perigee"
  local cache = assert(perigee.cache {
    name = NAME, scope = given.scope, memory = given.memory,
    populate = given.populate, engine = engine(), evict = given.evict })
  local agent = cache.agents[1]
  local bytes = given.region > 0 and given.region or 1
  local region = assert(agent.engine:alloc(bytes, {
    name = "bench", access = "rw", populate = true }))
  region:slice():fill(1)
  local methods = landings(agent.engine)
  methods.add = function(a, b) return a + b end
  methods.echo = { raw = true, function(request) return request end }
  methods.put_wrong = put_wrong(cache, agent)
  local all = { cache }
  methods.resident, methods.more = resident, more(given, all)
  agent:serve { name = "bench", version = 1, methods = methods }
  turns.tell "ready"
  perigee.run()
  for _, each in ipairs(all) do each:close() end
end

-- ---- The bench's side ------------------------------------------------------

local Side = { NAME = NAME }
Side.__index = Side

--- Starts the cache's process and an agent. options: memory (bytes of the
-- cache), region (bytes of the region), populate (false: its pages are made
-- when they are used), evict.
function M.start(given, options)
  local perigee = require "perigee"
  local self = setmetatable({ given = given,
                              scope = "bench-" .. process.pid() }, Side)
  for i = 2, 1, -1 do
    local fine, message = process.pin(0, given.pin[i])
    if not fine then error(message, 0) end
  end
  turns.start("server", {
    scope = self.scope, pin = given.pin[1] .. "," .. given.pin[2],
    memory = ("%d"):format(options.memory),
    region = ("%d"):format(options.region or 0),
    populate = options.populate == false and "no" or "yes",
    evict = options.evict or "lru" })
  self.agent = assert(perigee.agent { name = "driver", scope = self.scope,
                                      engine = engine() })
  self.engine = self.agent.engine
  self.proxy = assert(self.agent:proxy(NAME, "bench", LONG))
  self.session = assert(self.agent:session(NAME))
  return self
end

--- Returns the region of the cache's process.
function Side:region() return assert(self.session:region "bench") end

--- Returns a new client of the cache. stale: seconds for which leases are kept.
function Side:client(map, stale)
  return assert(self.agent:cache(NAME, { map = map, stale = stale }))
end

--- Opens as many agents more, each with a session, a client and a proxy of its
-- own.
function Side:others(count, map)
  local perigee, list = require "perigee", {}
  for i = 1, count do
    local agent = assert(perigee.agent {
      name = "driver-" .. i, scope = self.scope, engine = engine() })
    list[i] = { agent = agent,
                client = assert(agent:cache(NAME, { map = map })),
                proxy = assert(agent:proxy(NAME, "bench", LONG)) }
  end
  return list
end

--- Returns private memory: a region that no peer may touch.
function Side:private(length)
  local region = assert(self.engine:alloc(length, { access = "" }))
  region:slice():fill(1)
  return region
end

function Side:stop()
  if self.agent then self.agent:close() end
  turns.stop()
end

return M
