-- SPDX-License-Identifier: Apache-2.0
-- Processes that take, keep and give back a few names, while they, the store of
-- the names and the way to it are killed, stopped and cut. The script
-- overlaps.lua judges their notes.
local cases = require "spec.support.cases"
local overlaps = require "spec.hostile.overlaps"
local process = require "spec.support.process"
local stores = require "spec.hostile.stores"
local troubles = require "spec.hostile.trouble"

local M = {}

local HOLDERS = 4

-- ---- Children --------------------------------------------------------------

-- Takes and gives back names until it is killed. While it has one, it does
-- something in the name's right all the time, as long as `held` says so.
local function holder(child, perigee, ffi, address, path, seed, ttl)
  local file = assert(io.open(path, "a"))
  local time = ffi.new "int64_t[2]"
  file:setvbuf "no"
  math.randomseed(tonumber(seed))
  ttl = tonumber(ttl)
  local function now()
    ffi.C.spec_clock(7, time)
    return tonumber(time[0]) + tonumber(time[1]) * 1e-9
  end
  local function act(agent, name)
    local at = now()
    if agent.held then
      file:write(("acts %s %.6f %.6f\n"):format(name, at, now()))
    else
      file:write(("ends %s\n"):format(name))
    end
  end
  child.say "ready"
  while true do
    local name = "n" .. math.random(3)
    local agent = child.cases.agent(name, {
      registry = address ~= "" and address or nil })
    if agent then
      agent:on_lost(function() file:write(("ends %s\n"):format(name)) end)
      local long = ttl < 100 and math.random(3) == 1
      local till = now() + math.random() * (long and 3 * ttl or 0.1)
      repeat
        act(agent, name)
        perigee.sleep(0.002)
      until now() > till
      file:write(("ends %s\n"):format(name))
      agent:close()
    end
    perigee.sleep(math.random() * 0.02)
  end
end

-- ---- Runs ------------------------------------------------------------------

local Run = {}
Run.__index = Run

function Run:add(i)
  self.started = self.started + 1
  local path = ("%s/holder%d"):format(cases.folder, self.started)
  local way = i % 2 == 0 and self.way or nil
  local one = process.start(holder,
    self.store.address(self.server, way and way.place) or "",
    path, self.seed + self.started, self.store.ttl or 1e9)
  one.path = path
  self.holders[i] = one
end

-- Ends a holder, and reads what it noted. Raises if it failed.
function Run:finish(i)
  local one = self.holders[i]
  one:kill()
  repeat until not one:read(0)
  local file = io.open(one.path)
  if file then
    overlaps.read(self.list, one.path, file:lines())
    file:close()
  end
  one:close()
end

local function kill(run)
  local i = math.random(#run.holders)
  run:finish(i)
  run:add(i)
end

local function stop(run)
  run.trouble:pause(run.holders[math.random(#run.holders)], troubles.STOPPED)
end

local function lose(run)
  if not (run.losing and run.server.lose) then return end
  run.trouble:go_on(true)
  run.server:lose()
end

local function act(run) run.trouble:act() end

local ACTS = { kill, stop, lose, act, act, act, act }

--- Runs for so many seconds. options: `store` (a name of stores.all),
-- `seconds`, `seed`; `losing`: the store may lose what it was given. Returns
-- how many intervals there were, and the overlaps.
function M.run(options)
  math.randomseed(options.seed)
  local store = stores.all[options.store]
  local server = store.start()
  local way = server.place and stores.way(server.place)
  local run = setmetatable({ store = store, server = server, way = way,
    trouble = troubles.new(server, way), list = {}, holders = {}, started = 0,
    seed = options.seed, losing = options.losing }, Run)
  os.execute(("mkdir -p -m 700 '%s'"):format(cases.folder))
  for i = 1, HOLDERS do run:add(i) end
  local ends = troubles.now() + options.seconds
  while troubles.now() < ends do
    process.usleep(0.02 + math.random() * 0.2)
    run.trouble:go_on()
    ACTS[math.random(#ACTS)](run)
  end
  for i = 1, HOLDERS do run:finish(i) end
  cases.cleanup()
  return #run.list, overlaps.find(run.list)
end

return M
