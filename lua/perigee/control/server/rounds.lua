-- SPDX-License-Identifier: Apache-2.0
--- The rounds of a server whose store others write to as well (server/shared).
-- A round reads from the store, handles its requests, writes, and answers. That
-- takes time, in which requests queue for the next round, and questions about
-- the server itself are answered.
--
--   a round                               its requests are
--   could not read, or the store is away  refused: 503
--   found another's write                 handled again, by what there is now
--   has a write that the store refuses    handled again one by one; that write
--                                         is refused
--   has written                           answered
local about = require "perigee.control.server.about"
local log = require "perigee.log"
local problem = require "perigee.control.server.problem"
local routes = require "perigee.control.server.routes"
local tasks = require "perigee.task"
local wants = require "perigee.control.server.wants"
local watch = require "perigee.control.server.watch"

local M = {}

local MOST = 64                         -- requests of a round
local ATTEMPTS = 50                     -- of a round that others disturb
local LOOK = 1                          -- seconds between looks at the store

-- Failures that are the store's, of no request.
local AWAY = { peer_lost = true, not_found = true, timeout = true,
               closed = true }

-- ---- Is the store there? ---------------------------------------------------

-- A store that is full may answer all but a write.
local function failed(server, kind, why)
  if server.complaint ~= why then log.write("error", why) end
  server.complaint, server.failed, server.kind = why, why, kind
  server.away = kind ~= "no_memory"
end

-- The store has answered; also that it has written, and renewed not alone.
local function fine(server, has_written)
  if not server.away and not has_written then return end
  if server.complaint then log.write("info", "the store answers again") end
  server.complaint, server.failed, server.away = false, false, false
end

-- Reads the tokens. Watchers may lose their streams by them.
local function learn(server)
  local known, kind, why = server.storage:fetch()
  if not server.web then return nil, "closed", "the server has ended" end
  if not known then
    failed(server, kind, why)
    return nil, kind, why
  end
  fine(server)
  server.tokens:refresh()
  if server.checked ~= server.tokens.version then
    server.checked = server.tokens.version
    watch.check(server.state, server.tokens)
    server.web:wake()
  end
  return true
end

-- ---- Handling --------------------------------------------------------------

local STATUS = { no_memory = 507, name_taken = 409 }

local function refuse(call, status, kind, why)
  call.status, call.body, call.headers = problem(status, kind, why)
  call.stream = false
end

local function reset(list)
  for _, call in ipairs(list) do call.status, call.stream = false, false end
end

-- True; false if another was quicker; or nil, a kind and why.
local function attempt(server, list)
  local wanted = {}
  for _, call in ipairs(list) do
    for _, each in ipairs(wants.of(call)) do wanted[#wanted + 1] = each end
  end
  local known, kind, why = server.state:begin(wanted)
  if not server.web then return nil, "closed", "the server has ended" end
  if not known then return nil, kind, why end
  for _, call in ipairs(list) do routes.run(server, call) end
  local writes = server.state:has_written()
  local done, failure, reason = server.state:commit()
  if done then fine(server, writes) end
  return done, failure, reason
end

-- As attempt(), but not at once false.
local function persist(server, list)
  for _ = 1, ATTEMPTS do
    local done, kind, why = attempt(server, list)
    if done ~= false then return done, kind, why end
    reset(list)
  end
  return false, "no_memory", "others write the same all the time"
end

local function handle(server, list)
  if not list[1] then return end
  local done, kind, why = persist(server, list)
  if done or not server.web then return end
  if done == nil and kind ~= "name_taken" then failed(server, kind, why) end
  if AWAY[kind] or #list == 1 then
    local status = done == nil and STATUS[kind] or 503
    for _, call in ipairs(list) do refuse(call, status, kind, why) end
    return
  end
  reset(list)
  for _, call in ipairs(list) do handle(server, { call }) end
end

-- ---- Rounds ----------------------------------------------------------------

-- The calls of requests; nil: the store does not tell the tokens. One that is
-- new may have been made just now.
local function admitted(server, requests)
  if not server.storage:written() and not learn(server) then return nil end
  local calls, unknown = {}, false
  for i, request in ipairs(requests) do
    calls[i] = routes.admitted(server, request)
    unknown = unknown or calls[i].status == 401
  end
  if not unknown then return calls end
  if not learn(server) then return nil end
  for i, call in ipairs(calls) do
    if call.status == 401 then
      calls[i] = routes.admitted(server, call.request)
    end
  end
  return calls
end

local function pending(calls)
  local list = {}
  for _, call in ipairs(calls) do
    if not call.status then list[#list + 1] = call end
  end
  return list
end

-- What is answered where not even the tokens are known.
local function refused(server, requests)
  local calls = {}
  for i, request in ipairs(requests) do
    calls[i] = { request = request }
    refuse(calls[i], 503, "peer_lost", server.failed or "the server has ended")
  end
  return calls
end

local function round(server, requests)
  local calls = admitted(server, requests)
  if calls then handle(server, pending(calls)) end
  calls = calls or refused(server, requests)
  if not server.web then return end
  for _, call in ipairs(calls) do routes.send(call) end
  server.web:wake()
end

local function next_of(server)
  local requests, left = {}, {}
  for i, request in ipairs(server.queue) do
    local list = i <= MOST and requests or left
    list[#list + 1] = request
  end
  server.queue = left
  return requests
end

local function run(server)
  while server.web and server.queue[1] do
    local requests = next_of(server)
    local good, why = xpcall(round, debug.traceback, server, requests)
    if not good then
      log.write("error", "a round failed: " .. tostring(why))
      for _, request in ipairs(server.web and requests or {}) do
        if request.raw then request:answer(routes.failure()) end
      end
    end
  end
  server.running = false
end

--- Takes requests that have come.
function M.take(server, requests)
  for _, request in ipairs(requests) do
    if about.paths[request.target:match "^[^?]*"] then
      routes.send(routes.handle(server, request))
    else
      server.queue[#server.queue + 1] = request
    end
  end
  if server.running or not server.queue[1] then return end
  server.running = true
  tasks.spawn(run, server)
end

-- ---- Time ------------------------------------------------------------------

--- To be called some times in a second: looks at the store, ends streams whose
-- time is over, and sends a comment to watchers now and then, unless they would
-- think that they know all.
function M.pass(server, now)
  watch.pass(server.state)
  if now >= server.due then
    server.due = now + LOOK * 1e9
    if not server.looking or server.looking.ended then
      server.looking = tasks.spawn(learn, server)
    end
  end
  if now >= server.beat then
    server.beat = now + server.heartbeat * 1e9
    if not server.away then watch.beat(server.state) end
  end
end

return M
