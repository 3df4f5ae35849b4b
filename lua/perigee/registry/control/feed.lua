-- SPDX-License-Identifier: Apache-2.0
--- Follows a collection of a scope by a control server's events.
local clients = require "perigee.registry.control.client"
local entries = require "perigee.registry.entry"
local feeds = require "perigee.registry.feed"
local loop = require "perigee.loop"

local M = {}

local SILENCE = 45                      -- seconds; a server says more often
                                        -- that it is there
local LOOK = 2                          -- seconds between looks at watchers
local LONGEST = 64 * 2 ^ 20             -- bytes of an event

local Feed = feeds.class()

-- ---- What is known ---------------------------------------------------------

local function set(feed, name, entry)
  if entry == nil and feed.known[name] == nil then return end
  feed.known[name] = entry
  feed.changes:note(name)
end

local function take_all(feed, list)
  local before = feed.known
  local gone = {}
  for name in pairs(before) do gone[name] = true end
  for _, each in ipairs(list) do
    local name = type(each) == "table" and each.name
    local entry = type(name) == "string"
      and feed.trusted(each, feed.scope, name)
    if entry then
      gone[name] = nil
      set(feed, name, entry)
    end
  end
  for name in pairs(gone) do set(feed, name, nil) end
  feed.looked = true
end
jit.off(take_all)

local function take(feed, event)
  local value = clients.decode(event.data or "")
  if type(value) ~= "table" then return nil, "protocol", "no JSON" end
  if event.event == "all" and type(value.entries) == "table" then
    take_all(feed, value.entries)
  elseif event.event == "change" and type(value.name) == "string" then
    set(feed, value.name,
        feed.trusted(value.entry, feed.scope, value.name))
  end
  feed.last = event.id or feed.last
  feed.changes:tell(true)
  return true
end

-- ---- Reading ---------------------------------------------------------------

-- The next line; or nil, a kind and why. Nil alone: nobody watches any more.
local function line_of(feed)
  local silent = loop.now() + SILENCE * 1e9
  while not feed:is_over() do
    local line, kind, why = feed.stream:line(LONGEST, LOOK)
    if line then return line end
    if kind ~= "timeout" or loop.now() >= silent then
      return nil, kind or "peer_lost", why or "the server has ended"
    end
  end
end

-- The server speaks: what is known is up to date, though nothing has changed.
local function is_heard(feed)
  if feed.failed and feed.looked then feed.changes:tell(true) end
  feed.failed = false
end

-- Reads events until the stream ends: a kind and why.
local function read_events(feed)
  local event = {}
  while true do
    local line, kind, why = line_of(feed)
    if not line then return kind, why end
    local field, value = line:match "^(%a+): ?(.*)$"
    if field then
      event[field] = value
    elseif line == "" then
      local fine = true
      if event.data then fine, kind, why = take(feed, event) end
      if not fine then return kind, why end
      event = {}
      is_heard(feed)
    end
  end
end

function Feed:read()
  local stream, kind, why = self.client:events(self.path, self.last)
  if not stream then return kind, why end
  self.stream = stream
  kind, why = read_events(self)
  self:stop()
  return kind, why
end

function Feed:stop()
  if self.stream then self.stream:close() end
  self.stream = false
end

--- Begins to follow a scope: its agents; or, with the query of a watch, what
-- that is for. trusted(value, scope, name) checks each value then, and returns
-- it, or nil.
function M.new(client, scope, query, trusted)
  return feeds.start(Feed, scope, {
    client = client, stream = false, last = nil,
    trusted = trusted or entries.trusted,
    path = ("/v1/scopes/%s/watch%s"):format(clients.escape(scope),
                                            query or "") })
end

return M
