-- SPDX-License-Identifier: Apache-2.0
--- Follows a collection of a scope by a control server's events.
local clients = require "perigee.registry.http.client"
local entries = require "perigee.registry.entry"
local feeds = require "perigee.registry.feed"
local json = require "perigee.net.json"
local loop = require "perigee.runtime.loop"
local turns = require "perigee.runtime.turn"

local M = {}

local SILENCE = 45                      -- seconds; a server says more often
                                        -- that it is there
local LOOK = 2                          -- seconds between looks at watchers
local LONGEST = 32 * 2 ^ 20             -- bytes of an event's data
local MEMORY = 256 * 2 ^ 20             -- bytes that its values may take
local ID = "^[\32-\126]+$"
local FIELD = 256                       -- bytes of a line that is no data
-- An event may have any number of other fields.
local FIELDS = { event = true, id = true, data = true }

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
    turns.give()
  end
  for name in pairs(gone) do set(feed, name, nil) end
  feed.looked = true
end
jit.off(take_all)

-- Only what a server can be sent back in a header is an id.
local function is_id(text) return text and text:find(ID) and #text <= 128 end

local function take(feed, event)
  local value = event.data
  if type(value) ~= "table" then return nil, "protocol", "no JSON" end
  if event.event == "all" and type(value.entries) == "table" then
    take_all(feed, value.entries)
  elseif event.event == "change" and type(value.name) == "string" then
    set(feed, value.name,
        feed.trusted(value.entry, feed.scope, value.name))
  end
  feed.last = is_id(event.id) and event.id or feed.last
  feed.changes:tell(true)
  return true
end

-- ---- Reading ---------------------------------------------------------------

-- The next piece of a line, and is it the last one? Or nil, a kind and why. Nil
-- alone: nobody watches any more.
local function piece_of(feed)
  local silent, servers = loop.now() + SILENCE * 1e9, feed.client.servers
  while not feed:is_over() do
    local text, last, why = feed.stream:piece(servers:pace(LOOK))
    if text then
      servers:hear(feed.stream.server)
      return text, last
    end
    servers:check(feed.stream)
    if last ~= "timeout" or loop.now() >= silent then
      return nil, last or "peer_lost", why or "the server has ended"
    end
  end
end

-- The beginning of a line, which is enough to know the field, and is that all?
local function beginning_of(feed)
  local text, last, why = piece_of(feed)
  while text and not last and #text <= FIELD do
    local more
    more, last, why = piece_of(feed)
    text = more and text .. more
  end
  if not text then return nil, last, why end
  return text, last
end

-- Decodes data from its first piece on, whose end may be `last`.
local function data_of(feed, text, last)
  local decoder, why = json.new(LONGEST, MEMORY), nil
  while text do
    local fine, kind, wrong = decoder:feed(text)
    if not fine then return nil, kind, wrong end
    if last then return decoder:value() end
    text, last, why = piece_of(feed)
  end
  return nil, last, why
end

-- Reads a line of an event, whose end is a line without a field: is this it? Or
-- nil, a kind and why.
local function read_line(feed, event)
  local text, last, why = beginning_of(feed)
  if not text then return nil, last, why end
  local field, value = text:match "^(%a+): ?(.*)$"
  if field == "data" then
    value, last, why = data_of(feed, value, last)
    if value == nil then return nil, last, why end
  elseif not last then
    return nil, "protocol", "a line of what it tells is too long"
  end
  if FIELDS[field] then event[field] = value end
  return text == "" or text == "\r"
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
    local ended, kind, why = read_line(feed, event)
    if ended == nil then return kind, why end
    if ended then
      local fine = true
      if event.data then fine, kind, why = take(feed, event) end
      if not fine then return kind, why end
      event = {}
      is_heard(feed)
    end
  end
end

function Feed:read()
  local stream, kind, why, refused = self.client:events(self.path, self.last)
  if refused then self.last = nil end
  if not stream then return kind, why end
  self.stream = stream
  kind, why = read_events(self)
  self:stop()
  return kind, why
end

function Feed:stop()
  if self.stream then self.client:close(self.stream) end
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
