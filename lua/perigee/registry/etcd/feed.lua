-- SPDX-License-Identifier: Apache-2.0
--- Follows the changes of a scope in etcd, by a watch that it streams.
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
-- The feed asks for the last revision of which there were events once more,
-- because the stream may have ended amid its events. To set an entry twice
-- changes nothing.
local entries = require "perigee.registry.entry"
local feeds = require "perigee.registry.feed"
local keys = require "perigee.registry.etcd.keys"

local M = {}

local QUIET = 2                         -- seconds of a read without an event

local Feed = feeds.class()

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
  local list, kind, why = feed.etcd:all(feed.scope, feed.decode)
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
      set(feed, name, not is_gone and feed.decode(kv, feed.scope, name)
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

function Feed:stop()
  if self.stream then self.etcd.cluster:close(self.stream) end
  self.stream = false
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
  feed:stop()
  feed.looked = false
  feeds.pause()
  return true
end

local function heard(feed, told)
  local header = type(told.header) == "table" and told.header or {}
  if told.created and not told.canceled and is_other(feed, header) then
    return look_again(feed)
  elseif told.canceled and told.compact_revision then
    feed:stop()
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
  feed:stop()
  if kind == "closed" or kind == "peer_lost" then return true end
  return nil, kind, why
end

function Feed:read()
  while not self:is_over() do
    local step = self.looked and follow or look
    local fine, kind, why = step(self)
    if not fine then
      self:stop()
      return kind, why
    end
    if self.looked then self.changes:tell(true) end
  end
end

--- Begins to follow a scope of the registry etcd. decode(found, scope, name)
-- makes what is known of a key (by default an entry).
function M.new(etcd, scope, decode)
  return feeds.start(Feed, scope, {
    etcd = etcd, stream = false, from = 0, term = 0, cluster = false,
    decode = decode or function(...) return etcd:entry(...) end })
end

return M
