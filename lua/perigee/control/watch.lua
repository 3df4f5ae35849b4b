-- SPDX-License-Identifier: Apache-2.0
--- Watching a collection by server-sent events. An event's id is the
-- collection's revision, and its data is JSON:
--
--   event: all       {"entries":[...]}          all that there is now
--   event: change    {"name":...,"entry":...}   one; without entry it is gone
--
-- A client that comes back with Last-Event-ID gets the changes since then, or
-- all entries if there are too many changes. A silent stream gets a comment
-- every few seconds. A client that is too far behind loses its stream, and may
-- come back. With ?for=SECONDS the stream ends by itself, for clients that read
-- to the end.
--
-- The first list may be long. A watcher is told it in portions, between the
-- rounds of others, each when the client has taken the portion before. Then the
-- watcher is told what has changed meanwhile, and so on until it knows all that
-- there is. From then on it is told the writes of each round together with all
-- others. Only the last of several changes that are told together has an id: a
-- client that has seen the id has seen all of them.
local calls = require "perigee.control.call"
local loop = require "perigee.runtime.loop"
local problem = require "perigee.control.problem"
local records = require "perigee.control.records"
local states = require "perigee.control.state"

local M = {}

local OPEN = { "Content-Type", "text/event-stream", "Cache-Control",
               "no-store" }
local COMMENT = ":\n\n"
local PORTION = 65536                   -- bytes that are told at a time
local LOOKED = 2000                     -- records that are looked at for them
--- The collections that may be watched.
M.KINDS = { agents = true, entities = true, topology = true }

-- ---- What is told ----------------------------------------------------------

