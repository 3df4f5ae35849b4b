-- SPDX-License-Identifier: Apache-2.0
--- Follows the changes of a scope in etcd. One task reads a watch that etcd
-- streams, as long as somebody watches and for some seconds after, and keeps
-- all entries.
--
--   state      event                                     becomes
--   looking    all entries were read, at a revision      following
--   following  events                                    following
--   following  the stream has ended                      following another,
--                                                        from that revision
--   following  that revision was compacted, or is not    looking
--              the servers' (they were emptied)
--   any        an error                                  as before, in a while
--   any        nobody watches, a stop of the loop        over
--
-- The last revision of which there were events is asked for once more, since
-- the stream may have ended amid its events; to set an entry twice changes
-- nothing.
local changes = require "perigee.registry.changes"
local errors = require "perigee.errors"
local entries = require "perigee.registry.entry"
local futures = require "perigee.future"
local keys = require "perigee.registry.etcd.keys"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local M = {}

local QUIET = 2                         -- seconds of a read without an event
local LINGER = 10                       -- seconds without a waiting future
local PAUSE = 0.1                       -- seconds between attempts

local Feed = {}
Feed.__index = Feed

-- ---- What is known ---------------------------------------------------------

local function set(feed, name, entry)
  local before = feed.known[name]
  if before == entry
    or before and entry and entries.unchanged(before, entry) then
    return
  end
  feed.known[name] = entry
  feed.changes:note(name)
end

-- Reads all entries.
local function look(feed)
  local list, kind, why = feed.etcd:all(feed.scope)
  if not list then return nil, kind, why end
  for name, entry in pairs(list.entries) do set(feed, name, entry) end
  for name in pairs(feed.known) do
    if not list.entries[name] then set(feed, name, nil) end
  end
  feed.from, feed.term, feed.cluster = list.revision + 1, list.term,
                                       list.cluster
  feed.looked = true
  return true
end
jit.off(look)

-- ---- Following -------------------------------------------------------------

local function take(feed, events)
  for _, event in ipairs(events) do
    local kv = type(event) == "table" and event.kv
    local name = type(kv) == "table" and keys.name_of(kv.key, feed.scope)
    if name then
      local is_gone = event.type == "DELETE"
      set(feed, name, not is_gone and feed.etcd:entry(kv, feed.scope, name)
        or nil)
    end
    local revision = type(kv) == "table" and tonumber(kv.mod_revision)
    feed.from = math.max(feed.from, revision or 0)
  end
end

-- Are the servers not those of which the entries were read, but others or
-- emptied ones?
local function is_other(feed, header)
  return header.cluster_id ~= feed.cluster
    or (tonumber(header.raft_term) or 0) < feed.term
    or (tonumber(header.revision) or 0) + 1 < feed.from
end

local function stop(feed)
  if feed.stream then feed.etcd.cluster:close(feed.stream) end
  feed.stream = false
end

local function open(feed)
  local from, to = keys.range(feed.scope)
  local stream, kind, why = feed.etcd.cluster:stream("watch", {
    create_request = { key = from, range_end = to, fragment = true,
                       start_revision = ("%d"):format(feed.from) } })
  feed.stream = stream or false
  return stream, kind, why
end

-- Has the feed look again; the pause is for a server that is behind others.
local function look_again(feed)
  stop(feed)
  feed.looked = false
  loop.wait(futures.new(), loop.deadline(PAUSE))
  return true
end

local function heard(feed, told)
  local header = type(told.header) == "table" and told.header or {}
  if told.created and not told.canceled and is_other(feed, header) then
    return look_again(feed)
  elseif told.canceled and told.compact_revision then
    stop(feed)
    feed.looked = false
    return true
  elseif told.canceled then
    return nil, "peer_lost", tostring(told.cancel_reason or "it hung up")
  end
  take(feed, type(told.events) == "table" and told.events or {})
  return true
end

-- Reads one part of the stream. A stream that has ended is opened again.
local function follow(feed)
  if not feed.stream then
    local stream, kind, why = open(feed)
    if not stream then return nil, kind, why end
  end
  local stream = feed.stream
  local told, kind, why = feed.etcd.cluster:next(stream, QUIET)
  if told then return heard(feed, told) end
  if kind == "timeout" then return true end
  stop(feed)
  if kind == "closed" or kind == "peer_lost" then return true end
  return nil, kind, why
end

-- ---- Running ---------------------------------------------------------------

local function is_over(feed)
  if feed.changes:is_wanted() then feed.wanted = loop.now() end
  return feed.over or loop.now() - feed.wanted > LINGER * 1e9
end

-- Keeps the known entries while the servers are away.
local function try_again(feed)
  while not is_over(feed) do
    local step = feed.looked and follow or look
    local fine, kind, why = step(feed)
    if fine then
      if feed.looked then feed.changes:tell(true) end
    else
      stop(feed)
      feed.changes:tell(nil, kind, why)
      loop.wait(futures.new(), loop.deadline(PAUSE))
    end
  end
end

-- Runs the feed; an answer of an unexpected kind raises and ends it.
local function run(feed)
  local fine, why = pcall(try_again, feed)
  if fine then return feed:close("closed", "nobody watched") end
  feed:close("protocol", errors.shown(why))
end

--- Begins to follow a scope of the registry etcd.
function M.new(etcd, scope)
  local feed = setmetatable({
    etcd = etcd, scope = scope, known = {}, looked = false, stream = false,
    from = 0, term = 0, cluster = false, wanted = loop.now(), over = false,
    changes = changes.new("scope " .. scope),
  }, Feed)
  tasks.spawn(run, feed)
  return feed
end

-- ---- Watching --------------------------------------------------------------

local function answer(feed, filter)
  local names = filter.from and feed.changes:since(filter.from)
  local told = {}
  for i, name in ipairs(names or {}) do
    told[i] = { name = name, entry = feed.known[name] }
  end
  if names then
    return { revision = feed.changes:revision(), changes = told }
  end
  for _, entry in pairs(feed.known) do told[#told + 1] = entry end
  return { revision = feed.changes:revision(),
           entries = entries.select(told, filter) }
end
jit.off(answer)

--- Answers a watch (Registry:watch).
function Feed:watch(filter)
  local names = filter.from and self.changes:since(filter.from)
  if self.looked and not (names and #names == 0) then
    return answer(self, filter)
  end
  return self.changes:next(answer, self, filter)
end

--- Ends it.
function Feed:close(kind, why)
  if self.over then return end
  self.over = true
  stop(self)
  self.changes:tell(nil, kind, why)
end

return M
