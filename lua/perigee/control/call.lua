-- SPDX-License-Identifier: Apache-2.0
--- A request as its handler sees it: { request, scope, kind (what of the
-- scope), name, role, token (its hash, or false), query, state, method }.
-- Handlers return a status, a body and headers; here are the checks that they
-- share. Each returns what was asked for; or nil, and that answer.
local check = require "perigee.runtime.check"
local json = require "perigee.net.json"
local percent = require "perigee.runtime.percent"
local problem = require "perigee.control.problem"

local M = {}

local LIMIT, MOST = 100, 1000           -- of a page
local DIGITS = 32                       -- of a number, in characters
local SHORTEST, LONGEST = 0.1, 86400    -- seconds of a lease

-- ---- Targets ---------------------------------------------------------------

-- What requests are read with, on the way of each, are plain searches: LuaJIT
-- compiles these, and no patterns, and no function that has a closure in it.
local function decoded(text)
  if text:find("+", 1, true) then text = text:gsub("+", " ") end
  return percent.decode(text)
end

--- The value of a path's segment.
function M.segment(text) return percent.decode(text) end

local UNRESERVED = "^[" .. percent.UNRESERVED .. "]$"

local function unreserved(each)
  local char = percent.decode(each)
  return char:find(UNRESERVED) and char or each
end

--- A path in which nothing is encoded that need not be.
function M.path(text)
  if not text:find("%", 1, true) then return text end
  return (text:gsub("%%%x%x", unreserved))
end

