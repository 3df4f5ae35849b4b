-- SPDX-License-Identifier: Apache-2.0
--- The registry in a control server: entries with a lease, which the server
-- keeps on disk. The server serializes all writes, so two live agents never
-- have one name. A server that comes back gives each lease a new TTL; one that
-- has lost an agent is told of it by the agent's next renewal.
local address_parts = require "perigee.registry.address"
local addresses = require "perigee.registry.http.address"
local check = require "perigee.runtime.check"
local clients = require "perigee.registry.http.client"
local entries = require "perigee.registry.entry"
local feed = require "perigee.registry.http.feed"
local feeds = require "perigee.registry.feed"
local pages_of = require "perigee.registry.pages"
local tasks = require "perigee.runtime.task"
local topologies = require "perigee.registry.http.topology"

local M = {}

local TTL, TIMEOUT = 10, 5              -- seconds
local PAGE = 1000
local HIDDEN = "https:// (a server with --tls-cert and --tls-key; ca=FILE in "
  .. "the address names who has signed its certificate)"

--- follows: agents may follow the topology of their scope.
local Control = { follows = true }
Control.__index = Control

--- The registry at an address; or nil and what the address should be.
function M.open(address)
  local target, why = addresses.read(address)
  if not target then return nil, why end
  if target.token and address:find "^http:" then
    address_parts.warn("the token for " .. target.text, target.hosts, HIDDEN)
  end
  return setmetatable({
    target = target, client = clients.new(target, target.timeout or TIMEOUT),
    feeds = feeds.set(), ttl = target.ttl or TTL, entry_limit = false },
    Control)
end

local function path_of(scope, name, more)
  return ("/v1/scopes/%s/agents/%s%s"):format(clients.escape(scope),
                                              clients.escape(name), more)
end

-- ---- Holding ---------------------------------------------------------------