local function wants(watcher, name)
  local prefix = watcher.prefix
  return not prefix or name:sub(1, #prefix) == prefix
end

-- The record, or nil as if it were gone, if the watcher wants another kind.
local function seen(watcher, record)
  if record and watcher.kind and record.kind ~= watcher.kind then return nil end
  return record
end

local function change(state, watcher, name)
  local record = seen(watcher, watcher.collection.records[name])
  local entry = record
    and (',"entry":%s'):format(records.shown(state, record)) or ""
  return ('event: change\ndata: {"name":"%s"%s}\n'):format(name, entry)
end

-- The changes of names, of which the last one has this id.
local function since(state, watcher, names, id)
  local parts = {}
  for _, name in ipairs(names) do
    if wants(watcher, name) then
      parts[#parts + 1] = change(state, watcher, name)
    end
  end
  if not parts[1] then return "" end
  return ("%sid: %s\n\n"):format(table.concat(parts, "\n"), id)
end

-- ---- Portions --------------------------------------------------------------
--
-- `rest` of a watcher returns its next portion, or nil when there is none.

-- A portion of the names from `at` on; where it ends; and is it the last one?
local function entries_from(state, watcher, at)
  local collection, texts, size = watcher.collection, {}, 0
  local names = collection.names
  local first = states.place_of(names, at)
  for i = first, #names do
    if size >= PORTION or i - first >= LOOKED then
      return texts, names[i], false
    end
    local record = seen(watcher, collection.records[names[i]])
    if record and wants(watcher, names[i]) then
      local text = records.shown(state, record)
      texts[#texts + 1], size = text, size + #text
    end
  end
  return texts, nil, true
end

-- All that there is. Names that come or go meanwhile are told afterwards.
local function all(state, watcher, id)
  local head, comma = ('event: all\nid: %s\ndata: {"entries":['):format(id), ""
  local at = ""
  return function()
    if not at then return nil end
    local texts, last
    texts, at, last = entries_from(state, watcher, at)
    local text = head .. (texts[1] and comma or "") .. table.concat(texts, ",")
    head, comma = "", texts[1] and "," or comma
    return last and text .. "]}\n\n" or text
  end
end

-- Tells a watcher what has become of names, in portions.
local function changed(state, watcher, names, id)
  local at = 1
  return function()
    local parts, size = {}, 0
    while names[at] and size < PORTION do
      if wants(watcher, names[at]) then
        local text = change(state, watcher, names[at])
        parts[#parts + 1], size = text, size + #text
      end
      at = at + 1
    end
    if not parts[1] then return nil end
    return table.concat(parts, "\n")
      .. (names[at] and "\n" or ("id: %s\n\n"):format(id))
  end
end

-- The rest of what a watcher does not know; nil: it knows all.
local function rest_of(state, watcher)
  local changes = watcher.collection.changes
  local names, id = watcher.at and changes:since(watcher.at), changes:revision()
  if names and not names[1] then return nil end
  watcher.at = id
  return names and changed(state, watcher, names, id) or all(state, watcher, id)
end

-- ---- Watchers --------------------------------------------------------------

local function begin(watcher, state, request, trusted)
  local stream = request:stream(200, OPEN, trusted)
  if not stream then return end
  watcher.stream, watcher.rest = stream, rest_of(state, watcher)
  local watchers = watcher.collection.watchers
  watchers[#watchers + 1] = watcher
  state.feeding[#state.feeding + 1] = watcher
  if watcher.over then state.timed[#state.timed + 1] = watcher end
  if not watcher.rest then stream:tell(COMMENT) end
end

local function watch(call)
  local kind = call.query.collection or "agents"
  if not M.KINDS[kind] then
    return problem(400, "protocol", "collection must be agents, entities or "
      .. "topology")
  end
  local seconds, status, body, headers = calls.seconds(call)
  if status then return status, body, headers end
  if call.method == "HEAD" then return 200, "", OPEN end
  if not call.request:may_stream(call.trusted) then
    return problem(503, "no_memory", "this server has as many streams as it "
      .. "takes")
  end
  local watcher = {
    over = seconds and loop.now() + seconds * 1e9,
    collection = call.state:watched(call.scope, kind), token = call.token,
    prefix = call.query.prefix, kind = call.query.kind, stream = false,
    at = call.request:header "Last-Event-ID" or call.query.from,
    rest = false }
  call.stream = function()
    begin(watcher, call.state, call.request, call.trusted)
  end
  return 200, ""
end

M.routes = { all = { GET = { role = "read", gives = OPEN[2], run = watch } } }

-- Tells the watchers of a collection, but those who are being fed, the part
-- that of(watcher) returns.
local function tell(collection, of)
  local left = {}
  for _, watcher in ipairs(collection.watchers) do
    local part = watcher.fed and of(watcher) or ""
    if part == "" or watcher.stream:tell(part) then
      left[#left + 1] = watcher
    else
      watcher.stream:close()
    end
  end
  collection.watchers = left
end

local function forget(collection, watcher)
  for i, each in ipairs(collection.watchers) do
    if each == watcher then table.remove(collection.watchers, i) break end
  end
end

--- Ends the streams whose time is over, and forgets those that have ended.
function M.pass(state)
  local left, now = {}, loop.now()
  for _, watcher in ipairs(state.timed) do
    local raw = watcher.stream.raw
    if raw and (watcher.over > now or not watcher.fed) then
      left[#left + 1] = watcher
    elseif raw then
      watcher.stream:close()
      forget(watcher.collection, watcher)
    end
  end
  state.timed = left
end

-- ---- Feeding ---------------------------------------------------------------

-- Tells a watcher a portion: true; nil if it cannot be told now; false: no
-- more, for it knows all, or has gone.
local function feed(state, watcher)
  local stream = watcher.stream
  if not stream.raw then return false end
  if stream:is_gone() then
    forget(watcher.collection, watcher)
    stream:close()
    return false
  end
  if stream:behind() >= PORTION then return nil end
  local part = watcher.rest and watcher.rest()
  -- One that cannot be told any more is found to be gone the next time.
  if part then return part == "" or stream:tell(part) or nil end
  watcher.rest = rest_of(state, watcher)
  watcher.fed = not watcher.rest
  return not watcher.fed
end

--- Tells those who have yet to be told something, each a portion in turn, until
-- a time. Is there more that can be told at once?
function M.feed(state, over)
  local queue, progress = state.feeding, false
  for _ = 1, #queue do
    local watcher = table.remove(queue, 1)
    local told = feed(state, watcher)
    progress = progress or told == true
    if told ~= false then queue[#queue + 1] = watcher end
    if loop.now() >= over then break end
  end
  return progress
end

--- Tells the watchers of a collection what has changed since a revision.
function M.told(state, collection, from)
  if not collection.watchers[1] then return end
  local names, id = collection.changes:since(from),
                    collection.changes:revision()
  if names then
    return tell(collection, function(watcher)
      return since(state, watcher, names, id)
    end)
  end
  for _, watcher in ipairs(collection.watchers) do
    if watcher.fed then
      watcher.at, watcher.fed = nil, false
      state.feeding[#state.feeding + 1] = watcher
    end
  end
end

--- Sends a comment to all watchers, which finds those that have gone; but to
-- none of a collection whose changes are not heard (control/shared).
function M.beat(state)
  for _, scope in pairs(state.scopes) do
    for _, collection in pairs(scope) do
      if not collection.deaf then
        tell(collection, function() return COMMENT end)
      end
    end
  end
end
jit.off(M.beat)

local function has_right(tokens, watcher)
  if tokens:admits_still(watcher.token) then return true end
  watcher.stream:close()
  return false
end

--- Ends streams that their clients could not open any more: the token was
-- revoked, or the client has none and now needs one.
function M.check(state, tokens)
  for _, scope in pairs(state.scopes) do
    for _, collection in pairs(scope) do
      local left = {}
      for _, watcher in ipairs(collection.watchers) do
        if has_right(tokens, watcher) then left[#left + 1] = watcher end
      end
      collection.watchers = left
    end
  end
end
jit.off(M.check)

--- Ends all streams.
function M.close(state)
  for _, scope in pairs(state.scopes) do
    for _, collection in pairs(scope) do
      for _, each in ipairs(collection.watchers) do each.stream:close() end
      collection.watchers = {}
    end
  end
end
jit.off(M.close)

return M
