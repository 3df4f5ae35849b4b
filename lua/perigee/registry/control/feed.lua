-- SPDX-License-Identifier: Apache-2.0
--- Follows the agents of a scope by a control server's events. One task reads
-- them, as long as somebody watches and for some seconds after, and keeps all
-- entries. While no server answers it keeps what it knew, and tries again.
local changes = require "perigee.registry.changes"
local clients = require "perigee.registry.control.client"
local entries = require "perigee.registry.entry"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local loop = require "perigee.loop"
local tasks = require "perigee.task"

local M = {}

local LINGER = 10                       -- seconds without a waiting future
local PAUSE = 0.1                       -- seconds between attempts
local SILENCE = 45                      -- seconds; a server says more often
                                        -- that it is there
local LOOK = 2                          -- seconds between looks at watchers
local LONGEST = 64 * 2 ^ 20             -- bytes of an event

local Feed = {}
Feed.__index = Feed

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
      and entries.trusted(each, feed.scope, name)
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
        entries.trusted(value.entry, feed.scope, value.name))
  end
  feed.last = event.id or feed.last
  feed.changes:tell(true)
  return true
end

-- ---- Reading ---------------------------------------------------------------

local function is_over(feed)
  if feed.changes:is_wanted() then feed.wanted = loop.now() end
  return feed.over or loop.now() - feed.wanted > LINGER * 1e9
end

-- The next line; or nil, a kind and why. Nil alone: nobody watches any more.
local function line_of(feed)
  local silent = loop.now() + SILENCE * 1e9
  while not is_over(feed) do
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

local function follow(feed)
  local kind, why
  feed.stream, kind, why = feed.client:events(feed.path, feed.last)
  if not feed.stream then return kind, why end
  kind, why = read_events(feed)
  feed.stream:close()
  feed.stream = false
  return kind, why
end

local function try_again(feed)
  while not is_over(feed) do
    local kind, why = follow(feed)
    feed.failed = kind ~= nil
    if kind then feed.changes:tell(nil, kind, why) end
    loop.wait(futures.new(), loop.deadline(PAUSE))
  end
end

-- An answer of an unexpected type raises, and ends it.
local function run(feed)
  local fine, why = pcall(try_again, feed)
  if fine then return feed:close("closed", "nobody watched") end
  feed:close("protocol", errors.shown(why))
end

--- Begins to follow a scope.
function M.new(client, scope)
  local feed = setmetatable({
    client = client, scope = scope, stream = false, known = {}, last = nil,
    path = ("/v1/scopes/%s/watch"):format(clients.escape(scope)),
    wanted = loop.now(), over = false, looked = false,
    failed = false,
    changes = changes.new("scope " .. scope) }, Feed)
  tasks.spawn(run, feed)
  return feed
end

--- A watch's answer: what has changed since filter.from, or all.
function M.answer(feed, filter)
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
jit.off(M.answer)

--- Ends it.
function Feed:close(kind, why)
  if self.over then return end
  self.over = true
  if self.stream then self.stream:close() end
  self.changes:tell(nil, kind, why)
end

return M
