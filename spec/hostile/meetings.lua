-- SPDX-License-Identifier: Apache-2.0
-- Processes that meet again and again at one key (Agent:rendezvous), while they
-- are killed, and the store of their names and the way to it are stopped, cut
-- and restarted.
--
-- All that return from one meeting have the same list of names; each who lives
-- returns; and who dies before all are there frees its place, so that others
-- meet. A process that was killed, or whose call failed, may be in a list with
-- which it has not returned itself.
local cases = require "spec.support.cases"
local process = require "spec.support.process"
local stores = require "spec.hostile.stores"
local troubles = require "spec.hostile.trouble"

local M = {}

local PEOPLE, SIZE = 4, 3               -- processes; of a meeting
local LONG = 60 * cases.slow            -- seconds of a call at most

-- Meets others until it is killed, and says each result: "RANK NAMES", or the
-- kind of an error.
local function person(child, perigee, _, address, name, size, long)
  address = address ~= "" and address or nil
  local agent
  repeat agent = child.cases.agent(name, { registry = address }) until agent
  while true do
    local rank, names = agent:rendezvous("key", tonumber(size), tonumber(long))
    child.say(rank and rank .. " " .. table.concat(names, " ") or names.kind)
    perigee.sleep(math.random() * 0.01)
  end
end

-- ---- The judge -------------------------------------------------------------

-- Notes a result in what is known of its list: how often each had it.
local function count(lists, life, line)
  local rank, list = line:match "^(%d+) (.*)$"
  if not rank then return false end
  local names = {}
  for name in list:gmatch "%S+" do names[#names + 1] = name end
  lists[list] = lists[list] or { names = names, had = {}, most = 0 }
  local had = lists[list].had
  had[life.name] = (had[life.name] or 0) + 1
  lists[list].most = math.max(lists[list].most, had[life.name])
  return names[rank + 1] == life.name, true
end

--- Judges the lives of people, { name, killed, lines } each. Returns the number
-- of results, and a list of complaints.
function M.judge(lives)
  local lists, missed, results, complaints = {}, {}, 0, {}
  local function complain(...) complaints[#complaints + 1] = (...):format(
    select(2, ...)) end
  for _, life in ipairs(lives) do
    missed[life.name] = life.killed and 1 or 0
    for _, line in ipairs(life.lines) do
      local fine, met = count(lists, life, line)
      if met then results = results + 1 else
        missed[life.name] = missed[life.name] + 1
      end
      if met and not fine then
        complain("%s is not in its place in: %s", life.name, line)
      end
    end
  end
  for list, told in pairs(lists) do
    for _, name in ipairs(told.names) do
      local less = told.most - (told.had[name] or 0)
      if less > (missed[name] or 0) then
        complain("%s has not returned %d times with: %s", name, less, list)
      end
    end
  end
  return results, complaints
end

-- ---- Runs ------------------------------------------------------------------

local Run = {}
Run.__index = Run

function Run:add(i)
  self.started = self.started + 1
  local way = i % 2 == 0 and self.way or nil
  local life = { name = "p" .. self.started, lines = {}, killed = false }
  life.process = process.start(person,
    self.store.address(self.server, way and way.place) or "", life.name, SIZE,
    LONG)
  self.lives[self.started], self.people[i] = life, life
end

local function nothing() end

function Run:hear()
  for _, life in ipairs(self.people) do
    repeat
      local line = life.process:read(0, nothing)
      life.lines[#life.lines + 1] = line
    until not line
  end
end

function Run:kill(i)
  local life = self.people[i]
  life.killed = true
  life.process:kill()
  self:hear()
  life.process:close()
end

local function results(run)
  run:hear()
  return (M.judge(run.lives))
end

-- Leaves all alone, until there was one more meeting. Returns whether it was.
local function calm_down(run)
  run.trouble:go_on(true)
  local before = results(run)
  return cases.eventually(function()
    return results(run) >= before + SIZE
  end, LONG)
end

--- Runs for so many seconds. options: `store` (a name of stores.all),
-- `seconds`, `seed`. Returns the number of results, and a list of complaints.
function M.run(options)
  math.randomseed(options.seed)
  local store = stores.all[options.store]
  local server = store.start()
  local way = server.place and stores.way(server.place)
  local run = setmetatable({ store = store, server = server, way = way,
    trouble = troubles.new(server, way), started = 0, lives = {}, people = {} },
    Run)
  for i = 1, PEOPLE do run:add(i) end
  local ends = troubles.now() + options.seconds
  while troubles.now() < ends do
    process.usleep(0.02 + math.random() * 0.4)
    run:hear()
    run.trouble:go_on()
    if math.random(2) == 1 then
      local i = math.random(PEOPLE)
      run:kill(i)
      run:add(i)
    else
      run.trouble:act()
    end
  end
  local calm = calm_down(run)
  for i = 1, PEOPLE do run:kill(i) end
  cases.cleanup()
  local had, complaints = M.judge(run.lives)
  if not calm then complaints[#complaints + 1] = "at the end nobody met" end
  return had, complaints, run.lives
end

return M
