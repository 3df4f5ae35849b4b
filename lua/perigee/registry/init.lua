-- SPDX-License-Identifier: Apache-2.0
--- Registries hold agents' names and look them up. The default registry is a
-- folder of this user's on this host. Option `registry` of `perigee.agent`
-- names another one by its address, or is a table with the functions below.
-- Agents find each other by names in the same registry. A name is looked up
-- before each connection attempt, so proxies and kept sessions find an agent
-- again that came back at another address.
--
-- * `"folder:/PATH"`: a folder at that path, used as the default one is
-- * `"redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"`: a Redis server of
--   version 6.2 or later; `rediss://` over TLS, `redis+unix:/PATH` by its
--   socket. Options follow a `?`, joined by `&`: `ttl=10` (seconds after which
--   an agent that is not heard of loses its name), `timeout=5` (seconds for an
--   answer), `db=0`, `user`, `password`, and files for TLS: `ca`, `cert`,
--   `key`. Characters with a meaning in addresses are written as %XX. Needs
--   `perigee/control.so` and lua-cjson
-- * `"redis+sentinel://[USER:PASSWORD@]HOST[:PORT],.../MASTER[/DATABASE]"`: the
--   Redis server that is the master of this name now, as one of these Sentinels
--   says (port 26379 by default); `rediss+sentinel://` with TLS to all of them.
--   Options as above, and `sentinel_user`, `sentinel_password`
-- * `"http://HOST[:PORT][,HOST...]"`: a control server (`perigee ctrl`), or
--   several that share a Redis or an etcd, of which the next one is asked if
--   one does not answer at once; `https://` over TLS. Options: `ttl`,
--   `timeout`, `ca`, `cert` and `key` as above, `token=TOKEN` or
--   `token=file:PATH`, a file that is closed to others (mode 600). Needs the
--   same
-- * `"etcd://[USER:PASSWORD@]HOST[:PORT],..."`: a cluster of etcd servers of
--   version 3.4 or later; `etcds://` over TLS. Options `ttl` (whole seconds),
--   `timeout`, `user`, `password`, `ca`, `cert` and `key`, as above. Needs the
--   same
--
-- A table must have `hold`, `release` and `lookup`. Without `list` or `watch`
-- agents cannot list or watch names; without `renew` entries never change. A
-- registry with a field `ttl` removes a name that was not renewed for so many
-- seconds. The name is lost (`Agent:on_lost`) when nine tenths of that have
-- passed since the agent asked for the last renewal that was answered. Then the
-- agent asks for the name by `hold` again.
--
-- An entry has 1 MiB at most, or as much as the registry's field `entry_limit`
-- says. An agent that names a region or adds a service beyond that gets
-- `too_large`.
--
-- The functions are called as methods, on the loop; they raise if they wait. A
-- function that takes time returns a `Future` of its results at once, made by
-- `perigee.spawn` or `proxy.async`. So the `async` of a proxy whose service has
-- these methods can be used as a registry. A function that raises gives an
-- error of kind `protocol`.
--
-- A function that fails returns nil, a kind of `Error` (a text, or an error of
-- Perigee's), and optionally a text with the reason.
--
-- An entry is a table of plain values, which may be copied and sent:
--
-- * `name`, `scope`: of the agent, each 1 to 64 letters, digits and `. _ : -`
-- * `kind`: a text, the agent's option; `"agent"` by default
-- * `addresses`: a list of its addresses: its Unix socket, then those of option
--   `advertise`, or else those of `listen` with their ports. "0.0.0.0" becomes
--   the host's name; "[::]" becomes the host's IPv6 addresses, or its name if
--   it has none that other links reach. A peer on the same host dials the
--   socket. Others dial the addresses that are no sockets, in their order. Each
--   is dialled 0.25 s after the one before it, or when that one has failed. The
--   first session is used. Sessions over TCP addresses use RDMA if both sides
--   have it
-- * `services`: the services' versions, by name
-- * `regions`: the named regions, by name: `{ length = bytes, access = "rw" }`
-- * `state`: "up", or "draining" (`Agent:drain`): another may take the name now
-- * `metadata`, `weight`: the agent's options
-- * `host`, `pid`: of its process
-- * `machine`: a text that identifies the system that its process sees: the
--   kernel's life, and its namespaces. Paths and loopback addresses mean the
--   same to two processes with equal texts
-- * `epoch`: a text that identifies its life, as a `Session` has it
-- * `since`: for how many seconds it has had the name
-- * `term`: a number that the registry raises at each taking of the name
--   (`Proxy:with`); a registry of a program's own may leave it out
--
-- A registry must store and return fields that it does not know, since there
-- may be more in the future. Only `addresses` is required in what it returns,
-- and in lists also `name`.
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
jit.off(true)                   -- its loop over pairs(), see check.lua

local asks = require "perigee.registry.ask"
local check = require "perigee.runtime.check"
local entries = require "perigee.registry.entry"
local errors = require "perigee.runtime.errors"
local folder = require "perigee.registry.folder"
local futures = require "perigee.runtime.future"
local loop = require "perigee.runtime.loop"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"

local ask, results, failure = asks.ask, asks.results, asks.failure
local state = loop.state

local M = {}

--- The registry of agents without option `registry`.
M.default = folder

--- Seconds that a registry may take to hold a name.
M.patience = 30

local FUNCTIONS = { "hold", "release", "lookup" }

-- ---- Opening ---------------------------------------------------------------

-- Functions by the scheme of an address. Each returns the registry at the
-- address, or nil and what the address should be.
local OPEN = {
  folder = function(address)
    local root = address:match "^folder:(/.*)$"
    if root then return folder.at((root:gsub("/+$", ""))) end
    return nil, "an absolute path, as folder:/run/names"
  end,
}

-- The libraries for a server are loaded when an agent first uses it.
local function server(name)
  return function(address)
    local fine, module = pcall(require, "perigee.registry." .. name)
    if not fine then
      return nil, "one that can be spoken to here: "
        .. module:match "^[^\n]*"
    end
    return module.open(address)
  end
end
local SERVERS = {
  redis = { "redis", "rediss", "redis+unix", "redis+sentinel",
            "rediss+sentinel" },
  etcd = { "etcd", "etcds" },
  http = { "http", "https" },
}
for name, schemes in pairs(SERVERS) do
  local open = server(name)
  for _, scheme in ipairs(schemes) do OPEN[scheme] = open end
end

local ADDRESSES = "folder:/PATH, redis://HOST, rediss://HOST, "
  .. "redis+unix:/PATH, redis+sentinel://HOST,HOST/MASTER, etcd://HOST,HOST, "
  .. "etcds://HOST,HOST, http://HOST or https://HOST"

-- What opens an address; nil: it is none of a registry.
local function opener(address) return OPEN[address:match "^([%w+]+):" or ""] end

--- What an address should be; nil: it may be a registry's, as far as that can
-- be told without its server's libraries.
function M.wrong(address)
  local open = opener(address)
  if open and open ~= OPEN.folder then return nil end
  if not open then return ADDRESSES end
  local fine, why = open(address)
  return not fine and why or nil
end

local opened = {}                       -- by address

--- The registry at an address, the same object for each use of the address; or
-- nil and what the address should be.
function M.open(address)
  if opened[address] then return opened[address] end
  local open = opener(address)
  if not open then return nil, ADDRESSES end
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

--- The registry for an option (a registry, an address or nil). Nil stands for
-- the environment's PERIGEE_REGISTRY, or else the default; raises at level if
-- the environment's address is wrong.
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

--- Do agents listen at sockets in the registry, as in a folder? Compares with
-- true, as a proxy has a function for any field.
function M.has_places(registry)
  return registry.places == true
end

-- ---- Holding ---------------------------------------------------------------

-- Gives up future, for which a wait has ended early; returns the reason. A name
-- that it takes after a caller's own patience is released.
local function unanswered(registry, future, doing, patience)
  if patience then
    signals.attach(future, signals.new(1, function()
      local held = results(future)
      if held then M.release(registry, held) end
    end))
  else
    future:cancel()
  end
  if state.stopping then
    return errors.new("closed", doing .. ": the loop was stopped", false)
  end
  return errors.new("timeout", ("%s: the registry has not answered within %g s")
    :format(doing, patience or M.patience), false)
end

--- Takes a name for an agent. Called when the agent listens at all its
-- addresses, before it serves calls. The agent has the name until
-- `Registry:release`, or until the registry notices that it has died. The
-- library connects to the holder if the name is taken and the registry returns
-- the holder's entry after the text. It calls `hold` again if the holder is
-- dead, and at once if the entry says that the holder drains. A holder on
-- another host is taken as dead only if a number among its addresses refuses: a
-- host's name that refuses proves nothing.
-- @function Registry:hold
-- @tparam table entry the agent's
-- @tparam[opt] string over the epoch of a holder that is dead or drains, which
--   is to lose the name if it still has it; or this agent's own epoch, if it
--   may have lost the name
-- @return a value for `Registry:release`: anything but nil and false; or nil
--   and an error, nil alone for `name_taken`; or a `Future` of these, which is
--   cancelled after 30 s
-- @errors `name_taken`: a live agent has it; `perigee.agent` returns this or
--   any other error
-- @waits no
-- @usage
-- local registry = { release = print, lookup = print }
-- function registry:hold(entry)
--   return nil, "name_taken", "process 7 of host h has it"
-- end
-- print(select(2, perigee.agent { name = "one", registry = registry }))
-- --> taking the name one in scope default: process 7 of host h has it
function M.hold(registry, entry, over, patience)
  local doing = ("taking the name %s in scope %s"):format(entry.name,
                                                          entry.scope)
  local future = ask(registry, "hold", entry, over)
  if not future.ended
    and not loop.wait(future, loop.deadline(patience or M.patience)) then
    return nil, unanswered(registry, future, doing, patience)
  end
  local held, kind, why, holder = results(future)
  if held then return held, kind end    -- kind: a folder's address to listen at
  local err = failure(doing, kind == nil and "name_taken" or kind, why)
  err.holder = entries.is_entry(holder) and holder or nil
  return nil, err
end

--- Updates the agent's entry and shows that the agent lives. Called when the
-- agent listens at all its addresses, when its entry has changed, and, if the
-- registry has a field `ttl`, three times in so many seconds. A registry
-- without this function keeps the entry of `Registry:hold`.
-- @function Registry:renew
-- @param held what `Registry:hold` gave
-- @tparam[opt] table entry the agent's present entry; nil: it is unchanged
-- @treturn boolean true; or true and an error, if the name is renewed but the
--   entry was refused, and is as it was before; or nil and an error; or a
--   `Future` of these
-- @errors `name_taken`: another agent has the name now, and this agent has lost
--   it; any other error is considered temporary, and is logged. An entry that
--   was refused as `too_large` is not sent again until it changes
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

--- Releases a name. Called once, when the agent is closed, or could not be made
-- for another reason. Its results are not waited for, and the program may be
-- about to end: a message that it sends may never arrive.
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
  return ask(registry, "release", held)
end

-- ---- Looking up ------------------------------------------------------------

-- The place where the entries of a scope are looked for. It compares, because a
-- proxy has a function for any field.
local function place_of(registry, scope)
  if registry.path == M.default.path then return registry:path(scope) end
  local target = registry.target
  local text = type(target) == "table" and target.text
  return type(text) == "string" and text or "the program's own registry"
end

--- The name that messages give to a registry.
M.shown = place_of

--- The error of a name that no agent has.
function M.nobody(registry, scope, name, doing)
  return errors.new("not_found", ("%s: no agent of that name is in scope %s "
    .. "(asked: %s)"):format(doing or "connecting to " .. name, scope,
                             place_of(registry, scope)), false)
end

-- The future of the results of f(future, ...), called when future has ended.
local function answered(future, f, ...)
  if future.ended then return futures.done(f(future, ...)) end
  local made = tasks.spawn(function(...)
    loop.wait(future, math.huge)
    return f(future, ...)
  end, ...)
  made.inner = future                   -- cancelled together with made
  return made
end

local function told(future, registry, scope, name, doing)
  local entry, kind, why = results(future)
  if not entry then
    if kind == nil then return nil, M.nobody(registry, scope, name, doing) end
    return nil, failure(doing, kind, why)
  elseif entries.is_entry(entry) then
    return entry
  end
  return nil, errors.new("protocol", ("%s: what the registry has of it is no "
    .. "entry with addresses"):format(doing), false)
end

--- Finds the agent that has a name now. Called before each connection attempt.
-- The registry need not know whether the agent is alive: the connection is only
-- accepted from an agent of that name and, over TCP, with the same secret.
-- @function Registry:lookup
-- @tparam string scope
-- @tparam string name
-- @treturn table the entry that was held; or nil and an error, nil alone for
--   `not_found`; or a `Future` of these, which is cancelled when the time for
--   connecting is over
-- @errors `not_found`: no agent has it; `peer_lost`, `timeout`, `no_memory`,
--   `closed`: temporary errors, after which operations that wait for the peer
--   try again; any other error ends them
-- @waits no
-- @usage
-- local function yes() return true end
-- local registry = { hold = yes, release = yes }
-- function registry:lookup(scope, name)
--   if name == "me" then return { addresses = { agent.address } } end
-- end
-- local one = assert(perigee.agent { registry = registry })
-- print(select(2, one:session "me").kind)   -- it has another name --> denied
-- print(select(2, one:session "you").kind)                     --> not_found
-- one:close()
function M.lookup(registry, scope, name, doing)
  doing = doing or "connecting to " .. name
  local asked = ask(registry, "lookup", scope, name)
  return answered(asked, told, registry, scope, name, doing)
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

--- Lists the agents that have names now. Optional: without this function
-- `Agent:list` is `unsupported`.
-- @function Registry:list
-- @tparam string scope
-- @tparam table filter which agents to list; each field may be nil. `kind`:
--   those of that kind; `prefix`: those whose names begin so; `service`: those
--   that serve it; `after`: those whose names sort after it; `limit`: at most
--   so many
-- @treturn table a list of entries, sorted by name; or nil and an error; or a
--   `Future` of these
-- @errors any; `Agent:list` returns it
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

--- Returns one answer about changes; a watch calls this again after each.
-- Optional: without this function `Agent:watch` is `unsupported`.
--
-- Without `filter.from`, or if that revision is not known any more, the answer
-- has all entries and comes at once: `{ revision = text, entries = list }`.
-- Otherwise it has the changes since that revision, and comes as soon as there
-- are any: `{ revision = text, changes = { { name = text, entry = entry }, ...
-- } }`. A name that is gone has no entry. Changes that do not match the filter
-- may be included.
-- @function Registry:watch
-- @tparam string scope
-- @tparam table filter `kind` and `prefix`, as for `Registry:list`; `from`: the
--   revision of the last answer
-- @treturn table the answer; or nil and an error; or a `Future` of these, which
--   is cancelled when the watch is closed
-- @errors `timeout`: nothing has changed so far. `unsupported`, `no_method`,
--   `no_service` and `version` end the watch; any other is temporary
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

local MOST = 16                         -- addresses that are dialled at once

--- The addresses of an entry in the order in which they are dialled: sockets
-- that are on this host, then all that are no sockets, as listed. Over each of
-- these a session uses RDMA if both sides have it.
function M.addresses(entry)
  local here, others, seen = {}, {}, {}
  for _, address in ipairs(entry.addresses) do
    local path = address:match "^unix:(/.*)$"
    local list = not path and others or folder.is_there(path) and here
    if list and not seen[address] and #list < MOST then
      list[#list + 1], seen[address] = address, true
    end
  end
  for i = 1, math.min(#others, MOST - #here) do here[#here + 1] = others[i] end
  return here[1] and here or { entry.addresses[1] }
end

--- The first of them.
function M.address(entry)
  return M.addresses(entry)[1]
end

return M
