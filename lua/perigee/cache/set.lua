-- SPDX-License-Identifier: Apache-2.0
--- The caches that a client uses together: one by its name, several by their
-- names, or all that the registry lists, as they come and go. A cache that
-- cannot be asked is left alone for a while; its keys are then the others', and
-- are missed there.
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local members = require "perigee.cache.member"
local ring = require "perigee.cache.ring"
local sorted = require "perigee.runtime.sorted"

local now = loop.now

local M = {}

local Set = {}
Set.__index = Set

local AWAY = 1e9                        -- ns for which a lost one is left alone
M.AWAY = AWAY
-- Kinds of errors that mean that a cache cannot be asked now.
local LOST = { peer_lost = true, timeout = true, closed = true, denied = true }

-- Chooses those that can be asked, and until when that holds.
local function choose(self)
  local live, time = {}, now()
  self.till = math.huge
  for _, each in pairs(self.members) do
    if each.away <= time then
      live[#live + 1] = each
    else
      self.till = math.min(self.till, each.away)
    end
  end
  self.live = live
end
jit.off(choose)

local function add(self, name, weight)
  if self.members[name] then return end
  local options = self.options
  local one = members.new(self.agent, name, {
    weight = weight, timeout = options.timeout, map = options.map,
    checksum = options.checksum, near = options.near,
    stale = options.stale,
    reconnect = options.reconnect or not self.alone and 0 or nil })
  one.away = 0
  self.members[name] = one
end

local function remove(self, name)
  local one = self.members[name]
  self.members[name] = nil
  if one then one:close() end
end

-- Follows the caches that the registry lists.
local function follow(self, change)
  local entry = change.entry
  if change.kind == "down" or entry.state == "draining" then
    remove(self, entry.name)
  else
    add(self, entry.name, entry.weight)
  end
  choose(self)
end

local function all_of(self, filter)
  local entries, err = self.agent:list(filter)
  if not entries then return nil, err end
  for _, each in ipairs(entries) do add(self, each.name, each.weight) end
  self.watch, err = self.agent:watch(filter, function(change)
    follow(self, change)
  end)
  if self.watch then return true end
  return nil, err
end

-- The words for none of the caches of `which`, in messages.
local function nobody(which)
  if type(which) == "string" then return "no cache " .. which end
  if which[1] then return "none of " .. table.concat(which, ", ") end
  local asked = {}
  for _, name in ipairs(sorted(which)) do
    asked[#asked + 1] = ("%s %q"):format(name, which[name])
  end
  return asked[1] and "no cache of " .. table.concat(asked, ", ") or "no agent"
end

--- Makes the set of `which`: a name, a list of names, or a filter of
-- `Agent:list`. Returns it; or nil and an error, of a filter. Waits then.
function M.new(agent, which, options)
  local alone = type(which) == "string"
  local self = setmetatable({
    agent = agent, options = options, members = {}, live = {}, watch = false,
    alone = alone, closed = false, till = 0, why = false,
    nobody = nobody(which), replicas = options.replicas or 1 }, Set)
  local fine, err = true, nil
  if alone then
    add(self, which)
  elseif which[1] then
    for _, name in ipairs(which) do add(self, name) end
  else
    fine, err = all_of(self, which)
  end
  if not fine then return nil, err end
  choose(self)
  return self, alone and self.members[which]
end
jit.off(M.new)

--- The error of a set that is closed, else nil. doing: what was asked for.
function Set:gone(doing)
  return self.closed and errors.new("closed", doing
    .. ": the client of caches was closed", false) or nil
end

local function leave(self, one, err)
  one.away, self.why = now() + AWAY, err
  choose(self)
end

--- Leaves a cache alone for a while, if err means that it cannot be asked.
-- Returns whether it does. A cache that is alone is never left.
function Set:leave(one, err)
  if self.alone or not LOST[err.kind] then return false end
  leave(self, one, err)
  return true
end

--- Returns cache number n of those that have a key; nil: there is none.
function Set:owner(key, n)
  if now() >= self.till then choose(self) end
  return ring.owner(self.live, key, n)
end

--- Has a session with a cache. Returns true; or nil and an error, and leaves it
-- then: nobody may have its name.
function Set:reach(one)
  local fine, err = one:ready()
  if fine then return true end
  if not self.alone then leave(self, one, err) end
  return nil, err
end

-- All that have a key, before any of them is left. They are of one choice: one
-- that is asked again from now on would move the others.
local function owners(self, key)
  if now() >= self.till then choose(self) end
  local list, live = {}, self.live
  for n = 1, self.replicas do list[n] = ring.owner(live, key, n) end
  return list
end

-- Has sessions with all of a list. Returns true; or nil, the error of one that
-- was left, and that one.
local function reach_all(self, list)
  for _, one in ipairs(list) do
    local fine, err = self:reach(one)
    if not fine then return nil, err, one end
  end
  return true
end

local function without(live, tried)
  local rest = {}
  for _, one in ipairs(live) do
    if not tried[one] then rest[#rest + 1] = one end
  end
  return rest
end

-- Returns those that have a key and can be reached: if one cannot, its keys are
-- the others'. Each is tried once, however soon it may be asked again. If they
-- are fewer than there should be, also returns an error of one that cannot.
local function reached(self, key)
  local list = owners(self, key)
  if self.alone then return list end
  local fine, err, one = reach_all(self, list)
  if fine then return list end
  local lost
  local tried = {}
  repeat
    lost, tried[one], list = err, true, {}
    local rest = without(self.live, tried)
    for n = 1, self.replicas do list[n] = ring.owner(rest, key, n) end
    fine, err, one = reach_all(self, list)
  until fine
  return list, #list < self.replicas and lost or nil
end

-- What methods of members do with a key; `change` is told it.
local DOING = { get = "getting", put = "putting", reserve = "reserving",
                view = "viewing", stat = "looking up" }

-- The error of what no cache can be asked for: those that could be are away,
-- for a reason that one of them may have told, or there are none.
local function none(self, doing, err)
  local gone = self:gone(doing)
  if gone then return gone end
  if self.alone and err then return err end
  err = err or next(self.members) and self.why
  return errors.new("not_found", ("%s: %s in scope %s can be asked%s"):format(
    doing, self.nobody, self.agent.scope,
    err and (" (%s)"):format(err.message) or ""), false)
end

-- Calls a method of the caches that have a key. all: of each; else until one
-- has a result. Returns the first result, an error of one that has none (nil
-- without any), how many have results; or nil and an error. The error is of a
-- cache that could be asked if there is one.
local function call(self, all, key, method, ...)
  local result, missed
  local count, list, lost = 0, reached(self, key)
  for _, one in ipairs(list) do
    local own, err = self:reach(one)
    if own then
      own, err = one[method](one, key, ...)
      result = result or own
      if own then count = count + 1 end
      if result and not all then return result end
    end
    if own == nil and (one.away > now() or self:leave(one, err)) then
      lost = err
    elseif not own then
      missed = missed or err
    end
  end
  if result then return result, missed or lost, count end
  local doing = ("%s %q"):format(DOING[method] or select(3, ...),
                                 key:sub(1, 64))
  return nil, missed or none(self, doing, lost)
end

--- Calls a method of the caches that have a key until one has a result. Returns
-- it; or nil and an error.
function Set:first(key, method, ...)
  local result, err = call(self, false, key, method, ...)
  if result then return result end
  return nil, err
end

--- Calls a method of all caches that have a key. Returns the first result, and,
-- if several are to have each key, how many have one, and an error of one that
-- has none; or nil and an error.
function Set:all(key, method, ...)
  local result, err, count = call(self, true, key, method, ...)
  if not result then return nil, err end
  if self.replicas == 1 then return result end
  return result, count, err
end

--- Returns what Set:split is to choose among. Of one choice, while caches are
-- asked by turns: one that is left meanwhile would move the others.
function Set:choice()
  if now() >= self.till then choose(self) end
  return self.live
end

--- Returns the indexes of keys, or of those for which known[i] is false, by
-- number n of a choice of caches that have each.
function Set:split(keys, live, n, known)
  local lists = {}
  for i, key in ipairs(keys) do
    local one = not (known and known[i]) and ring.owner(live, key, n)
    local list = one and lists[one] or {}
    list[#list + 1] = i
    if one then lists[one] = list end
  end
  return lists
end
jit.off(Set.split)

--- Calls f(member) of all that can be asked, in the order of their names, until
-- it returns nil and an error of a cache that is not left for that. Returns
-- true; or nil and an error, also if none could be asked.
function Set:each(f)
  local gone, list = self:gone("asking caches"), {}
  if gone then return nil, gone end
  for i, each in ipairs(self:choice()) do list[i] = each end
  table.sort(list, function(a, b) return a.name < b.name end)
  local asked, lost = false, nil
  for _, one in ipairs(list) do
    local fine, err = self:reach(one)
    if fine then fine, err = f(one) end
    if not fine and (self.alone or one.away <= now()
                     and not self:leave(one, err)) then
      return nil, err
    end
    if fine then asked = true else lost = err end
  end
  if asked then return true end
  return nil, none(self, "asking caches", lost)
end
jit.off(Set.each)

function Set:close()
  if self.watch then self.watch:close() end
  for _, each in pairs(self.members) do each:close() end
  self.members, self.live, self.closed = {}, {}, true
end
jit.off(Set.close)

return M
