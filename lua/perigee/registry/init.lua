-- SPDX-License-Identifier: Apache-2.0
--- Registries: where agents' names are held and looked up. The default is a
-- folder of this user's on this host. Another is a table with the three
-- functions below, which a program gives to `perigee.agent` as option
-- `registry`; agents find each other by names that are in the same one. A name
-- is looked up before each dial, so that proxies and kept sessions find it
-- again when it came back elsewhere.
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
-- * `addresses`: a list of those it listens at: its Unix socket, then those of
--   option `listen`, as they were given but for ports (0.0.0.0 says nothing to
--   other hosts). Dialled is the socket, where it is on the host of who dials;
--   else the first that is none
-- * `host`, `pid`: of its process
-- * `epoch`: a text that names its life, as `Session` has it
--
-- A registry keeps what it does not know, and gives it back: there may be more
-- some day. It may leave out all but `addresses`.
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
local errors = require "perigee.errors"
local folder = require "perigee.registry.folder"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local state = loop.state

local M = {}

--- The registry of who names none.
M.default = folder

--- Seconds that one has for holding a name.
M.patience = 30

local FUNCTIONS = { "hold", "release", "lookup" }

--- The check of an option.
function M.check(value)
  local fine = type(value) == "table"
  for _, name in ipairs(FUNCTIONS) do
    fine = fine and type(value[name]) == "function"
  end
  if not fine then
    return "a registry, a table with functions hold, release and lookup"
  end
end

-- ---- Asking ----------------------------------------------------------------

local function given(fine, first, ...)
  if fine then return first, ... end
  return nil, "protocol", "the registry failed: " .. errors.shown(first)
end

local function as_future(first, ...)
  if futures.is_future(first) then return first end
  return futures.done(first, ...)
end

-- The future of what a function of registry gives.
local function ask(registry, name, ...)
  local pinned = state.pinned
  state.pinned = "a registry's function " .. name
  local future = as_future(given(pcall(registry[name], registry, ...)))
  state.pinned = pinned
  return future
end

-- The error of what a registry gave behind nil.
local function failure(doing, kind, why)
  local status = type(kind) == "string" and errors.status(kind)
  if errors.is_error(kind) then
    kind, why = kind.kind, kind.message
  elseif not status then
    kind, why = "protocol", "the registry says: " .. errors.shown(kind)
  end
  return errors.new(kind, doing .. ": "
    .. errors.shown(why == nil and errors.text(status) or why), false)
end

-- What a future that has ended gives, which may be to raise.
local function results(future)
  return given(pcall(futures.results, future))
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

local function is_entry(entry)
  if type(entry) ~= "table" or type(entry.addresses) ~= "table" then
    return false
  end
  for _, address in ipairs(entry.addresses) do
    if type(address) ~= "string" then return false end
  end
  return entry.addresses[1] ~= nil
end

--- The error of a name that nobody has.
function M.nobody(scope, name)
  return errors.new("not_found", ("connecting to %s: no agent of that name is "
    .. "in scope %s"):format(name, scope), false)
end

local function told(future, scope, name)
  local doing = "connecting to " .. name
  local entry, kind, why = results(future)
  if not entry then
    if kind == nil then return nil, M.nobody(scope, name) end
    return nil, failure(doing, kind, why)
  elseif is_entry(entry) then
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
function M.lookup(registry, scope, name)
  local asked = ask(registry, "lookup", scope, name)
  if asked.ended then return futures.done(told(asked, scope, name)) end
  local future = tasks.spawn(function()
    loop.wait(asked, math.huge)
    return told(asked, scope, name)
  end)
  future.inner = asked                  -- to cancel one cancels the other
  return future
end

--- The address of an entry to dial.
function M.address(entry)
  local other
  for _, address in ipairs(entry.addresses) do
    local path = address:match "^unix:(/.*)$"
    if path and folder.is_there(path) then return address end
    other = other or not path and address
  end
  return other or entry.addresses[1]
end

return M
