-- SPDX-License-Identifier: Apache-2.0
-- Mode `clients` of bench/cache.lua: many clients, each an agent with a session
-- of its own, ask one full cache for keys that are as often asked for as Zipf's
-- law says. Who misses a key puts it. The floor is the rate at which the cache's
-- process serves typed calls of the same clients.
local ffi = require "ffi"
local payload = require "bench.lib.payload"
local process = require "bench.lib.process"
local rounds = require "bench.lib.rounds"
local tasks = require "perigee.runtime.task"

local wrong, now = payload.wrong, process.now
local number = ffi.typeof "double *"

local M = {}

-- EXPONENT of Zipf's law; DRAWS that are made before. A key is SPREAD times
-- what fits into the cache.
local EXPONENT, DRAWS, SPREAD, BLOCK = 0.99, 2 ^ 16, 2, 4096

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

-- Has f(client number, round) called by a task for each client until then.
-- Returns a step.
local function crowd(count, f)
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
  return crowd(#others, function(i, round)
    local sum, err = others[i].proxy:add(round, 0.5)
    return sum == round + 0.5, err
  end)
end

local function numbered(slice, n)
  ffi.cast(number, slice.pointer)[0] = n
  return slice
end

local function asking(run, others, length, count, told)
  local order, keys, slices, options = M.zipf(count, DRAWS), {}, {}, {}
  for n = 1, count do keys[n] = ("zipf.%d.%d"):format(length, n) end
  for i = 1, #others do
    slices[i] = run.memory:slice(run.room + (i - 1) * length, length)
    options[i] = { into = slices[i] }
  end
  for n = 1, count do
    assert(others[1].client:put(keys[n], numbered(slices[1], n)))
  end
  return crowd(#others, function(i, round)
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

local function clients(run, mode, map, length)
  local given = run.given
  local others = run.side:others(given.clients, map)
  local count = math.ceil(SPREAD * run.cache_bytes / math.max(length, BLOCK))
  local told = { hits = 0, asked = 0 }
  local step = asking(run, others, length, count, told)
  local least = typed(others)
  local row = { mode = mode, size = length, window = given.clients }
  local function floors(seconds)
    return { ["typed calls"] = rounds.round(least, seconds).histogram }
  end
  told.hits, told.asked = 0, 0
  rounds.measure(row, given, step, not given.no_floor and floors or nil)
  row.hit_share = told.hits / told.asked
  row.hits_per_s = row.calls_per_s * row.hit_share
  row.ratio = row.floor_calls_per_s
              and row.floor_calls_per_s / row.hits_per_s
  for _, each in ipairs(others) do each.agent:close() end
  return row
end

function M.clients(run, size) return clients(run, "clients", false, size) end
function M.clients_map(run, size)
  return clients(run, "clients_map", true, size)
end

return M
