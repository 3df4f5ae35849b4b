-- SPDX-License-Identifier: Apache-2.0
--- The paths of a cache by HTTP (web.lua), and their handlers, as openapi.lua
-- describes them. Handlers return a status, a body and headers.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local calls = require "perigee.control.call"
local json = require "perigee.net.json"
local openapi = require "perigee.cli.cache.openapi"
local percent = require "perigee.runtime.percent"
local printable = require "perigee.runtime.printable"
local problem = require "perigee.control.problem"

local M = {}

local JSON = { "Content-Type", "application/json" }
local BYTES = "application/octet-stream"
-- KEY: bytes of one. LONGEST: seconds that an entry lives. KEPT: buffers.
local KEY, LONGEST, KEPT = 512, 2 ^ 31, 4

-- ---- Refusals --------------------------------------------------------------

-- Statuses and sentences by the kinds of a client's errors. Others are 503: the
-- cache is ending.
local ANSWERS = {
  not_found = { 404, "the key is not there" },
  exists = { 412, "the key is there already" },
  no_memory = { 507, "the cache is full of what may not go" },
  too_large = { 413, "the value is longer than the cache takes" },
}
-- The same by codes.
local BY_CODE = {
  busy = { 409, "another writer is putting it" },
  clients = { 503, "the cache has too many clients" },
  forgets = { 503, "the cache's file has too much to forget now" },
}

local function refused(err)
  local told = err.code and BY_CODE[err.code] or ANSWERS[err.kind]
  if told then return problem(told[1], err.kind, told[2]) end
  return problem(503, err.kind, printable.utf8(tostring(err)))
end

local function too_large(server)
  return problem(413, "too_large", ("by HTTP a value has at most %.0f bytes; "
    .. "clients of the cache read and write longer ones"):format(server.body))
end

--- The answer for which there is no room now.
function M.no_room()
  return problem(503, "no_memory", "so many do not take their answers that "
    .. "there is no room for this one")
end

-- ---- Scopes ----------------------------------------------------------------

--- The scope that a call needs to be admitted to: the one that it names, or the
-- only one; "*" for all of them. Or nil, and an answer.
function M.scope(call, server)
  local scope = call.query.scope
  if scope then return scope end
  if call.route.of_all then return "*" end
  if server.only then return server.only end
  return nil, problem(400, "protocol", "there are several scopes here: say "
    .. "which one, by ?scope=")
end

local function no_scope()
  return problem(404, "not_found", "there is no such scope here")
end

-- The client of a call's scope, if its key is one; or nil, and an answer.
local function client_of(call, server)
  if server.draining then
    return nil, problem(503, "closed", "the cache is ending")
  end
  local client = server.clients[call.scope]
  if not client then return nil, no_scope() end
  if call.slashed then
    return nil, problem(404, "not_found", "a slash in a key is written %2F")
  elseif not call.key then
    return nil, problem(400, "protocol", "in a key % is followed by two "
      .. "hexadecimal digits; % itself is written %25")
  elseif #call.key < 1 or #call.key > KEY then
    return nil, problem(400, "protocol", ("a key has 1 to %d bytes"):format(
      KEY))
  end
  return client
end

-- ---- Entries ---------------------------------------------------------------

-- Memory in which a value comes.
local function buffer_of(client, server)
  local region = table.remove(client.buffers)
  if region then return region end
  return client.agent.engine:alloc(math.max(server.body, 1))
end

-- Some of it is kept for later values.
local function give_back(client, region)
  if #client.buffers < KEPT then
    client.buffers[#client.buffers + 1] = region
  else
    region:close()
  end
end

local function get(call, server)
  local client, status, body, headers = client_of(call, server)
  if not client then return status, body, headers end
  local region, err = buffer_of(client, server)
  if not region then return refused(err) end
  local part
  part, err = client.cache:get(call.key, { into = region:slice() })
  local value = part and part:string()
  give_back(client, region)
  if value then
    return 200, value, { "Content-Type", BYTES, "Cache-Control", "no-store",
                         "X-Content-Type-Options", "nosniff" }
  end
  if err.kind == "too_large" then return too_large(server) end
  return refused(err)
end

-- What a PUT asks for; or nil, and an answer.
local function asked_of(call)
  local ttl, status, body, headers = calls.number(call, "ttl", 0.001, LONGEST)
  if status then return nil, status, body, headers end
  local request = call.request
  if request:header "If-Match" then
    return nil, problem(412, "unsupported", "entries have no tags here")
  end
  local absent = request:header "If-None-Match"
  return { ttl = ttl,
           if_absent = absent ~= nil and absent:find "^%s*%*" ~= nil }
end

local function put(call, server)
  local client, status, body, headers = client_of(call, server)
  if not client then return status, body, headers end
  local options, value
  options, status, body, headers = asked_of(call)
  if not options then return status, body, headers end
  value, status, body, headers = calls.bytes(call)
  if not value then return status, body, headers end
  local fine, err = client.cache:put(call.key, value, options)
  if fine then return 204, "" end
  return refused(err)
end

local function delete(call, server)
  local client, status, body, headers = client_of(call, server)
  if not client then return status, body, headers end
  local fine, err = client.cache:delete(call.key)
  if fine then return 204, "" end
  return refused(err)
end

-- ---- How it is -------------------------------------------------------------

local function health(_, server)
  if server.draining then
    return problem(503, "closed", "the cache is ending")
  end
  return 200, '{"status":"up"}', JSON
end

local function stats(call, server)
  local scopes = {}
  for scope, client in pairs(server.clients) do
    if call.scope == "*" or call.scope == scope then
      scopes[scope] = client.store:counters()
    end
  end
  if not next(scopes) then return no_scope() end
  return 200, json.encode { name = server.name, scopes = scopes }, JSON
end

local function document(_, server)
  local documents = openapi[not server.only]
  return 200, documents[server.tokens:is_open() and "admin"], JSON
end

-- ---- Paths -----------------------------------------------------------------

local PATHS = {
  ["/healthz"] = { GET = { run = health } },
  ["/openapi.json"] = { GET = { run = document } },
  ["/stats"] = { GET = { run = stats, role = "read", of_all = true } },
}
local ENTRIES = "/v1/entries/"
local ENTRY = {
  GET = { run = get, role = "read", gives = BYTES },
  PUT = { run = put, role = "register" },
  DELETE = { run = delete, role = "register" },
}

--- The methods of a path, and the key that is in it, or false: it is none. Is
-- there a slash, too? Nothing is encoded in it that need not be.
function M.methods_at(path)
  if path:sub(1, #ENTRIES) ~= ENTRIES then return PATHS[path] end
  local key = path:sub(#ENTRIES + 1)
  key = percent.is_encoded(key) and percent.decode(key)
  return ENTRY, key, path:find("/", #ENTRIES + 1, true) ~= nil
end

return M
