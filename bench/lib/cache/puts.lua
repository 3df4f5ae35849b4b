-- SPDX-License-Identifier: Apache-2.0
-- Modes of bench/cache.lua that put: one value at a time, and values of all
-- sizes until the cache is full and long after that.
local loops = require "bench.lib.cache.loops"
local native = require "perigee.cache.native"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"
local rounds = require "bench.lib.rounds"

local core = require "perigee.native".C

local wrong = payload.wrong

local M = {}

-- put: puts that are looked at for the places that they use.
local WATCHED = 64
-- memory: keys, the bytes of a value at most, and how many entries have been
-- evicted when the cache counts as full.
local NAMES, LONGEST, FULL = 4096, 2 ^ 18, 4096

-- ---- put -------------------------------------------------------------------

local function put_one(client, memory, length, round)
  local slice = memory:slice(0, length)
  payload.stamp(slice.pointer, length, round)
  local fine, err = client:put(loops.key(length, loops.turn(round)), slice)
  if not fine then wrong("put", err) end
end

-- Returns how many places of the cache these puts use, by turns. (A lease would
-- keep a place from being used again, so the map is asked.)
local function places_of(client, memory, length)
  local map, place = client.only.map, native.place_t()
  local count, known = 0, {}
  for round = 1, WATCHED do
    put_one(client, memory, length, round)
    local key = loops.key(length, loops.turn(round))
    local status = native.C.perigee_cache_seen(map.view, key, #key, place)
    if status ~= core.PERIGEE_OK then wrong "put" end
    local name = ("%d.%d"):format(tonumber(place.slab), tonumber(place.offset))
    if not known[name] then count, known[name] = count + 1, true end
  end
  return count
end

local function landing(run, length, count)
  local proxy, from = run.side.proxy, run.memory:slice(0, length)
  assert(proxy:rotate(length, count))
  return loops.step {
    before = function(round) payload.stamp(from.pointer, length, round) end,
    one = function()
      local got, err = proxy:land(from)
      if got ~= length then wrong("land", err) end
    end,
    after = function(round)
      if proxy:landed_wrong(round) ~= false then wrong "land" end
    end,
  }
end

--- Returns a step that puts values of that length in turns.
function M.putting(run, client, length)
  assert(client:has { "none" })         -- a session, and the map
  run.memory:slice(0, length):fill(1)
  local from = run.memory:slice(0, length)
  local into = run.memory:slice(run.room, length)
  local options, keys, turn = { into = into }, {}, loops.turn
  for which = 0, loops.KEYS - 1 do keys[which] = loops.key(length, which) end
  return loops.step {
    before = function(round) payload.stamp(from.pointer, length, round) end,
    one = function(round)
      local fine, err = client:put(keys[turn(round)], from)
      if not fine then wrong("put", err) end
    end,
    after = function(round)
      if run.side.proxy:put_wrong(keys[turn(round)], round) ~= false then
        wrong "put"
      end
    end,
    whole = function(round)
      local part, err = client:get(keys[turn(round)], options)
      if not part then wrong("put", err) end
      if not payload.same(into.pointer, from.pointer, length) then
        wrong "put"
      end
    end,
  }
end

function M.put(run, length)
  local client = run.side:client(true)
  local step = M.putting(run, client, length)
  local count = places_of(client, run.memory, length)
  local floors
  if not run.given.no_floor then
    local least = landing(run, length, count)
    floors = function(seconds)
      return { ["landed call"] = rounds.round(least, seconds).histogram }
    end
  end
  return rounds.measure({ mode = "put", size = length, window = 1,
                          places = count }, run.given, step, floors)
end

-- ---- memory ----------------------------------------------------------------

-- Puts, gets and deletes of keys and lengths by chance, until then; returns how
-- many of each.
local function stir(client, memory, room, until_ns)
  local count = { put = 0, get = 0, delete = 0, missed = 0 }
  local options = { into = memory:slice(room, LONGEST) }
  repeat
    local key = ("stir.%d"):format(math.random(NAMES))
    local kind = math.random(10)
    local fine, err
    if kind <= 7 then
      local length = math.floor(LONGEST ^ math.random())
      fine, err = client:put(key, memory:slice(0, length),
                             kind == 1 and { ttl = 1 } or nil)
      count.put = count.put + 1
    elseif kind <= 9 then
      fine, err = client:get(key, options)
      count.get = count.get + 1
    else
      fine, err = client:delete(key)
      count.delete = count.delete + 1
    end
    if not fine and err.kind == "not_found" then
      count.missed = count.missed + 1
    elseif not fine then
      wrong("memory", err)
    end
  until process.now() >= until_ns
  return count
end

local MIB = 2 ^ 20

--- Tells the resident memory of the cache's process when it has been full, and
-- a while of puts later.
function M.memory(run)
  local given, out = run.given, run.report
  local client = run.side:client(false)
  local function used() return assert(run.side.proxy:resident()) end
  local function counters()
    return select(2, next(assert(client:stats())))
  end
  repeat
    stir(client, run.memory, run.room, process.now() + 1e8)
  until counters().evicted >= FULL
  local first, before = used(), counters()
  local count = stir(client, run.memory, run.room,
                     process.now() + given.stir * 1e9)
  local last, after = used(), counters()
  out:figure("memory_quota_mib", after.quota / MIB,
             "memory: the cache may have %.0f MiB of values")
  out:figure("memory_evicted_before", before.evicted,
             "memory: %.0f evicted until the start")
  out:figure("memory_start_mib", first / MIB,
             "memory: resident at the start %.1f MiB")
  out:figure("memory_end_mib", last / MIB,
             "memory: resident at the end %.1f MiB")
  out:figure("memory_grown_mib", (last - first) / MIB,
             "memory: grown by %.2f MiB")
  out:figure("memory_puts", count.put, "memory: %.0f puts meanwhile")
  out:figure("memory_evicted", after.evicted - before.evicted,
             "memory: %.0f evicted meanwhile")
  out:figure("memory_directory_mib", after.directory / MIB,
             "memory: the directory has %.1f MiB")
end

return M
