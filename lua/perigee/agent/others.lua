-- SPDX-License-Identifier: Apache-2.0
-- Questions of an agent about other agents, answered by its registry without a
-- session.
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local known = require "perigee.agent.known"
local loop = require "perigee.runtime.loop"
local registries = require "perigee.registry"
local watches = require "perigee.registry.watch"

local M = {}

local TIMEOUT = 30                      -- seconds, where none is given

local function limit(value)
  if not check.is_count(value) or value < 1 then
    return "an integer of at least 1"
  end
end

local WATCH = { kind = check.string, prefix = check.string,
                service = check.string }
local LIST = { timeout = check.seconds, after = check.string, limit = limit,
               kind = check.string, prefix = check.string,
               service = check.string }
local LOOKUP = { timeout = check.seconds }

-- Kinds of errors of a registry that cannot be reached now.
local AWAY = { timeout = true, peer_lost = true, no_memory = true,
               closed = true }

-- Waits for a future up to timeout and returns its results; or nil and an
-- error.
local function within(future, timeout, doing)
  timeout = timeout or TIMEOUT
  if future.ended or loop.wait(future, loop.deadline(timeout)) then
    return futures.results(future)
  end
  future:cancel()
  if loop.state.stopping then
    return nil, errors.new("closed", doing .. ": the loop was stopped", false)
  end
  return nil, errors.new("timeout", ("%s: the registry has not answered within "
    .. "%g s"):format(doing, timeout), false)
end

--- Adds these methods to the class of agents.
function M.add(Agent)

--- Lists the agents that have a name in this agent's scope now. Generated names
-- are left out, unless `prefix` asks for "anonymous-".
-- @function Agent:list
-- @tparam[opt] table filter
-- @tparam[opt] string filter.kind only those of that kind
-- @tparam[opt] string filter.prefix only those whose names begin with it
-- @tparam[opt] string filter.service only those that serve it
-- @tparam[opt] string filter.after only those whose names sort after this one,
--   the last name of the page before
-- @tparam[opt] number filter.limit at most so many; default: all
-- @tparam[opt=30] number filter.timeout seconds
-- @treturn table a list of entries (`Registry`), by name; or nil and an error,
--   and, if the registry cannot be reached, the list of those that this agent
--   knows of from earlier answers and its watches, whose field `stale` is true
-- @errors `unsupported`: the registry cannot list names; `timeout`; `protocol`;
--   those of the registry
-- @waits no; yes if the registry is not a folder
-- @usage
-- for _, entry in ipairs(assert(agent:list { service = "calc" })) do
--   print(entry.name, entry.services.calc)                   --> worker:0 1
-- end
function Agent:list(filter)
  filter = check.options(filter, LIST, "list")
  loop.check_wait(2)
  local doing = "listing scope " .. self.scope
  local gone = self.engine:gone(doing)
  if gone then return nil, gone end
  local future = registries.list(self.registry, self.scope, {
    kind = filter.kind, prefix = filter.prefix, service = filter.service,
    after = filter.after, limit = filter.limit }, doing)
  local list, err = within(future, filter.timeout, doing)
  if list then known.note_all(self, list) return list end
  return nil, err, AWAY[err.kind] and known.stale_list(self, filter) or nil
end

--- Looks up a name in the registry.
-- @function Agent:lookup
-- @tparam string name the name of an agent in this agent's scope
-- @tparam[opt] table options
-- @tparam[opt=30] number options.timeout seconds
-- @treturn table its entry (`Registry`); or nil and an error, and, if the
--   registry cannot be reached, the last entry that this agent knows of, if
--   any, whose field `stale` is true
-- @errors `not_found`: nobody has that name; `timeout`; `protocol`; those of
--   `Registry:lookup`
-- @waits no; yes if the registry is not a folder
-- @usage
-- print(agent:lookup("worker:0").regions.kv.length)            --> 1048576
-- print(select(2, agent:lookup "nobody").kind)                 --> not_found
function Agent:lookup(name, options)
  check.value(name, check.name, "an agent's name")
  options = check.options(options, LOOKUP, "lookup")
  loop.check_wait(2)
  local doing = "looking up " .. name
  local gone = self.engine:gone(doing)
  if gone then return nil, gone end
  local entry, err = within(registries.lookup(self.registry, self.scope, name,
                                              doing), options.timeout, doing)
  if entry or err.kind == "not_found" then known.note(self, name, entry) end
  if entry or not AWAY[err.kind] then return entry, err end
  local last = known.last(self, name)
  return nil, err, last and known.stale(last)
end

--- Returns the named regions of another agent, as it has told the registry.
-- @function Agent:regions
-- @tparam string name the name of an agent in this agent's scope
-- @tparam[opt] table options those of `Agent:lookup`
-- @treturn table `{ length = bytes, access = "rw" }` by the region's name; or
--   nil and an error
-- @errors those of `Agent:lookup`
-- @waits as `Agent:lookup`
-- @usage
-- print(agent:regions("worker:0").kv.access)                   --> rw
function Agent:regions(name, options)
  check.value(name, check.name, "an agent's name")
  local entry, err = self:lookup(name, options)
  if not entry then return nil, err end
  return type(entry.regions) == "table" and entry.regions or {}
end

--- Watches the names of this agent's scope: reports those that are there now as
-- "up", and then each change. f is called with one change after another, in a
-- task, so it may wait; errors that it raises are logged. Without f the object
-- is an iterator: `for change in agent:watch {} do`. A loop that is left before
-- the end leaves its watch open, for another loop; close it if there is none.
--
-- `change.kind` is "up" (a name was taken, or its holder is in another life),
-- "changed" (its entry has changed), or "down" (the name was released, or its
-- holder died; `change.entry` is the last one known). A worker that started
-- again is reported as "down" and "up". Nothing is reported while the registry
-- cannot be reached; the changes of that time are reported afterwards.
--
-- A registry with a TTL has a dead holder's name until that is over. If this
-- agent has a session with the holder, which ends by its death, and nobody
-- listens at its address any more, it is reported as "down" at once. It is
-- reported as "up" again if it turns out to live: if its entry changes, or is
-- still there after a TTL though its address no longer refuses.
-- @function Agent:watch
-- @tparam[opt] table filter
-- @tparam[opt] string filter.kind only those of that kind
-- @tparam[opt] string filter.prefix only those whose names begin with it
-- @tparam[opt] string filter.service only those that serve it
-- @tparam[opt] function f is given each change
-- @treturn Watch an object whose `close()` ends this; or nil and an error
-- @errors `unsupported`: the registry cannot report changes
-- @waits no; as an iterator yes
-- @usage
-- local watch = assert(agent:watch { prefix = "worker:" })
-- for change in watch do
--   print(change.kind, change.entry.name)                    --> up worker:0
--   break
-- end
-- watch:close()
function Agent:watch(filter, f)
  filter = check.options(filter, WATCH, "watch")
  if f ~= nil then check.value(f, check.callable, "what watch tells") end
  local gone = self.engine:gone("watching scope " .. self.scope)
  if gone then return nil, gone end
  local watch, err = watches.new(self.registry, self.scope, filter, f)
  if watch then self.watches[watch] = true end
  return watch, err
end

end

return M
