-- SPDX-License-Identifier: Apache-2.0
--- Watches the names of a scope; made by `Agent:watch`. A `for` loop over it
-- gets the changes, unless `Agent:watch` was given a function to call with
-- them.
--
-- * `known`: the entries that it has reported and that still exist, by name;
--   but none of a holder that was found dead. Out of date while a loop has more
--   than a thousand changes left
-- * `revision`: the registry's revision of the last answer; a text, or nil
-- @classmod Watch

--   state     event                                    becomes
--   asking    the registry's answer, or its timeout    asking, of what follows;
--                                                      pausing, if it was quick
--   asking    an error that passes                     pausing
--   asking    the registry cannot watch                ended
--   pausing   the pause is over                        asking; full, if a loop
--                                                      has MOST changes left
--   full      the loop takes one                       pausing
--   any       close, the agent's close                 ended
--
-- The registry is asked, and answers, on the loop. A stop (perigee.stop) ends
-- tasks that wait for changes, but not the watch.
local asks = require "perigee.registry.ask"
local check = require "perigee.runtime.check"
local entries = require "perigee.registry.entry"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local registries = require "perigee.registry"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"
local timers = require "perigee.runtime.timers"

local M = {}

local FIRST, LONGEST = 10e6, 5e9        -- nanoseconds of a pause
-- Nanoseconds between two questions, at least. A registry that answers at once,
-- again and again, is asked once in LEAST while it tells of changes; each
-- answer without one doubles that, up to IDLE. No pause follows an answer that
-- took longer.
local LEAST, IDLE = 1e6, 100e6
-- Changes that may wait for a loop over the watch. The registry is asked no
-- more then: what changes meanwhile is in a later answer. So nothing refers to
-- the watch of a loop that was left, and the collector frees it.
local MOST = 1024

-- Kinds of errors that end a watch.
local FINAL = { unsupported = true, no_method = true, no_service = true,
                version = true }

local Watch = {}
Watch.__index = Watch

-- ---- Telling ---------------------------------------------------------------

local function told(watch, change)
  local fine, failure = xpcall(watch.f, errors.traced, change)
  if fine then return end
  errors.pass(failure)
  log.write("error", ("what watches scope %s failed: %s"):format(watch.scope,
    errors.shown(failure)))
end

local function is_empty(watch) return watch.first > watch.last end

local ask_after                         -- (watch, pause), below

-- Takes the first change out of the queue, which has one.
local function shift(watch)
  local first = watch.first
  local change = watch.queue[first]
  watch.queue[first], watch.first = nil, first + 1
  if watch.full then
    watch.full = false
    ask_after(watch, 0)
  end
  return change
end

local function drain(watch)
  while not is_empty(watch) and not watch.over do told(watch, shift(watch)) end
end

-- Calls the function in a task, so that it may wait, with one change at a time;
-- or wakes the caller that waits for a change.
local function deliver(watch)
  if watch.f then
    if watch.draining and not watch.draining.ended then return end
    watch.draining = tasks.spawn(drain, watch)
  elseif watch.waiting then
    futures.settle(watch.waiting, true)
  end
end

local function push(watch, kind, entry)
  watch.last = watch.last + 1
  watch.queue[watch.last] = { kind = kind, entry = entry }
end

-- ---- What has changed ------------------------------------------------------

-- Is it the entry, unchanged, of a holder that was found dead?
local function is_buried(watch, name, entry)
  local dead = watch.dead[name]
  if not dead then return false end
  if entry and entry.epoch == dead.epoch and entries.unchanged(dead, entry) then
    return true
  end
  watch.dead[name] = nil
  return false
end

-- Notes that name has this entry now (nil: no process has the name), and queues
-- the changes.
local function apply(watch, name, entry)
  local before = watch.known[name]
  if entry and not entries.matches(entry, watch.filter) then entry = nil end
  if is_buried(watch, name, entry) then return end
  watch.known[name] = entry
  if before and entry and before.epoch == entry.epoch then
    if not entries.unchanged(before, entry) then
      push(watch, "changed", entry)
    end
    return
  end
  if before then push(watch, "down", before) end
  if entry then push(watch, "up", entry) end
end

local function apply_all(watch, list)
  local gone = {}
  for name in pairs(watch.known) do gone[name] = true end
  for name in pairs(watch.dead) do gone[name] = true end
  for _, entry in ipairs(list) do
    gone[entry.name] = nil
    apply(watch, entry.name, entry)
  end
  for name in pairs(gone) do apply(watch, name, nil) end
end
jit.off(apply_all)

local function is_named(entry)
  return entries.is_entry(entry) and type(entry.name) == "string"
end

local function take(watch, answer)
  local all = type(answer) == "table" and answer.entries
  local list = all or type(answer) == "table" and answer.changes
  if type(list) ~= "table" then return false end
  if all then
    for _, entry in ipairs(all) do
      if not is_named(entry) then return false end
    end
    apply_all(watch, all)
  else
    for _, each in ipairs(list) do
      local named = type(each) == "table" and type(each.name) == "string"
      if not named or each.entry and not is_named(each.entry) then
        return false
      end
      apply(watch, each.name, each.entry)
    end
  end
  watch.revision = answer.revision
  return true
