-- SPDX-License-Identifier: Apache-2.0
--- Watching a collection by server-sent events. An event's id is the
-- collection's revision, and its data is JSON:
--
--   event: all       {"entries":[...]}          all that there is now
--   event: change    {"name":...,"entry":...}   one; without entry it is gone
--
-- A client that comes back with Last-Event-ID gets what has changed since, or
-- all if too much has. A silent stream gets a comment every few seconds. A
-- client that is too far behind loses its stream, and may come back. With
-- ?for=SECONDS the stream ends by itself, for clients that read to the end.
local calls = require "perigee.control.server.call"
local loop = require "perigee.loop"
local problem = require "perigee.control.server.problem"
local records = require "perigee.control.server.records"

local M = {}

local OPEN = { "Content-Type", "text/event-stream", "Cache-Control",
               "no-store" }
local COMMENT = ":\n\n"
--- The collections that may be watched.
M.KINDS = { agents = true, entities = true, topology = true }

local function event(kind, id, data)
  return ("event: %s\nid: %s\ndata: %s\n\n"):format(kind, id, data)
end

-- ---- What is told ----------------------------------------------------------

local function wants(watcher, name)
  local prefix = watcher.prefix
  return not prefix or name:sub(1, #prefix) == prefix
end

-- Of the kind that the watcher wants, or else as if it were gone.
local function seen(watcher, record)
  if record and watcher.kind and record.kind ~= watcher.kind then return nil end
  return record
end

local function change(state, name, record, id)
  local entry = record
    and (',"entry":%s'):format(records.shown(state, record)) or ""
  return event("change", id, ('{"name":"%s"%s}'):format(name, entry))
end

local function all(state, collection, watcher)
  local texts = {}
  for _, name in ipairs(collection.names) do
    local record = seen(watcher, collection.records[name])
    if record and wants(watcher, name) then
      texts[#texts + 1] = records.shown(state, record)
    end
  end
  return event("all", collection.changes:revision(),
               ('{"entries":[%s]}'):format(table.concat(texts, ",")))
end

local function since(state, collection, watcher, names)
  local id, parts = collection.changes:revision(), {}
  for _, name in ipairs(names) do
    if wants(watcher, name) then
      parts[#parts + 1] = change(state, name,
                                 seen(watcher, collection.records[name]), id)
    end
  end
  return table.concat(parts)
end

-- ---- Watchers --------------------------------------------------------------

local function begin(watcher, state, request)
  local collection = watcher.collection
  local stream = request:stream(200, OPEN)
  if not stream then return end
  watcher.stream = stream
  local names = watcher.from and collection.changes:since(watcher.from)
  local first = names and since(state, collection, watcher, names)
    or all(state, collection, watcher)
  if not stream:tell(first ~= "" and first or COMMENT) then
    return stream:close()
  end
  collection.watchers[#collection.watchers + 1] = watcher
  if not watcher.over then return end
  state.timed[#state.timed + 1] = watcher
  M.pass(state)
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
  local watcher = {
    over = seconds and loop.now() + seconds * 1e9,
    collection = call.state:watched(call.scope, kind), token = call.token,
    prefix = call.query.prefix, kind = call.query.kind, stream = false,
    from = call.request:header "Last-Event-ID" or call.query.from }
  call.stream = function() begin(watcher, call.state, call.request) end
  return 200, ""
end

M.routes = { all = { GET = { role = "read", gives = OPEN[2], run = watch } } }

-- Tells all watchers of a collection the part that of(watcher) returns.
local function tell(collection, of)
  local left = {}
  for _, watcher in ipairs(collection.watchers) do
    local part = of(watcher)
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
    if raw and watcher.over > now then
      left[#left + 1] = watcher
    elseif raw then
      watcher.stream:close()
      forget(watcher.collection, watcher)
    end
  end
  state.timed = left
end

--- Tells the watchers of a collection what has changed since a revision.
function M.told(state, collection, from)
  if not collection.watchers[1] then return end
  local names = collection.changes:since(from)
  tell(collection, function(watcher)
    if not names then return all(state, collection, watcher) end
    return since(state, collection, watcher, names)
  end)
end

--- Sends a comment to all watchers, which finds those that have gone.
function M.beat(state)
  for _, scope in pairs(state.scopes) do
    for _, collection in pairs(scope) do
      tell(collection, function() return COMMENT end)
    end
  end
end
jit.off(M.beat)

local function has_right(tokens, watcher)
  if tokens:admits_still(watcher.token) then return true end
  watcher.stream:close()
  return false
end

--- Ends the streams of those who could not open them any more, as their token
-- was revoked, or they have none and now need one.
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
