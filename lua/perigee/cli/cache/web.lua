-- SPDX-License-Identifier: Apache-2.0
--- A cache by HTTP: entries of some size, and how it is. For each scope it is a
-- client of the cache as any other, in the cache's process: it reads by the
-- map, and what it puts is pulled. One task reads requests; each is answered in
-- a task of its own, for it may wait.
jit.off(true, true)             -- its loops over pairs(), see check.lua

local asked = require "perigee.control.asked"
local entries = require "perigee.cli.cache.entries"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local tasks = require "perigee.runtime.task"
local tokens = require "perigee.cli.server.tokens"
local webs = require "perigee.net.web"

local M = {}

local TICK = 1000                       -- milliseconds between looks at tokens
-- HEAD: bytes of a request's head at most, in which a key may have three times
-- its length. CONNECTIONS is how many requests are answered at a time, too.
local HEAD, CONNECTIONS, PATIENCE, ANSWERS = 6144, 256, 30, 2 ^ 26

local Server = {}
Server.__index = Server

-- ---- Answering -------------------------------------------------------------

local function admit(call, server)
  local route = call.route
  if not route.role then return nil end
  local scope, status, body, headers = entries.scope(call, server)
  if not scope then return status, body, headers end
  call.scope = scope
  local role
  role, status, body, headers = server.tokens:admits(call.request, scope,
    route.role, loop.now() * 1e-9)
  if not role then return status, body, headers end
end

local function run(call, server) return call.route.run(call, server) end

local function find(call, server)
  local path, query = asked.parts(call.request.target)
  local methods, key, slashed = entries.methods_at(path)
  call.key, call.slashed = key, slashed
  local status, body, headers = asked.choose(call, path, methods, query)
  if status then return status, body, headers end
  return admit(call, server)
end

local function answer(server, request)
  local call = { request = request, status = false }
  asked.step(call, find, server)
  asked.step(call, run, server)
  if not call.status then
    call.status, call.body, call.headers = asked.failure()
  end
  if not server.web then return end     -- its requests went with it
  if #call.body > server.web:room() then
    call.status, call.body, call.headers = entries.no_room()
  end
  request:answer(call.status, call.body, call.headers)
  server.web:wake()
end

-- ---- Running ---------------------------------------------------------------

local function serve(server)
  while server.web and not loop.state.stopping do
    local list = {}
    local wait = server.web:run(list)
    for _, request in ipairs(list) do tasks.spawn(answer, server, request) end
    server.tokens:refresh()
    if server.web then
      server.web:wait(wait < 0 and TICK or math.min(wait, TICK))
    end
  end
end

local function run_all(server)
  local fine, why = xpcall(serve, debug.traceback, server)
  if not fine then log.write("error", "serving HTTP failed: " .. why) end
  server:close()
end

-- ---- Opening and closing ---------------------------------------------------

-- A client in each scope.
local function connect(server, registry)
  local perigee = require "perigee"
  for _, each in ipairs(server.cache.agents) do
    local agent, err = perigee.agent { name = false, scope = each.scope,
                                       registry = registry }
    if not agent then return nil, err end
    server.clients[each.scope] = {
      agent = agent, store = server.cache.stores[each], buffers = {},
      cache = agent:cache(each.address, { reconnect = 0 }) }
  end
  local first, second = unpack(server.cache.agents)
  server.only = not second and first.scope
  return true
end

--- Serves a cache. to: `host`, `port`, `certificate`, `key`, `wanted` (as of
-- control), `names` (that it goes by), `body` (bytes of a value at most) and
-- `tokens`, the file that has them. given: `name` of the cache, and `registry`.
-- Returns the server, whose `port` is where it listens; or nil and an error.
function M.open(cache, to, given)
  local server = setmetatable({ cache = cache, name = given.name, clients = {},
                                storage = tokens.none, body = to.body,
                                web = false, draining = false }, Server)
  local fine, err = tokens.open(server, to)
  server.tokens = fine
  if fine then fine, err = connect(server, given.registry) end
  if fine then
    fine, err = webs.open { host = to.host, port = to.port, names = to.names,
      certificate = to.certificate, key = to.key, connections = CONNECTIONS,
      head = HEAD, body = to.body, patience = PATIENCE, answers = ANSWERS }
  end
  if not fine then
    server:close()
    return nil, err
  end
  server.web, server.port = fine, fine.port
  tasks.spawn(run_all, server)
  return server
end

--- Takes no entries from now on; it tells so.
function Server:drain()
  self.draining = true
  for _, each in pairs(self.clients) do each.cache:close() end
end

--- Ends it: connections are closed. Idempotent.
function Server:close()
  if self.web then self.web:close() end
  self.web = false
  for _, each in pairs(self.clients) do each.agent:close() end
  self.clients = {}
  self.storage:close()
  self.storage = tokens.none
end

return M
