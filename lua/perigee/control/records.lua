-- SPDX-License-Identifier: Apache-2.0
--- Shared by agents and entities: records that are listed, read, written,
-- renewed and removed. A resource says what is its own:
--
--   kind      the collection's name
--   ttl       seconds of a lease if none are given
--   read(call, value)       checks a body: the table to keep; or nil, an answer
--   refuses(call, record, epoch)    nil if the caller may write over record, or
--                           remove it, in the life that epoch names; or an
--                           answer
--   stamp(call, value, before)      adds to a value what the server says of it,
--                           when it is written over a record, or nil
--   tell(call, record, headers)     adds to the headers of an answer to who
--                           has written or renewed a record; returns them
--   gone(call, record)      is told of a record that was removed
local calls = require "perigee.control.call"
local entries = require "perigee.registry.entry"
local problem = require "perigee.control.problem"
local states = require "perigee.control.state"

local M = {}

local JSON = "application/json"

--- A record's representation.
function M.shown(state, record)
  return ('%s,"since":%.3f}'):format(record.text,
                                     math.max(0, state:time() - record.began))
end

local function nothing(call)
  return problem(404, "not_found", ("there is no %s in scope %s"):format(
    call.name, call.scope))
end

--- The answer to who asks for a name that is not there.
M.nothing = nothing

--- The answer to who writes what a state does not keep (View:put).
function M.too_large()
  return problem(413, "too_large", "the body has more values than this server "
    .. "takes in so many bytes")
end

local function find(resource, call)
  return call.state:find(call.scope, resource.kind, call.name)
end

-- ---- Reading ---------------------------------------------------------------

local function get(resource, call)
  local record = find(resource, call)
  if not record then return nothing(call) end
  local tag = calls.etag(record.revision)
  if calls.is_known(call, tag) then return 304, "", { "ETag", tag } end
  return 200, M.shown(call.state, record),
         { "Content-Type", JSON, "ETag", tag }
end

--- Bytes and records of a page. It ends after so many, or so many that were
-- looked at, so that a list of any length takes no more than a moment.
M.PAGE, M.LOOKED = 262144, 4000

--- Calls f(record) for the listed records (State:listed) that match a call's
-- query, in the order of their names. It stops when f returns false, or when
-- there were enough. Returns the name after which it goes on; nil if there are
-- no more.
function M.each(call, collection, f)
  local query, names = call.query, collection.names
  local filter = { kind = query.kind, prefix = query.prefix,
                   service = query.service }
  local from, cut = query.prefix or "", collection.cut
  if query.after and query.after >= from then from = query.after .. "\0" end
  local first = states.place_of(names, from)
  for i = first, #names do
    local name = names[i]
    local record = collection.records[name]
    if #from > 0 and query.prefix
      and name:sub(1, #query.prefix) ~= query.prefix then
      return nil
    end
    if i - first == M.LOOKED
      or entries.matches(record, filter) and not f(record) then
      return i > first and names[i - 1] or cut
    end
  end
  return cut
end

-- The tag of all pages of a collection, at one revision of it.
local function tag_of(collection)
  return ('"%s"'):format(collection.changes and collection.changes:revision()
                         or "0")
end

--- The answer to who has the pages of this collection already; or nil.
function M.unchanged(call, collection)
  local tag = tag_of(collection)
  if calls.is_known(call, tag) then return 304, "", { "ETag", tag } end
end

--- The answer that is a page of texts. more: the name after which it goes on.
function M.page(collection, texts, more)
  local parts = { '{"items":[', table.concat(texts, ","), "]" }
  if more then parts[#parts + 1] = (',"next":"%s"'):format(more) end
  parts[#parts + 1] = "}"
  return 200, table.concat(parts),
         { "Content-Type", JSON, "ETag", tag_of(collection) }
end

local function list(resource, call)
  local limit, status, body, headers = calls.limit(call)
  if not limit then return status, body, headers end
  local collection = call.state:listed(call, resource.kind)
  status, body, headers = M.unchanged(call, collection)
  if status then return status, body, headers end
  local texts, size = {}, 0
  local more = M.each(call, collection, function(record)
    if #texts == limit or size >= M.PAGE then return false end
    local text = M.shown(call.state, record)
    texts[#texts + 1], size = text, size + #text
    return true
  end)
  return M.page(collection, texts, more)
end

-- ---- Writing ---------------------------------------------------------------

local function written(call, kind, before, text, ttl, value, since)
  local state = call.state
  if before and before.text == text and before.ttl == ttl then
    state:renew(before, since)
    return before
  end
  return state:put(call.scope, kind, call.name, text, ttl, value, since)
end

-- It finds first: a handler that has to wait for a store is run again from its
-- beginning (control/view), and should not read its body twice.
local function put(resource, call)
  local before = find(resource, call)
  local value, status, body, headers = calls.object(call)
  if value then value, status, body, headers = resource.read(call, value) end
  local ttl = nil
  if value then ttl, status, body, headers = calls.ttl(call, resource.ttl) end
  if not ttl then return status, body, headers end
  local allowed
  allowed, status, body, headers = calls.allowed(call, before)
  if not allowed then return status, body, headers end
  if before and allowed ~= "matched" then
    status, body, headers = resource.refuses(call, before, value.epoch,
                                             call.query.over)
    if status then return status, body, headers end
  end
  local since = value.since
  value.since = nil
  resource.stamp(call, value, before)
  local text = calls.encode(value)
  if not text then
    return problem(400, "protocol", "the body has a number that is too large")
  end
  local record = written(call, resource.kind, before, text:sub(1, -2), ttl,
                         value, since)
  if not record then return M.too_large() end
  return before and 200 or 201, M.shown(call.state, record),
         resource.tell(call, record, { "Content-Type", JSON, "ETag",
                                       calls.etag(record.revision) })
end

local function delete(resource, call)
  local record = find(resource, call)
  if not record then return nothing(call) end
  local allowed, status, body, headers = calls.allowed(call, record)
  if not allowed then return status, body, headers end
  if allowed ~= "matched" then
    status, body, headers = resource.refuses(call, record, call.query.epoch)
    if status then return status, body, headers end
  end
  call.state:remove(record)
  resource.gone(call, record)
  return 204, ""
end

local function renew(resource, call)
  local record = find(resource, call)
  if not record then return nothing(call) end
  local status, body, headers = resource.refuses(call, record,
                                                 call.query.epoch)
  if status then return status, body, headers end
  call.state:renew(record)
  return 204, "", resource.tell(call, record)
end

--- The routes of a resource.
function M.routes(resource)
  local function bound(role, f)
    return { role = role, run = function(call) return f(resource, call) end }
  end
  return {
    all = { GET = bound("read", list) },
    one = { GET = bound("read", get), PUT = bound("register", put),
            DELETE = bound("register", delete) },
    renew = { POST = bound("register", renew) },
  }
end

return M
