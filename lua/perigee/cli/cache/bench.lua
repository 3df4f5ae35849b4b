-- SPDX-License-Identifier: Apache-2.0
--- `perigee cache bench`: how long puts and gets of a cache take from here.
local caches = require "perigee.cli.cache.client"
local options = require "perigee.cli.options"
local units = require "perigee.runtime.units"

local TTL = 60                          -- seconds, if this cannot delete

local M = {
  name = "bench",
  summary = "Tell how long puts and gets take.",
  description = "Puts values one by one, gets each, and deletes them; tells "
    .. "how long each took. They have keys of their own, but room for them is "
    .. "made as for others: what is there may go. Connecting is not counted.",
}

function M.configure(parser)
  parser:option("-s --size", "Bytes of a value; default: 64K.")
    :argname "SIZE":convert(options.size):default(2 ^ 16)
  parser:option("-c --count", "How many values; default: 1000.")
    :argname "NUMBER":convert(options.count):default(1000)
  options.json(parser)
  caches.configure(parser, 30)
end

-- Calls f(key) for each key; returns the seconds that each took, sorted.
-- may_miss: a key that is gone is not counted.
local function timed(keys, may_miss, f)
  local loop = require "perigee.runtime.loop"
  local took = {}
  for _, key in ipairs(keys) do
    local began = loop.now()
    local fine, err = f(key)
    local seconds = (loop.now() - began) / 1e9
    if fine then
      took[#took + 1] = seconds
    elseif not (may_miss and caches.is_missed(err)) then
      caches.fail(err)
    end
  end
  table.sort(took)
  return took
end

local function summary(took, size)
  local sum = 0
  for _, each in ipairs(took) do sum = sum + each end
  local function at(share) return took[math.ceil(#took * share)] end
  return { count = #took, p50 = at(0.5), p99 = at(0.99),
           bytes_per_second = sum > 0 and #took * size / sum or 0 }
end

local function tell(given, told)
  local out = require "perigee.cli.out"
  if given.json then return out.json(told) end
  out.line("%d values of %s", given.count, units.format_size(given.size))
  for _, what in ipairs { "put", "get" } do
    local all = told[what]
    if all.count > 0 then
      out.line("  %s  %d, p50 %s, p99 %s, %s/s", what, all.count,
               units.format_time(all.p50), units.format_time(all.p99),
               units.format_size(all.bytes_per_second))
    else
      out.line("  %s  none was there", what)
    end
  end
end

function M.run(given)
  return caches.run(given, function(cache, agent)
    local region = caches.check(agent.engine:alloc(math.max(given.size, 1)))
    local value, keys = region:slice(0, given.size), {}
    for i = 1, given.count do
      keys[i] = ("bench/%s/%d"):format(agent.name, i)
    end
    caches.check(cache:stats())         -- has a session with each cache
    caches.check(cache:has(keys))
    local put = timed(keys, false, function(key)
      return cache:put(key, value, { ttl = TTL })
    end)
    local got = timed(keys, true, function(key)
      return cache:get(key, { into = value })
    end)
    for _, key in ipairs(keys) do cache:delete(key) end
    tell(given, { size = given.size, put = summary(put, given.size),
                  get = summary(got, given.size) })
  end)
end

return M
