-- SPDX-License-Identifier: Apache-2.0
-- Processes that take, keep and give back a few names, while they, the store of
-- the names and the way to it are killed, stopped and cut. What they note is
-- judged by overlaps.lua.
local cases = require "spec.support.cases"
local overlaps = require "spec.hostile.overlaps"
local process = require "spec.support.process"
local stores = require "spec.hostile.stores"
local troubles = require "spec.hostile.trouble"

local M = {}

local HOLDERS = 4

-- ---- Children --------------------------------------------------------------

-- Takes and gives back names until it is killed.
local function holder(child, perigee, ffi, address, path, seed, ttl)
  local asks = require "perigee.registry.ask"
  local registries = require "perigee.registry"
  local signals = require "perigee.signal"
  local file = assert(io.open(path, "a"))
  local time, current = ffi.new "int64_t[2]", nil
  file:setvbuf "no"
  math.randomseed(tonumber(seed))
  ttl = tonumber(ttl)
  local function now()
    ffi.C.spec_clock(7, time)
    return tonumber(time[0]) + tonumber(time[1]) * 1e-9
  end
  local function note(...)
    local words = { ... }
    for i = 3, #words do words[i] = ("%.6f"):format(words[i]) end
    file:write(table.concat(words, " ") .. "\n")
  end
  local renew = registries.renew
  function registries.renew(...)
    local began, mine = now(), current
    local future = renew(...)
    local function heard()
      if not mine or mine ~= current then return end
      local fine, kind = asks.results(future)
      if fine then note("renewed", mine.name, began, now()) end
      if kind == "name_taken" then
        note("lost", mine.name, now())
        current = nil
      end
    end
    if future.ended then heard() else
      signals.attach(future, signals.new(1, heard))
    end
    return future
  end
  child.say "ready"
  while true do
    local name = "n" .. math.random(3)
    local at = now()
    local agent = child.cases.agent(name, {
      registry = address ~= "" and address or nil })
    if agent then
      current = { name = name }
      note("has", name, at, now())
      local long = ttl < 100 and math.random(10) == 1
      perigee.sleep(math.random() * (long and 3 * ttl or 0.1))
      if current then note("ends", name, now()) end
      current = nil
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

-- Ends a holder: notes when, and reads what it noted. Raises if it failed.
function Run:finish(i)
  local one, killed = self.holders[i], troubles.now()
  one:kill()
  repeat until not one:read(0)
  local file = io.open(one.path)
  if file then
    overlaps.read(self.list, one.path, file:lines(), killed,
                  self.store.ttl or math.huge)
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
