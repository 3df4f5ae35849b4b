-- SPDX-License-Identifier: Apache-2.0
-- Many clients, each with a session of its own, ask one full cache for keys
-- that are as often asked for as Zipf's law says. Who misses a key puts it. The
-- floor is the rate of typed calls that the same clients make of the same
-- process.
--
-- Clients in C (bench/cache_clients.c) cost their core less than the cache's
-- process has to do, so their rates are the cache's. Clients in Lua are agents
-- and tasks of the bench's own process, whose core they fill.
local ffi = require "ffi"
local payload = require "bench.lib.payload"
local floor = require "bench.lib.floor"
local process = require "bench.lib.process"
local rounds = require "bench.lib.rounds"
local statistics = require "bench.lib.statistics"
local tasks = require "perigee.runtime.task"

local wrong, now = payload.wrong, process.now
local number = ffi.typeof "double *"

local M = {}

-- EXPONENT of Zipf's law; DRAWS that are made before. A key is SPREAD times
-- what fits into the cache.
local EXPONENT, DRAWS, SPREAD, BLOCK = 0.99, 2 ^ 18, 2, 4096

--- Returns numbers from 1 to count by chance: n comes as often as 1 / n ^ 0.99.
function M.zipf(count, draws)
  local sums, sum, list = {}, 0, {}
  for n = 1, count do
    sum = sum + 1 / n ^ EXPONENT
    sums[n] = sum
  end
  for i = 1, draws do
    local at, low, high = math.random() * sum, 1, count
    while low < high do
      local middle = math.floor((low + high) / 2)
      if sums[middle] < at then low = middle + 1 else high = middle end
    end
    list[i] = low
  end
  return list
end

--- Has f(client number, round) called by a task for each client until then.
-- Returns a step.
function M.of(count, f)
  local round = 0
  return function(samples, capacity, until_ns)
    local n, workers, first, failed = 0, {}, now(), nil
    for i = 1, count do
      workers[i] = tasks.spawn(function()
        local ended
        repeat
          round = round + 1
          local begin = now()
          local fine, err = f(i, round)
          ended = now()
          if not fine then
            failed = failed or err or "wrong bytes"
            return
          end
          if n < capacity then samples[n] = ended - begin end
          n = n + 1
        until failed or n >= capacity or ended >= until_ns
      end)
    end
    for i = 1, count do workers[i]:wait() end
    if failed then wrong("clients", failed) end
    return math.min(n, capacity), now() - first
  end
end

local function typed(others)
  return M.of(#others, function(i, round)
    local sum, err = others[i].proxy:add(round, 0.5)
    return sum == round + 0.5, err
  end)
end

local function numbered(slice, n)
  ffi.cast(number, slice.pointer)[0] = n
  return slice
end

-- Puts the keys; returns them.
local function filled(client, slice, count)
  local keys = {}
  slice:fill(1)
  for n = 1, count do
    keys[n] = ("zipf.%d.%d"):format(slice.length, n)
    assert(client:put(keys[n], numbered(slice, n)))
  end
  return keys
end

local function asking(others, length, count, told)
  local order, slices, options = M.zipf(count, DRAWS), {}, {}
  for i = 1, #others do
    slices[i] = assert(others[i].agent.engine:alloc(length)):slice()
    options[i] = { into = slices[i] }
  end
  local keys = filled(others[1].client, slices[1], count)
  return M.of(#others, function(i, round)
    local n = order[round * 7919 % DRAWS + 1]
    told.asked = told.asked + 1
    local part, err = others[i].client:get(keys[n], options[i])
    if part then
      told.hits = told.hits + 1
      return ffi.cast(number, part.pointer)[0] == n
    elseif err.kind ~= "not_found" then
      return nil, err
    end
    return others[i].client:put(keys[n], numbered(slices[i], n))
  end)
end

-- How many keys there are.
local function count_of(run, length)
  return math.ceil(SPREAD * run.cache_bytes / math.max(length, BLOCK))
end

-- Completes a row by the share of requests that were hits.
local function told_of(row, share)
  row.hit_share, row.hits_per_s = share, row.calls_per_s * share
  row.ratio = row.floor_calls_per_s
              and row.floor_calls_per_s / row.hits_per_s
  return row
end

local function in_lua(run, mode, map, length)
  local given = run.given
  local others = run.side:others(given.clients, map)
  local told = { hits = 0, asked = 0 }
  local step = asking(others, length, count_of(run, length), told)
  local least = typed(others)
  local row = { mode = mode, size = length, window = given.clients }
  local function floors(seconds)
    return { ["typed calls"] = rounds.round(least, seconds).histogram }
  end
  told.hits, told.asked = 0, 0
  rounds.measure(row, given, step, not given.no_floor and floors or nil)
  for _, each in ipairs(others) do each.agent:close() end
  return told_of(row, told.hits / told.asked)
end

function M.in_lua(run, size) return in_lua(run, "clients_lua", false, size) end
function M.by_map(run, size) return in_lua(run, "clients_map", true, size) end

--- The same from C.
function M.in_c(run, length)
  local given, count = run.given, count_of(run, length)
  filled(run.side:client(true), run.memory:slice(0, length), count)
  local words = { "--at", run.side.scope .. "/" .. run.side.NAME, "--window",
                  given.clients, "--count", count }
  local function burst(how)
    process.sleep(given.spin)           -- the cache's process sleeps by then
    return floor.burst("cache_clients", given, { "--how", how, unpack(words) },
                       given.seconds / given.turns, length)
  end
  local turns, bursts, shares = {}, {}, 0
  for turn = 1, given.turns do
    if not given.no_floor then bursts[turn] = burst("typed").typed end
    local pools = burst "hits"
    shares = shares + pools.share:mean()
    turns[turn] = { histogram = pools.hits, calls = pools.hits.count,
                    seconds = pools.hits.sum / given.clients / 1e9 }
  end
  if not given.no_floor then bursts[given.turns + 1] = burst("typed").typed end
  local row = { mode = "clients", size = length, window = given.clients,
                floor = not given.no_floor and "typed calls" or nil }
  statistics.row(row, turns, not given.no_floor and bursts or nil)
  return told_of(row, shares / given.turns)
end

return M