end

-- ---- Asking ----------------------------------------------------------------

local ask

-- Is the queue too long to ask for more? One of a function is always emptied.
local function is_full(watch)
  return not watch.f and watch.last - watch.first >= MOST
end

function ask_after(watch, pause)
  local signal = signals.new(1, function()
    watch.full = is_full(watch)
    if not watch.full then ask(watch) end
  end)
  signal.at = loop.now() + pause
  watch.timer = signal
  timers.add(signal)
end

-- Asks again after an answer, or after none in the registry's time.
local function go_on(watch, has_changed)
  local took = loop.now() - watch.asked_at
  watch.idle = not has_changed and took < IDLE and watch.idle + 1 or 0
  ask_after(watch, math.max(0, math.min(LEAST * 2 ^ watch.idle, IDLE) - took))
end

local function failed(watch, err)
  watch.err = err
  if FINAL[err.kind] then return watch:close() end
  if err.kind == "timeout" then return go_on(watch, false) end
  if watch.tries == 4 then
    log.write("warning", tostring(err) .. "; it is tried again")
  end
  ask_after(watch, math.min(FIRST * 2 ^ watch.tries, LONGEST))
  watch.tries = watch.tries + 1
end

local function heard(watch, future)
  if watch.over then return end
  local doing = "watching scope " .. watch.scope
  local before = watch.last
  local answer, kind, why = asks.results(future)
  if not answer then return failed(watch, asks.failure(doing, kind, why)) end
  if not take(watch, answer) then
    return failed(watch, errors.new("protocol", doing .. ": what the registry "
      .. "answers is no list of entries or changes"))
  end
  watch.tries, watch.err = 0, false
  if not is_empty(watch) then deliver(watch) end
  go_on(watch, watch.last > before)
end

function ask(watch)
  local filter, asked_at = watch.filter, loop.now()
  local future = registries.watch(watch.registry, watch.scope, {
    kind = filter.kind, prefix = filter.prefix, from = watch.revision })
  watch.asked, watch.asked_at = future, asked_at
  if future.ended then return heard(watch, future) end
  signals.attach(future, signals.new(1, function() heard(watch, future) end))
end

-- ---- The dead --------------------------------------------------------------

--- Tells the end of a holder that was found dead, though the registry has its
-- entry still. (Inner use: agent/deaths.lua.)
function Watch:bury(entry)
  local known = self.known[entry.name]
  if self.over or not known or known.epoch ~= entry.epoch then return end
  self.known[entry.name], self.dead[entry.name] = nil, known
  push(self, "down", known)
  deliver(self)
end

--- Tells that a holder that was taken for dead is there, by its present entry.
-- (Inner use.)
function Watch:restore(entry)
  local dead = self.dead[entry.name]
  if self.over or not dead or dead.epoch ~= entry.epoch then return end
  self.dead[entry.name] = nil
  apply(self, entry.name, entry)
  if not is_empty(self) then deliver(self) end
end

-- ---- What there is ---------------------------------------------------------

--- Watches a scope of registry for changes of entries that match filter { kind,
-- prefix, service }. They are passed to f, or without f returned by calls of
-- the watch.
function M.new(registry, scope, filter, f)
  local watch = setmetatable({
    registry = registry, scope = scope, filter = filter, f = f or false,
    known = {}, dead = {}, queue = {}, first = 1, last = 0, revision = nil,
    tries = 0, err = false, over = false, asked = false, asked_at = 0, idle = 0,
    timer = false, draining = false, waiting = false, full = false,
  }, Watch)
  ask(watch)
  if watch.over then return nil, watch.err end
  return watch
end

--- The next change: called by `for change in watch do`. Nil if the watch or its
-- agent was closed, or the loop was stopped.
-- @treturn table `kind`: "up", "changed" or "down", and `entry`
-- @waits yes
function Watch:__call()
  loop.check_wait(2)
  while is_empty(self) and not self.over do
    self.waiting = self.waiting and not self.waiting.ended and self.waiting
      or futures.new(self, "watching scope " .. self.scope)
    if not loop.wait(self.waiting, math.huge) then return nil end
  end
  if self.over then return nil end
  return shift(self)
end

--- Ends it: no changes are reported any more. Idempotent.
-- @function Watch:close
-- @waits no
-- @usage
-- local watch = assert(agent:watch({}, print))
-- watch:close()
function Watch:close()
  if self.over then return end
  self.over = true
  if self.timer then timers.remove(self.timer) end
  if self.asked and not self.asked.ended then self.asked:cancel() end
  if self.waiting then futures.settle(self.waiting, true) end
end

function Watch:__tostring()
  return ("watch of scope %s (%s)"):format(self.scope,
                                           self.over and "closed" or "open")
end

check.colons(Watch, "watch", "close")

return M
