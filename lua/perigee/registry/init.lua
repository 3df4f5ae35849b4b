-- SPDX-License-Identifier: Apache-2.0
--- Registries: where agents' names are held and looked up. The default is a
-- folder of this user's on this host. Another is named by its address, or is a
-- table with the functions below, which a program gives to `perigee.agent` as
-- option `registry`; agents find each other by names that are in the same one.
-- A name is looked up before each dial, so that proxies and kept sessions find
-- it again when it came back elsewhere.
--
-- * `"folder:/PATH"`: a folder, as the default is one, at that path
--
-- A table has to have `hold`, `release` and `lookup`; without `list` or
-- `watch` agents cannot do that, without `renew` nothing of an entry changes.
-- One with a field `ttl` forgets who does not renew a name in so many seconds.
--
-- The functions are called as methods, on the loop: they must not wait (that
-- raises). What takes time gives a `Future` of its results at once, by
-- `perigee.spawn` or as `proxy.async` does: the `async` of a proxy whose
-- service has these methods is a registry. What one raises is an error of kind
-- `protocol`.
--
-- What fails gives nil, a kind of `Error` (a text, or an error of Perigee's),
-- and, if it likes, a text that says why.
--
-- An entry is a table of plain values, which may be copied and sent:
--
-- * `name`, `scope`: of the agent, each 1 to 64 letters, digits and `. _ : -`
-- * `kind`: a text, the agent's option; `"agent"` by default
-- * `addresses`: a list of those it listens at: its Unix socket, then those of
--   option `advertise`, or of `listen` with their ports and, for all of a
--   host's, the host's name. Dialled is the socket, where it is on the host of
--   who dials; else the first that is none, and at the next attempt the next
-- * `services`: their versions, by name
-- * `regions`: those with a name, by it: `{ length = bytes, access = "rw" }`
-- * `state`: "up"
-- * `metadata`, `weight`: the agent's options
-- * `host`, `pid`: of its process
-- * `epoch`: a text that names its life, as `Session` has it
-- * `since`: for how many seconds it has had the name
--
-- A registry keeps what it does not know, and gives it back: there may be more
-- some day. It may leave out all but `addresses`, and in lists `name`.
-- @classmod Registry
-- @usage
-- local names = {}                              -- one within this Lua state
-- local registry = {}
-- function registry:hold(entry)
--   local key = entry.scope .. "/" .. entry.name
--   if names[key] then return nil, "name_taken" end
--   names[key] = entry
--   return key
-- end
-- function registry:release(key) names[key] = nil end
-- function registry:lookup(scope, name) return names[scope .. "/" .. name] end
--
-- local one = assert(perigee.agent { name = "one", registry = registry })
-- local two = assert(perigee.agent { registry = registry })
-- print(assert(two:session "one").peer)                        --> one
-- print(select(2, two:session "worker:0").kind)                --> not_found
-- one:close()
-- two:close()
local asks = require "perigee.registry.ask"
local check = require "perigee.check"
local entries = require "perigee.registry.entry"
local errors = require "perigee.errors"
local folder = require "perigee.registry.folder"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local ask, results, failure = asks.ask, asks.results, asks.failure
local state = loop.state

local M = {}

--- The registry of who names none.
M.default = folder

--- Seconds that one has for holding a name.
M.patience = 30

local FUNCTIONS = { "hold", "release", "lookup" }

-- ---- Opening ---------------------------------------------------------------

-- By the first part of an address: the registry there, or nil and why not.
local OPEN = {
  folder = function(address)
    local root = address:match "^folder:(/.*)$"
    if root then return folder.at((root:gsub("/+$", ""))) end
    return nil, "an absolute path, as folder:/run/names"
  end,
}

local opened = {}                       -- by address

--- The registry at an address: one for each. nil and what it has to be.
function M.open(address)
  if opened[address] then return opened[address] end
  local open = OPEN[address:match "^([%w+]+):" or ""]
  if not open then return nil, "folder:/PATH" end
  local one, why = open(address)
  opened[address] = one
  return one, why
end

--- The check of an option.
function M.check(value)
  if type(value) == "string" then
    local one, why = M.open(value)
    return not one and "a registry, by its address: " .. why or nil
  end
  local fine = type(value) == "table"
  for _, name in ipairs(FUNCTIONS) do
    fine = fine and type(value[name]) == "function"
  end
  if not fine then
    return "a registry: its address, or a table with functions hold, release "
      .. "and lookup"
  end
end

--- What an option (a registry, an address or nil) stands for; the environment's
-- where there is none, which raises at level if it is wrong.
function M.chosen(value, level)
  if type(value) == "table" then return value end
  local address = value or os.getenv "PERIGEE_REGISTRY" or ""
  if address == "" then return M.default end
  if not value then
    check.value(address, M.check, "the environment's PERIGEE_REGISTRY",
                level + 1)
  end
  return M.open(address)
end

--- Do agents listen in it, as in a folder? (Of a proxy each field is there.)
function M.has_places(registry)
  return registry.places == true
end

-- ---- Holding ---------------------------------------------------------------

-- Why a wait for future ended before it did.
local function unanswered(future, doing)
  future:cancel()
  if state.stopping then
    return errors.new("closed", doing .. ": the loop was stopped", false)
  end
  return errors.new("timeout", ("%s: the registry has not answered within %g s")
    :format(doing, M.patience), false)
end

--- Takes a name for an agent: called before it serves anybody, when it listens
-- everywhere. Whoever holds it has it until `Registry:release`, or until it
-- died, however long that takes to be noticed.
-- @function Registry:hold
-- @tparam table entry the agent's
-- @return what `Registry:release` is to be given: anything but nil and false;
--   or nil and an error, nil alone for `name_taken`; or a `Future` of these,
--   which is cancelled after 30 s
-- @errors `name_taken`: a live agent has it; any other, which is what
--   `perigee.agent` then gives
-- @waits no
-- @usage
-- local registry = { release = print, lookup = print }
-- function registry:hold(entry)
--   return nil, "name_taken", "process 7 of host h has it"
-- end
-- print(select(2, perigee.agent { name = "one", registry = registry }))
-- --> taking the name one in scope default: process 7 of host h has it
function M.hold(registry, entry)
  local doing = ("taking the name %s in scope %s"):format(entry.name,
                                                          entry.scope)
  local future = ask(registry, "hold", entry)
  if not future.ended
    and not loop.wait(future, loop.deadline(M.patience)) then
    return nil, unanswered(future, doing)
  end
  local held, kind, why = results(future)
  if held then return held, kind end    -- the folder: and where to listen
  return nil, failure(doing, kind == nil and "name_taken" or kind, why)
end

--- Tells what the agent is now, and says that it lives: called when it listens
-- everywhere, when something of its entry is another, and, where the registry
-- has a field `ttl`, three times in so many seconds. A registry without this
-- function knows what it was told by `Registry:hold`.
-- @function Registry:renew
-- @param held what `Registry:hold` gave
-- @tparam[opt] table entry the agent's, as it is now; nil: as it was
-- @treturn boolean true; or nil and an error; or a `Future` of these
-- @errors `name_taken`: another has the name by now, and this is over; any
--   other is for now, and goes to the log
-- @waits no
-- @usage
-- local function yes() return true end
-- local registry = { hold = yes, release = yes, lookup = print }
-- local told
-- function registry:renew(held, entry) told = entry return true end
-- local one = assert(perigee.agent { name = "one", registry = registry })
-- one:serve { name = "clock", version = 2, methods = { now = os.time } }
-- repeat perigee.sleep(0.001) until told.services.clock
-- print(told.services.clock)                                   --> 2
-- one:close()
function M.renew(registry, held, entry)
  return ask(registry, "renew", held, entry)
end

--- Gives a name back: called once, when the agent is closed, or was not made
-- for another reason. Nobody waits for what it gives, and the program may be at
-- its end: what is sent may never arrive.
-- @function Registry:release
-- @param held what `Registry:hold` gave
-- @waits no
-- @usage
-- local registry = { lookup = print }
-- function registry:hold(entry) return "a lease" end
-- function registry:release(held) print("released " .. held) end
-- local one = assert(perigee.agent { name = "one", registry = registry })
-- one:close()                                            --> released a lease
function M.release(registry, held)
  ask(registry, "release", held)
end

-- ---- Looking up ------------------------------------------------------------

--- The error of a name that nobody has.
function M.nobody(scope, name, doing)
  return errors.new("not_found", ("%s: no agent of that name is in scope %s")
    :format(doing or "connecting to " .. name, scope), false)
end

-- The future of what f(future, ...) makes of one, when that has ended.
local function answered(future, f, ...)
  if future.ended then return futures.done(f(future, ...)) end
  local made = tasks.spawn(function(...)
    loop.wait(future, math.huge)
    return f(future, ...)
  end, ...)
  made.inner = future                   -- to cancel one cancels the other
  return made
end

local function told(future, scope, name, doing)
  local entry, kind, why = results(future)
  if not entry then
    if kind == nil then return nil, M.nobody(scope, name, doing) end
    return nil, failure(doing, kind, why)
  elseif entries.is_entry(entry) then
    return entry
  end
  return nil, errors.new("protocol", ("%s: what the registry has of it is no "
    .. "entry with addresses"):format(doing), false)
end

--- Finds who has a name now: called before each dial. It need not know whether
-- that one is alive: who dials takes nobody who goes by another name, nor, over
-- TCP, who has another secret.
-- @function Registry:lookup
-- @tparam string scope
-- @tparam string name
-- @treturn table the entry that was held; or nil and an error, nil alone for
--   `not_found`; or a `Future` of these, which is cancelled when the time for
--   connecting is over
-- @errors `not_found`: nobody has it; `peer_lost`, `timeout`, `no_memory`,
--   `closed`: for now (a call whose peer is away tries again); any other ends
--   what waits for the peer
-- @waits no
-- @usage
-- local function yes() return true end
-- local registry = { hold = yes, release = yes }
-- function registry:lookup(scope, name)
--   if name == "me" then return { addresses = { agent.address } } end
-- end
-- local one = assert(perigee.agent { registry = registry })
-- print(select(2, one:session "me").kind)   -- it has another name --> denied
-- print(select(2, one:session "you"))
-- --> connecting to you: no agent of that name is in scope default
-- one:close()
function M.lookup(registry, scope, name, doing)
  doing = doing or "connecting to " .. name
  local asked = ask(registry, "lookup", scope, name)
  return answered(asked, told, scope, name, doing)
end

-- ---- Listing and watching --------------------------------------------------

local function listed(future, doing)
  local list, kind, why = results(future)
  if not list then return nil, failure(doing, kind, why) end
  local fine = type(list) == "table"
  for _, entry in ipairs(fine and list or {}) do
    fine = fine and entries.is_entry(entry) and type(entry.name) == "string"
  end
  if fine then return list end
  return nil, errors.new("protocol", doing .. ": what the registry has is no "
    .. "list of entries", false)
end

--- Lists who has names now. Optional: without this function `Agent:list` is
-- `unsupported`.
-- @function Registry:list
-- @tparam string scope
-- @tparam table filter `kind`: of that kind; `prefix`: whose names begin so;
--   `service`: who serve that; `after`: whose names are behind that one;
--   `limit`: at most so many; each may be nil
-- @treturn table a list of entries, by name; or nil and an error; or a `Future`
--   of these
-- @errors any, which is what `Agent:list` then gives
-- @waits no
-- @usage
-- local function yes() return true end
-- local registry = { hold = yes, release = yes, lookup = print }
-- function registry:list(scope, filter)
--   return { { name = filter.prefix .. "0", addresses = { "tcp://a:1" } } }
-- end
-- local one = assert(perigee.agent { registry = registry })
-- print(one:list({ prefix = "worker:" })[1].name)              --> worker:0
-- one:close()
function M.list(registry, scope, filter, doing)
  return answered(ask(registry, "list", scope, filter), listed, doing)
end

--- Tells what has changed, once: who goes on watching asks again. Optional:
-- without this function `Agent:watch` is `unsupported`.
--
-- Without `filter.from`, and with one that is not known any more, the answer is
-- what there is, at once: `{ revision = text, entries = list }`. With one it is
-- what has changed since, as soon as something has: `{ revision = text,
-- changes = { { name = text, entry = entry }, ... } }`, without an entry for
-- who is gone; what the filter does not ask for may be among it.
-- @function Registry:watch
-- @tparam string scope
-- @tparam table filter `kind` and `prefix`, as for `Registry:list`; `from`: the
--   revision of the last answer
-- @treturn table the answer; or nil and an error; or a `Future` of these, which
--   is cancelled when nobody watches any more
-- @errors `timeout`: nothing has changed so far; any other is for now but
--   `unsupported`, `no_method`, `no_service` and `version`
-- @waits no
-- @usage
-- local function yes() return true end
-- local registry = { hold = yes, release = yes, lookup = print }
-- function registry:watch(scope, filter)
--   if filter.from then return perigee.spawn(perigee.sleep, 60) end
--   return { revision = "1", entries = { { name = "worker:0",
--                                          addresses = { "tcp://a:1" } } } }
-- end
-- local one = assert(perigee.agent { registry = registry })
-- for change in one:watch {} do
--   print(change.kind, change.entry.name)                    --> up worker:0
--   break
-- end
-- one:close()
function M.watch(registry, scope, filter)
  return ask(registry, "watch", scope, filter)
end

-- ---- Addresses -------------------------------------------------------------

--- The address of an entry to dial, after so many attempts.
function M.address(entry, tries)
  local others = {}
  for _, address in ipairs(entry.addresses) do
    local path = address:match "^unix:(/.*)$"
    if path and folder.is_there(path) then return address end
    if not path then others[#others + 1] = address end
  end
  return others[(tries or 0) % #others + 1] or entry.addresses[1]
end

return M
