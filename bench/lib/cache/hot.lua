-- SPDX-License-Identifier: Apache-2.0
-- One key that all clients get all the time, of three caches: with copies at
-- the other two (option `hot`), and without. The caches are in one process, on
-- one core, so the rate cannot grow: what is told is what copies cost, and
-- which share of the gets each cache has served. Clients are tasks of the
-- bench's process, each with an agent of its own.
local crowd = require "bench.lib.cache.crowd"
local rounds = require "bench.lib.rounds"

local M = {}

local STALE, KEY = 1, "hot"

-- Clients of all caches, by so many agents.
local function clients(others, names, hot)
  local list = {}
  for i, each in ipairs(others) do
    list[i] = assert(each.agent:cache(names, { map = false, stale = STALE,
                                               hot = hot }))
  end
  return list
end

local function getting(list, options, length)
  return crowd.of(#list, function(i)
    local part, err = list[i]:get(KEY, options[i])
    return part and part.length == length, err
  end)
end

-- Requests for values that each cache has served.
local function hits(client)
  local all = {}
  for name, counters in pairs(assert(client:stats())) do
    all[name] = counters.hits
  end
  return all
end

--- The row, and the shares of the caches as figures.
function M.measure(run, length)
  local given = run.given
  local names = run.side.proxy:more(2)
  local others = run.side:others(given.clients, false)
  local options = {}
  for i, each in ipairs(others) do
    options[i] = { into = assert(each.agent.engine:alloc(length)):slice() }
  end
  local plain, copies = clients(others, names), clients(others, names, #names)
  assert(plain[1]:put(KEY, options[1].into))
  local without, with = getting(plain, options, length),
                        getting(copies, options, length)
  local function floors(seconds)
    return { ["without copies"] = rounds.round(without, seconds).histogram }
  end
  local row = rounds.measure({ mode = "hot", size = length,
                               window = given.clients }, given, with,
                             not given.no_floor and floors or nil)
  local before = hits(plain[1])
  rounds.round(with, given.seconds / given.turns)
  local after, sum = hits(plain[1]), 0
  for _, name in ipairs(names) do sum = sum + after[name] - before[name] end
  for i, name in ipairs(names) do
    run.report:figure(("hot_%d_share_%d"):format(length, i),
                      (after[name] - before[name]) / sum, ("hot: of %d B, %s "
                      .. "has served %%.3f of the gets"):format(length, name))
  end
  for _, each in ipairs(others) do each.agent:close() end
  return row
end

return M
