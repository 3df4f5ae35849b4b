-- SPDX-License-Identifier: Apache-2.0
--- A rendezvous of n agents, which needs nothing of a registry but what agents'
-- own names need. There are n places and one decision. These are names that
-- agents hold; no list of a registry shows them, because they begin as
-- generated names do. Each call of rendezvous has a ticket, which is in the
-- metadata of its entry. The metadata also has the result, once the call knows
-- it: the names and tickets of those who meet. A call whose ticket is not in a
-- result has nothing to do with that result.
--
--   a call      event                                   becomes
--   seeking     a place is free, or its holder dead     waiting
--   waiting     n places are held, none has a result    deciding
--   waiting     nobody has the decision, and a place    deciding
--               has a result with its ticket
--   waiting     the decision has a result with its      knowing
--               ticket
--   deciding    another has the decision                waiting
--   deciding    it holds the decision, looks again,     knowing
--               and has put the result there
--   deciding    a holder of a place is dead             waiting; that is free
--   knowing     its place has the result, and the       met
--               decision still has the same holder
--   knowing     the decision has gone                   waiting
--   met         each place has the result or has gone   over: its names are
--                                                       free
--   any         time is over, the agent's close,        over
--               a stop
--
-- All have the same result. Only the holder of the decision can put a result
-- there; the registry checks that by the epoch. A call that returns has found
-- the decision unchanged after its own place had the result. The next holder of
-- the decision looks at all places first. Nobody leaves before all others know
-- the result or are gone, so nobody waits for one that has left.
local asks = require "perigee.registry.ask"
local entries = require "perigee.registry.entry"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local told = require "perigee.agent.rendezvous.entries"
local leases = require "perigee.agent.lease"
local loop = require "perigee.runtime.loop"
local probe = require "perigee.agent.probe"
local native = require "perigee.native"
local registries = require "perigee.registry"
local tasks = require "perigee.runtime.task"
local watches = require "perigee.registry.watch"

local places, result_in, said = told.places, told.result, told.said
local survey, result_of = told.survey, told.result_of

local M = {}

-- With the longest key, and 65536 agents, a name has 64 characters.
M.PREFIX = entries.ANONYMOUS .. "m-"

local PAUSE, WATCHED = 0.05, 1          -- seconds between looks, at most
local MOST = 50                         -- names that a message tells

local Meeting = {}
Meeting.__index = Meeting

local calls = 0
local all = setmetatable({}, { __mode = "k" })

--- Begins: takes no place yet. deadline: of the loop's clock.
function M.new(agent, key, n, deadline)
  calls = calls + 1
  local prefix = ("%s%s-%d-"):format(M.PREFIX, key, n)
  local meeting = setmetatable({
    agent = agent, registry = agent.registry, n = n, deadline = deadline,
    prefix = prefix, doing = ("meeting %d agents at %s"):format(n, key),
    ticket = ("%s.%d"):format(leases.entry(agent, prefix).epoch, calls),
    place = false, decision = false, result = false, met = false, probed = 0,
    news = false, waking = false, watch = false, over = false, view = {},
  }, Meeting)
  agent.meetings[meeting], all[meeting] = true, true
  return meeting
end

-- ---- Names -----------------------------------------------------------------

local function entry_of(meeting, name)
  local entry = leases.entry(meeting.agent, name)
  entry.kind = "rendezvous"
  entry.metadata = { ticket = meeting.ticket, agent = meeting.agent.name,
                     result = meeting.result or nil }
  return entry
end

local function decision_name(meeting) return meeting.prefix .. "final" end

local function given_up(meeting)
  return errors.new("closed", meeting.doing .. ": it was given up", false)
end

-- Holds a name from now on: { name, held, lease }; or nil and an error.
local function take(meeting, name, over)
  local seconds = math.min(loop.left(meeting.deadline), registries.patience)
  local asked = native.uptime()
  local held, err = registries.hold(meeting.registry, entry_of(meeting, name),
                                    over, seconds)
  if not held then return nil, err end
  if meeting.over then
    registries.release(meeting.registry, held)
    return nil, given_up(meeting)
  end
  local claim = { name = name, held = held, registry = meeting.registry }
  claim.lease = leases.new(meeting.agent, claim, asked, {
    describe = function() return entry_of(meeting, name) end })
  return claim
end

local function give_back(meeting, taken)
  if not taken then return end
  taken.lease:close()
  registries.release(meeting.registry, taken.held)
end

-- Tells the registry of the present entry of a name that is held. True; or nil
-- and an error, `name_taken` if another has the name now.
local function tell(meeting, taken)
  if meeting.over then return nil, given_up(meeting) end
  local future = registries.renew(meeting.registry, taken.held,
                                  entry_of(meeting, taken.name))
  if not loop.wait(future, meeting.deadline) then
    future:cancel()
    return futures.unfinished(meeting.doing)
  end
  local fine, kind, why = asks.results(future)
  if fine then return true end
  return nil, asks.failure(meeting.doing, kind or "not_found", why)