-- Adds the parameters of a query from a place on; false if one is there twice.
-- equals: a place before which no "=" is left. It is handed on, so that many
-- parameters without one do not each search the whole rest. This is no loop, as
-- most queries have one parameter (runtime/loop tells why).
local function add_parameters(query, text, at, equals)
  if equals < at then equals = text:find("=", at, true) or #text + 1 end
  local last = (text:find("&", at, true) or #text + 1) - 1
  local over = equals <= last and equals or last + 1
  if over > at then                     -- else it has no name
    local name = decoded(text:sub(at, over - 1))
    if query[name] then return false end
    query[name] = decoded(text:sub(over + 1, last))
  end
  if last == #text then return true end
  return add_parameters(query, text, last + 2, equals)
end

--- The parameters of a query, by name; or nil and an answer.
function M.query(text)
  local query = {}
  if add_parameters(query, text, 1, 0) then return query end
  return nil, problem(400, "protocol", "a parameter is there twice")
end

--- Checks a name of what ("scope", "name"): true; or nil and an answer.
function M.name(value, what)
  local wanted = check.name(value)
  if not wanted then return true end
  return nil, problem(400, "protocol", ("the %s must be %s"):format(what,
                                                                   wanted))
end

--- The number that a parameter of the query is; default if it is not there.
local function number(call, name, least, most, default)
  local text = call.query[name]
  if not text then return default end
  local value = #text <= DIGITS and text:find "^%d[%d.eE+-]*$"
    and tonumber(text)
  if value and value >= least and value <= most then return value end
  return nil, problem(400, "protocol", ("%s must be a number from %.10g to "
    .. "%.10g"):format(name, least, most))
end

M.number = number

--- The limit of a page.
function M.limit(call)
  local value, status, body, headers = number(call, "limit", 1, MOST, LIMIT)
  if value and value % 1 ~= 0 then
    return nil, problem(400, "protocol", "limit must be an integer")
  end
  return value, status, body, headers
end

--- The seconds of a lease; default if none are given.
function M.ttl(call, default)
  return number(call, "ttl", SHORTEST, LONGEST, default)
end

--- The seconds of a stream; nil: it goes on.
function M.seconds(call) return number(call, "for", 0, LONGEST, nil) end

-- ---- Bodies ----------------------------------------------------------------

-- The characters beyond ASCII in UTF-8 (RFC 3629): none longer than it need be,
-- no surrogate, none beyond U+10FFFF. Readers of JSON refuse those.
local CHARACTERS = {
  "^[\194-\223][\128-\191]", "^\224[\160-\191][\128-\191]",
  "^[\225-\236\238\239][\128-\191][\128-\191]",
  "^\237[\128-\159][\128-\191]",
  "^\240[\144-\191][\128-\191][\128-\191]",
  "^[\241-\243][\128-\191][\128-\191][\128-\191]",
  "^\244[\128-\143][\128-\191][\128-\191]",
}

-- The last byte of the character at a place; nil if it is none.
local function last_of(text, at)
  for _, pattern in ipairs(CHARACTERS) do
    local _, last = text:find(pattern, at)
    if last then return last end
  end
end

local function is_utf8(text)
  local at = text:find "[\128-\255]"
  while at do
    local last = last_of(text, at)
    if not last then return false end
    at = text:find("[\128-\255]", last + 1)
  end
  return true
end

local function is_json(call)
  local kind = call.request:header "Content-Type"
  return not kind or kind:lower():match "^%s*application/[%w.+-]*json%f[^%w]"
    ~= nil
end

local function is_coded(call)
  local coding = call.request:header "Content-Encoding"
  return coding ~= nil and coding:lower() ~= "identity"
end

--- The body, as it came.
function M.bytes(call)
  local request = call.request
  if request.excess == 2 then
    return nil, problem(503, "no_memory", "as many long bodies are being read "
      .. "as this server takes", nil, { "Retry-After", "1" })
  elseif request.excess then
    return nil, problem(413, "too_large", "the body is larger than this server "
      .. "takes")
  elseif is_coded(call) then
    return nil, problem(415, "protocol", "the body must be plain")
  end
  return request.body
end

--- The object that the body is, as a table.
function M.object(call)
  local text, status, body, headers = M.bytes(call)
  if not text then return nil, status, body, headers end
  if not is_json(call) then
    return nil, problem(415, "protocol", "the body must be JSON, and plain")
  end
  local value = is_utf8(text) and text:find "^%s*{" and json.decode(text)
  if type(value) == "table" then return value end
  return nil, problem(400, "protocol", "the body must be an object in JSON")
end

-- Returns how exactly a range of media types names one (0: not at all), and
-- whether it wants that one. A range without a quality has quality 1.
local function named(range, kind)
  local type = range:match "^%s*([^;%s]*)"
  local exactly = type == kind and 3
    or type == kind:match "^[^/]+/" .. "*" and 2 or type == "*/*" and 1 or 0
  return exactly, (tonumber(range:match ";%s*q=([%d.]+)" or 1) or 0) > 0
end

--- Does the client take what is of this media type?
function M.takes(call, kind)
  local text = call.request:header "Accept"
  if not text or text == "" then return true end
  local most, wanted = 0, false
  for range in text:lower():gmatch "[^,]+" do
    local exactly, wants = named(range, kind)
    if exactly > most then most, wanted = exactly, wants end
  end
  return wanted
end

--- Can a table that was JSON be an object? An empty list can.
function M.is_object(value)
  local key = next(value)
  return key == nil or type(key) == "string"
end

--- JSON of a table; nil if there is none, as of numbers beyond all bounds.
function M.encode(value) return json.encode(value) end

-- ---- Preconditions ---------------------------------------------------------

--- The entity tag of a revision.
function M.etag(revision) return ('"%s"'):format(revision) end

local ANY = "^%s*%*%s*$"

-- A weak tag is compared with a strong one only if `weak` (RFC 9110, 8.8.3).
local function lists(text, tag, weak)
  if text:find(ANY) then return tag ~= nil end
  for mark, each in text:gmatch '(W?/?)("[^"]*")' do
    if each == tag and (weak or mark == "") then return true end
  end
  return false
end

--- Do the request's preconditions allow to write over record (nil: nothing is
-- there)? Returns "matched" if it names record's tag, true if it does not (as
-- `If-Match: *`, of whoever has read nothing); or nil and an answer.
function M.allowed(call, record)
  local tag = record and M.etag(record.revision)
  local same, other = call.request:header "If-Match",
                      call.request:header "If-None-Match"
  if same and not lists(same, tag) or other and lists(other, tag, true) then
    return nil, problem(412, "name_taken", record
      and "it is another one meanwhile" or "there is nothing of that name",
      nil, tag and { "ETag", tag })
  end
  return same and not same:find(ANY) and "matched" or true
end

--- Has the client what has this tag already?
function M.is_known(call, tag)
  local known = call.request:header "If-None-Match"
  return known ~= nil and lists(known, tag, true)
end

return M
