-- SPDX-License-Identifier: Apache-2.0
--- Metrics by HTTP: GET /metrics, for who has a token where some are wanted,
-- and GET /healthz, for anybody; and, if wanted, the page (page.lua). One task
-- answers all requests, one after the other; those that come while files are
-- read get the same text.
local about = require "perigee.control.about"
local asked = require "perigee.control.asked"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local problem = require "perigee.control.problem"
local tasks = require "perigee.runtime.task"
local tokens = require "perigee.cli.server.tokens"
local webs = require "perigee.net.web"

local M = {}

local TICK = 1000                       -- milliseconds between looks at tokens
local HEAD, BODY, CONNECTIONS, PATIENCE = 8192, 1024, 64, 10
-- Bytes of all answers that clients have not taken yet.
local ANSWERS = 2 ^ 28
-- Bytes that a stream's client may be behind, and all of them.
local QUEUED, BACKLOG = 2 ^ 21, 2 ^ 25

local Server = {}
Server.__index = Server

-- ---- Answering --------------------------------------------------------------

local function health()
  return 200, '{"status":"up"}', { "Content-Type", "application/json" }
end

local PATHS = {
  ["/metrics"] = about.paths["/metrics"],
  ["/healthz"] = { GET = { run = health, gives = false } },
}

local function find(call, server)
  local path, query = asked.parts(call.request.target)
  local methods = PATHS[path] or server.page and server.page.paths[path] or nil
  local status, body, headers = asked.choose(call, path, methods, query)
  if status or not call.route.role then return status, body, headers end
  local role
  role, status, body, headers = server.tokens:admits(call.request,
    server.scope, call.route.role, loop.now() * 1e-9)
  if not role then return status, body, headers end
end

local function run(call, server) return call.route.run(call, server) end

local function answer(server, request)
  local call = { request = request, status = false }
  asked.step(call, find, server)
  asked.step(call, run, server)
  if call.stream then return call.stream() end
  if not call.status then
    call.status, call.body, call.headers = asked.failure()
  end
  if #call.body > server.web:room() then
    call.status, call.body, call.headers = problem(503, "no_memory",
      "so many do not take their answers that there is no room for this one")
  end
  request:answer(call.status, call.body, call.headers)
end

-- ---- Running ----------------------------------------------------------------

local function serve(server)
  while server.web and not loop.state.stopping do
    local list = {}
    local wait = server.web:run(list)
    for _, request in ipairs(list) do answer(server, request) end
    server.tokens:refresh()
    local due = server.page and server.page:tick() or TICK
    if list[1] or due == 0 then wait = 0 end    -- the next run sends answers
    server.web:wait(wait < 0 and due or math.min(wait, due, TICK))
  end
end

local function run_all(server)
  local fine, why = xpcall(serve, debug.traceback, server)
  if not fine then log.write("error", "serving metrics failed: " .. why) end
  server:close()
end

-- ---- Opening and closing ----------------------------------------------------

--- Serves what `told` (perigee.stats.metrics) tells. An engine must be open.
-- to: `host`, `port`, `certificate`, `key`, `wanted` (as of control), `names`
-- (that it goes by), `tokens` (the file that has them), `scope`: a token is for
-- that one, or for all; `page` (perigee.cli.metrics.page), if it is served,
-- too. Returns the server: `port` is where it listens, and future `ended` ends
-- with it; or nil and an error.
function M.open(told, to)
  local server = setmetatable({ metrics = told, storage = tokens.none,
                                web = false, scope = to.scope,
                                page = to.page or false }, Server)
  local fine, err = tokens.open(server, to)
  server.tokens = fine
  if fine then
    fine, err = webs.open { host = to.host, port = to.port, names = to.names,
      certificate = to.certificate, key = to.key, connections = CONNECTIONS,
      head = HEAD, body = BODY, patience = PATIENCE,
      answers = ANSWERS, queued = QUEUED, backlog = BACKLOG }
  end
  if not fine then
    server:close()
    return nil, err
  end
  server.web, server.port = fine, fine.port
  server.ended = tasks.spawn(run_all, server)
  return server
end

--- Ends it: connections are closed. Idempotent.
function Server:close()
  if self.page then self.page:close() end
  if self.web then self.web:close() end
  self.web = false
  self.storage:close()
  self.storage = tokens.none
end

return M