end

-- ---- Looking ---------------------------------------------------------------

local function by_name(list)
  local view = {}
  for _, entry in ipairs(list) do view[entry.name] = entry end
  return view
end

-- All entries of the meeting by name, as the registry has them now.
local function look(meeting)
  local future = registries.list(meeting.registry, meeting.agent.scope,
                                 { prefix = meeting.prefix }, meeting.doing)
  if not loop.wait(future, meeting.deadline) then
    future:cancel()
    return futures.unfinished(meeting.doing)
  end
  local list, err = futures.results(future)
  if list then return by_name(list) end
  return nil, err
end

-- ---- The dead --------------------------------------------------------------

-- Those of a list of entries whose holders are dead. A registry that frees
-- their names at once has none.
local function dead_among(meeting, list)
  local asked, dead = {}, {}
  if registries.has_places(meeting.registry) then return dead end
  for i, entry in ipairs(list) do
    asked[i] = tasks.spawn(function()
      return said(entry).ticket ~= meeting.ticket
        and probe.is_dead(meeting.agent, entry)
    end)
  end
  for i, future in ipairs(asked) do
    if loop.wait(future, meeting.deadline)
      and futures.results(future) == true then
      dead[#dead + 1] = list[i]
    end
  end
  return dead
end

-- Frees the names of dead holders. Called by who has the decision, so that
-- nobody takes this call for one that waits there.
local function bury(meeting, dead)
  for _, entry in ipairs(dead) do
    give_back(meeting, (take(meeting, entry.name, entry.epoch)))
  end
end

-- ---- Steps -----------------------------------------------------------------

local SEEK = 1e9                        -- ns between looks for dead holders

-- Takes the place of a dead holder, if all places are held.
local function succeed(meeting, view)
  local list = places(meeting, view)
  if #list < meeting.n or loop.now() < meeting.probed then return false end
  meeting.probed = loop.now() + SEEK
  for _, entry in ipairs(dead_among(meeting, list)) do
    meeting.place = take(meeting, entry.name, entry.epoch) or false
    if meeting.place then return true end
  end
  return false
end

-- Takes a place that is free in view, or whose holder is dead. Returns whether
-- it has one; or nil and an error.
local function seek(meeting, view)
  local n, first = meeting.n, #meeting.ticket + calls
  for i = 1, n do
    local name = meeting.prefix .. ((first + i) % n + 1)
    local err
    if not view[name] then
      local taken
      taken, err = take(meeting, name)
      meeting.place = taken or false
      if taken then return true end
      if err.kind ~= "name_taken" then return nil, err end
    end
  end
  return succeed(meeting, view)
end

-- Has this call's place tell of the result, and checks that it is the one that
-- all have. Returns whether it is; or nil and an error.
local function know(meeting, result)
  meeting.result = result
  local fine, err = tell(meeting, meeting.place)
  if not fine then return nil, err end
  if meeting.decision then
    meeting.met = true
    return true
  end
  local future = registries.lookup(meeting.registry, meeting.agent.scope,
                                   decision_name(meeting), meeting.doing)
  if not loop.wait(future, meeting.deadline) then return false end
  local entry = futures.results(future)
  local same = entry and result_in(meeting, entry)
  meeting.met = same and entries.same(same, result) or false
  return meeting.met
end

-- The result for a decision that this call holds: one that is known already, or
-- that of those who wait. Nil if there are too few of them who live, or if the
-- registry cannot be asked, with the error.
local function found(meeting)
  local view, err = look(meeting)
  if not view then return nil, err end
  local result, waiting = survey(meeting, view)
  if result then return result end
  if #waiting < meeting.n then return nil end
  local dead = dead_among(meeting, waiting)
  bury(meeting, dead)
  return not dead[1] and result_of(waiting) or nil
end

-- Tries to decide. Returns whether it has; or nil and an error.
local function decide(meeting)
  local taken, err = take(meeting, decision_name(meeting))
  if not taken then
    if err.kind == "name_taken" then return false end
    return nil, err
  end
  meeting.decision = taken              -- for leave(), which may come meanwhile
  local result
  result, err = found(meeting)
  meeting.result = result or meeting.result
  if result and tell(meeting, taken) then return know(meeting, result) end
  give_back(meeting, meeting.decision)
  meeting.decision = false
  if err then return nil, err end
  return false
end

-- Do all others know the result, or are they gone?
local function all_know(meeting, view)
  local mine = {}
  for _, ticket in ipairs(meeting.result.tickets) do mine[ticket] = true end
  for _, entry in ipairs(places(meeting, view)) do
    local its = said(entry)
    if mine[its.ticket] and not its.result then return false end
  end
  return true
end

-- Does what can be done now. Returns true when the meeting is over, false if
-- news have to be waited for; or nil and an error.
local function step(meeting)
  local view, err = meeting.watch and meeting.watch.known, nil
  if not view or meeting.met then view, err = look(meeting) end
  if not view then return nil, err end
  meeting.view = view
  if meeting.met then return all_know(meeting, view) end
  if not meeting.place then
    local has, why = seek(meeting, view)
    if not has then return has, why end
    meeting.news = true
    return false
  end
  if meeting.place.lease.over then
    return nil, errors.new("name_taken", meeting.doing
      .. ": another has this agent's place", false)
  end
  local decision = view[decision_name(meeting)]
  local result, waiting = survey(meeting, view)
  if decision and result_in(meeting, decision) then
    result, err = know(meeting, result_in(meeting, decision))
  elseif not decision and (result or #waiting == meeting.n) then
    result, err = decide(meeting)
  else
    return false
  end
  if result == nil and err then return nil, err end
  meeting.news = meeting.news or meeting.met
  return false
end

-- ---- Waiting ---------------------------------------------------------------

local function begin_watch(meeting)
  local agent = meeting.agent
  meeting.watch = watches.new(agent.registry, agent.scope,
    { prefix = meeting.prefix }, function()
      meeting.news = true
      if meeting.waking then futures.settle(meeting.waking) end
    end) or false
  if meeting.watch then agent.watches[meeting.watch] = true end
end

local function wait(meeting)
  if not meeting.news then
    meeting.waking = futures.new()
    local pause = meeting.watch and WATCHED or PAUSE
    loop.wait(meeting.waking, math.min(meeting.deadline, loop.deadline(pause)))
    meeting.waking = false
  end
  meeting.news = false
end

-- Errors after which the registry is asked again, within the time. From who
-- was to take or keep a name, `not_found` says that no server is there.
local PASSING = { peer_lost = true, timeout = true, no_memory = true,
                  not_found = true }

-- Tells whether the agent or the loop that it needs is gone.
local function is_over(meeting)
  return meeting.over or loop.state.stopping or not meeting.agent.engine.handle
end

-- The names of those who have a place, as was seen last.
local function who_came(meeting)
  local names, own = {}, false
  for _, entry in ipairs(places(meeting, meeting.view)) do
    local its = said(entry)
    names[#names + 1] = its.agent
    own = own or its.ticket == meeting.ticket
  end
  if meeting.place and not own then names[#names + 1] = meeting.agent.name end
  table.sort(names)
  return names
end

local function too_few(meeting)
  local names = who_came(meeting)
  local more = #names > MOST and (" and %d more"):format(#names - MOST) or ""
  return errors.new("timeout", ("%s: %d of %d came in time (%s%s)"):format(
    meeting.doing, #names, meeting.n, table.concat(names, ", ", 1,
    math.min(MOST, #names)), more), false)
end

local function ended(meeting)
  if meeting.met then return true end
  if is_over(meeting) then return nil, given_up(meeting) end
  return nil, too_few(meeting)
end

-- Steps until the meeting is over or its time is.
local function run(meeting)
  begin_watch(meeting)
  repeat
    local over, err = step(meeting)
    if over then return true end
    if err and not (PASSING[err.kind] or is_over(meeting)) then
      return nil, err
    end
    wait(meeting)
  until loop.now() >= meeting.deadline or is_over(meeting)
  return ended(meeting)
end

--- Meets the others. Waits. Returns the rank and the names; or nil and an
-- error. An agent that knows the result when its time is over has met them.
function Meeting:meet()
  local fine, met, err = pcall(run, self)
  self:leave()
  if not fine then
    errors.pass(met)
    error(met, 0)
  end
  if not met then return nil, err end
  local rank, names = nil, {}
  for i = 1, self.n do
    names[i] = self.result.names[i]
    if self.result.tickets[i] == self.ticket then rank = i - 1 end
  end
  return rank, names
end

--- Gives back all names. Idempotent.
function Meeting:leave()
  if self.over then return end
  self.over = true
  self.agent.meetings[self], all[self] = nil, nil
  if self.watch then self.watch:close() end
  give_back(self, self.decision)
  give_back(self, self.place)
  self.decision = false
  if self.waking then futures.settle(self.waking) end
end

-- Nobody else does, since tasks are not resumed after a stop.
local function leave_all()
  for meeting in pairs(all) do meeting:leave() end
end
jit.off(leave_all)

loop.dropped[#loop.dropped + 1] = leave_all

return M