-- Writes an entry. True and the answer's headers; or nil, a kind, why and, if
-- the name is taken, the holder's entry.
local function put(control, entry, over)
  local text, failed = clients.encode(entry)
  if not text then return nil, "protocol", failed end
  local most = control.entry_limit or math.huge
  if #text > most then
    return nil, "too_large", ("the entry has %d bytes, and %s takes %d")
      :format(#text, control.target.text, most)
  end
  local more = ("?ttl=%g"):format(control.ttl)
  if over then more = more .. "&over=" .. clients.escape(over) end
  local value, kind, why, told = control.client:ask("PUT",
    path_of(entry.scope, entry.name, more), text)
  if value then
    control.entry_limit = tonumber(kind["perigee-body"]) or false
    return true, kind
  end
  local holder = kind == "name_taken" and type(told.holder) == "table"
    and entries.trusted(told.holder, entry.scope, entry.name) or nil
  return nil, kind, why, holder
end

-- What this takes is loaded only where a server wants it: it has buffers.
local function report(control, held)
  return require "perigee.registry.http.stats".send(control, held)
end

-- Reports what the agent counts, unless that is being done.
local function begin_report(control, held)
  if held.report and not held.report.ended then return end
  held.report = tasks.spawn(report, control, held)
end

-- Notes what the server has said beside its answer: whether it wants to know
-- what the agent counts, and of the topology.
local function note(control, held, headers)
  if headers["perigee-stats"] == "wanted" then begin_report(control, held) end
  held.topology = headers["perigee-topology"]
  if held.topology and held.told then held.told(held.topology) end
  return true
end

local function hold(control, entry, over)
  local fine, kind, why, holder = put(control, entry, over)
  if not fine then return nil, kind, why, holder end
  return { scope = entry.scope, name = entry.name, epoch = entry.epoch,
           entry = entry, topology = kind["perigee-topology"], told = false,
           report = false, methods = false }
end

--- Takes a name. over: the epoch of a holder that was found dead, or nil.
function Control:hold(entry, over)
  return tasks.spawn(hold, self, entry, over)
end

local function ask_of(control, held, method, more)
  return control.client:ask(method, path_of(held.scope, held.name,
    ("%s?epoch=%s"):format(more, clients.escape(held.epoch))))
end

local function send(control, held, entry)
  local fine, kind, why = put(control, entry)
  if not fine then return nil, kind, why end
  held.entry = entry
  return note(control, held, kind)
end

local function keep(control, held)
  local value, kind, why = ask_of(control, held, "POST", "/renew")
  if value then return note(control, held, kind) end
  if kind ~= "not_found" then return nil, kind, why end
  return send(control, held, held.entry)
end

-- Kinds of failures that say nothing of the entry.
local NO_ANSWER = { peer_lost = true, timeout = true, closed = true,
                    name_taken = true }

local function renew(control, held, entry)
  if not entry then return keep(control, held) end
  local fine, kind, why = send(control, held, entry)
  if fine or NO_ANSWER[kind] then return fine, kind, why end
  local kept, failed, reason = keep(control, held)
  if kept then return true, kind, why end
  return nil, failed, reason
end

--- Begins a name's lease anew, and updates its entry if one is given: where
-- that is refused the lease has begun anew all the same. Takes the name again
-- if the server has lost it.
function Control:renew(held, entry)
  return tasks.spawn(renew, self, held, entry)
end

local function release(control, held)
  local value, kind, why = ask_of(control, held, "DELETE", "")
  if value or kind == "not_found" or kind == "name_taken" then return true end
  return nil, kind, why
end

function Control:release(held)
  return tasks.spawn(release, self, held)
end

-- ---- Asking ----------------------------------------------------------------

local function lookup(control, scope, name)
  local value, kind, why = control.client:ask("GET", path_of(scope, name, ""))
  if not value and kind == "not_found" then return nil end
  if not value then return nil, kind, why end
  return entries.trusted(value, scope, name)
end

function Control:lookup(scope, name)
  return tasks.spawn(lookup, self, scope, name)
end

local function query_of(filter, after, limit)
  local parts = { ("limit=%d"):format(limit) }
  for _, name in ipairs { "kind", "prefix", "service" } do
    local value = filter[name]
    if value then
      parts[#parts + 1] = name .. "=" .. clients.escape(value)
    end
  end
  if after then parts[#parts + 1] = "after=" .. clients.escape(after) end
  return table.concat(parts, "&")
end

local function take_page(pages, list, value, length, scope)
  local items = type(value.items) == "table" and value.items or {}
  for _, each in ipairs(items) do
    local name = type(each) == "table" and each.name
    local entry = type(name) == "string" and entries.trusted(each, scope, name)
    if entry then list[#list + 1] = entry end
    pages:name(length / #items)
  end
end

-- The next page and its length; or nil, a kind and why. Pages whose answer is
-- too large are made smaller.
local function ask_page(pages, control, scope, filter, after, most)
  while true do
    local value, headers, length = control.client:ask("GET",
      ("/v1/scopes/%s/agents?%s"):format(clients.escape(scope),
        query_of(filter, after, math.min(pages.size, most))))
    if value then return value, length end
    if headers ~= "too_large" or pages.size == 1 then
      return nil, headers, length
    end
    pages.size = math.ceil(pages.size / 8)
  end
end

local function list(pages, control, scope, filter)
  local found, after = {}, filter.after
  local limit, before = filter.limit or math.huge
  pages.size = PAGE
  repeat
    local value, length, why = ask_page(pages, control, scope, filter, after,
                                        limit - #found)
    if not value then return nil, length, why end
    take_page(pages, found, value, length, scope)
    local fine, kind, failed = pages:turn()
    if not fine then return nil, kind, failed end
    before, after = after, not check.name(value.next) and value.next
  until not after or #found >= limit or before and after <= before
  return found
end

function Control:list(scope, filter)
  if filter.limit and filter.limit < 1 then return {} end
  return pages_of.spawn(list, self, scope, filter)
end

-- ---- Watching --------------------------------------------------------------

function Control:watch(scope, filter)
  return feeds.of(self.feeds, scope, feed.new, self.client, scope)
    :watch(filter)
end

-- ---- Topology --------------------------------------------------------------
--
-- A held name has a field `told`, which the agent sets: a function that is
-- called with each answer in which the server says that its topology names the
-- agent (control/graph). It must not wait.

--- Watches the topology of a scope: as `Registry:watch`, of one entry.
function Control:topology(scope, from)
  local key = "topology " .. scope
  return feeds.of(self.feeds, key, topologies.feed, self.client, scope)
    :watch { from = from }
end

--- Reports a list of peers by an agent's name. A future of true; or of nil,
-- a kind and why.
function Control:report(held, peers)
  return tasks.spawn(topologies.report, self, held, peers)
end

return M
