-- SPDX-License-Identifier: Apache-2.0
-- A sweep of a service of one's own: how long its methods take by size, in
-- turns, with every reply checked.
--
--   luajit examples/sweep.lua ["SIZES" [SECONDS [FILE.csv]]]
local common = dofile((arg[0]:match(".*/") or "./") .. "common.lua")
local bench = require "perigee.bench"
local perigee = require "perigee"

-- The service that is swept: a store of values by key.
local function worker()
  local agent = assert(perigee.agent { name = "store", scope = common.scope })
  local values = {}
  agent:serve {
    name = "store", version = 1,
    methods = {
      put = function(key, value) values[key] = value end,
      get = function(key) return values[key] end,
      echo = { raw = true, function(request) return request end },
    },
  }
  common.ready()
  perigee.run()
end

local function add_cases(sweep, store, size)
  local value = ("v"):rep(size)
  assert(select(2, store:put(size, value)) == nil)
  sweep:add("get", size, function()
    if assert(store:get(size)) ~= value then error("a wrong value") end
  end)
  sweep:add("echo", size, function()
    if assert(store:echo(value)) ~= value then error("a wrong echo") end
  end)
end

local function driver(sizes, seconds, file)
  local process = common.start(arg[0], "worker")
  local agent = assert(perigee.agent { scope = common.scope })
  local store = assert(agent:proxy("store", "store", { timeout = 5 }))
  local sweep = bench.sweep { seconds = seconds, turns = 4 }
  for _, size in ipairs(sizes) do add_cases(sweep, store, size) end
  local rows = sweep:run()
  bench.print(rows)
  if file then assert(bench.csv(file, rows)) end
  agent:close()
  common.stop(process)
  print "ok"
end

if arg[1] == "worker" then
  common.follow()
  worker()
else
  driver(assert(bench.sizes(arg[1] or "64,4K,64K")),
         assert(perigee.units.time(arg[2] or "0.1")), arg[3])
end
