-- SPDX-License-Identifier: Apache-2.0
--- The control server: names, entities and topologies over HTTP. It runs in one
-- task, in rounds. A round handles all requests that have come, keeps what they
-- wrote by one commit, and only then answers them and tells watchers. So what
-- was answered is durable, and many writers share a commit.
--
-- If a commit fails, memory is as it was before the round: its writers get an
-- error, and its readers are answered anew.
--
-- That is so for a server with a file of its own. Servers that share a store
-- have rounds in a task besides (server/rounds), as these take time.
local files = require "perigee.control.server.file"
local errors = require "perigee.errors"
local log = require "perigee.log"
local loop = require "perigee.loop"
local problem = require "perigee.control.server.problem"
local rounds = require "perigee.control.server.rounds"
local routes = require "perigee.control.server.routes"
local shared = require "perigee.control.server.shared"
local signals = require "perigee.signal"
local states = require "perigee.control.server.state"
local storages = require "perigee.control.server.storages"
local tasks = require "perigee.task"
local tokens = require "perigee.control.server.tokens"
local vaults = require "perigee.control.server.vault"
local watch = require "perigee.control.server.watch"
local web = require "perigee.control.web"

local M = {}

-- After a round of several writers, the next one waits for more of them for
-- this share of the time that a commit took: those that were just answered come
-- again at once, and would otherwise have every other commit to themselves.
local GATHER = 1 / 8
local TICK = 250                        -- milliseconds between looks at leases

--- The limits of a server without options.
M.LIMITS = { connections = 4096, per_host = 0, head = 4096, body = 65536,
             patience = 30, queued = 4 * 2 ^ 20, backlog = 64 * 2 ^ 20,
             rate = 0, heartbeat = 15 }

local Server = {}
Server.__index = Server

-- ---- Rounds ----------------------------------------------------------------

local function unkept(server, kind, why)
  server.failed = "the last write was not kept: " .. why
  log.write("error", "what was written was not kept: " .. why)
  local status = kind == "no_memory" and 507 or 503
  return function(call)
    call.status, call.body, call.headers = problem(status, kind, why)
    call.stream = false
  end
end

-- Marks the call if it wrote.
local function handled(server, request)
  local before = server.state.revision
  local call = routes.handle(server, request)
  call.wrote = server.state.revision ~= before
  return call
end

local function handle_all(server, requests)
  local list = {}
  for i, request in ipairs(requests) do list[i] = handled(server, request) end
  return list
end

-- After a commit that failed: writers are told so, the others are asked anew.
-- One that would write now is refused as well, and has written nothing.
local function handle_anew(server, list, kind, why)
  local refuse = unkept(server, kind, why)
  for i, call in ipairs(list) do
    if not call.wrote then
      list[i] = handled(server, call.request)
      if list[i].wrote then server.state:discard() end
    end
    if list[i].wrote then refuse(list[i]) end
  end
end

local function revisions(state)
  local from = {}
  for _, each in ipairs(state.undo) do
    from[each[1]] = from[each[1]] or each[1].changes:revision()
  end
  return from
end

-- Keeps what was written. The collections that changed, with their revisions
-- before; or nil, a kind and why.
local function commit(server)
  local from, began = revisions(server.state), loop.now()
  server.writes = #server.state.undo
  local list, kind, why = server.state:commit()
  server.cost = loop.now() - began
  if not list then return nil, kind, why end
  server.failed = false
  return list, from
end

local function tell(server, list, from)
  for _, collection in ipairs(list) do
    watch.told(server.state, collection, from[collection])
  end
end

local function round(server, requests)
  local calls = handle_all(server, requests)
  local changed, from, why
  if server.state:is_dirty() then
    changed, from, why = commit(server)
    if not changed then handle_anew(server, calls, from, why) end
  end
  for _, call in ipairs(calls) do routes.send(call) end
  if changed then tell(server, changed, from) end
end

-- ---- Time ------------------------------------------------------------------

-- Reads what tokens there are, by which watchers may lose their streams.
local function refresh(server)
  local known = server.tokens
  known:refresh()
  if server.checked == known.version then return end
  server.checked = known.version
  watch.check(server.state, known)
end

local function pass(server, now)
  if now < server.due then return end
  server.due = now + TICK * 1e6
  server.state:pass()
  watch.pass(server.state)
  refresh(server)
  if server.state:is_dirty() then
    local changed, from, why = commit(server)
    if changed then tell(server, changed, from) end
    if not changed then unkept(server, from, why) end
  end
  if now >= server.beat then
    server.beat = now + server.heartbeat * 1e9
    watch.beat(server.state)
    if not server.state:is_dirty() then server.state:tidy() end
  end
end

local ALONE = { take = round, pass = pass }

-- Adds what comes within a part of the time that a commit takes.
local function gather(server, requests)
  local over = loop.now() + server.cost * GATHER
  while server.web and loop.now() < over do
    if server.web:run(requests) ~= 0 and server.web then
      server.web:wait(math.max(0, (over - loop.now()) * 1e-6))
    end
  end
end

-- Gives the loop a turn now and then, so that a stop is noticed however many
-- requests come.
local function yield(server)
  local now = loop.now()
  if now < server.turn then return end
  server.turn = now + TICK * 1e6
  loop.wait_signal(signals.new(1), 0)
end

-- Requests that have come while the server was not running come first, so that
-- a pause of the server lets nobody's lease end.
local function serve(server)
  while server.web do
    local requests = {}
    local wait = server.web:run(requests)
    if requests[1] then
      if server.how == ALONE and server.writes > 1 then
        gather(server, requests)
      end
      server.writes = 0
      if not server.web then return end
      server.how.take(server, requests)
    else
      server.how.pass(server, loop.now())
      if wait ~= 0 and server.web then
        local longest = math.max(0, (server.due - loop.now()) * 1e-6)
        server.web:wait(wait < 0 and longest or math.min(wait, longest))
      end
    end
    yield(server)
    if loop.state.stopping then return end
  end
end

local function run(server)
  local fine, why = xpcall(serve, debug.traceback, server)
  if not fine then log.write("error", "the server failed: " .. why) end
  server:close()
end

-- ---- Opening and closing ---------------------------------------------------

local function limits(options)
  local all = {}
  for name, value in pairs(M.LIMITS) do all[name] = options[name] or value end
  return all
end
jit.off(limits)

local function target(options, all)
  return { host = options.host, port = options.port,
           certificate = options.certificate, key = options.key,
           connections = all.connections, per_host = all.per_host,
           head = all.head, body = all.body, patience = all.patience,
           queued = all.queued, backlog = all.backlog }
end

local function failed(doing, kind, why)
  return nil, errors.new(kind, doing .. ": " .. why)
end

-- What a server in a store that others share has; or nil, a kind and why. The
-- store need not answer yet.
local function open_shared(options)
  local store, kind, why = storages.shared(options.store)
  if not store then return nil, kind, why end
  return { storage = vaults.new(store), state = shared.new(store),
           how = rounds, queue = {}, running = false, looking = false,
           away = true, failed = "the store has not answered yet",
           kind = "peer_lost", complaint = false }
end

-- What a server has whose file no other has; or nil, a kind and why.
local function open_alone(options)
  local storage, kind, why = files.open(options.store)
  if not storage then return nil, kind, why end
  local fine, state
  fine, kind, why = storage:own()
  if fine then state, kind, why = states.open(storage) end
  if state then
    return { storage = storage, state = state, how = ALONE, failed = false,
             writes = 0, cost = 0 }
  end
  storage:close()
  return nil, kind, why
end

-- Makes a server of what it has. Or nil, and an error.
local function complete(server, options, all)
  local known = tokens.new(server.storage, { wanted = options.wanted,
                                             rate = all.rate })
  if not known then
    return failed("opening the store", "unsupported",
                  "its tokens cannot be read")
  end
  local listening, err = web.open(target(options, all))
  if not listening then return nil, err end
  server.web, server.port, server.tokens = listening, listening.port, known
  server.due, server.turn, server.checked = 0, 0, known.version
  server.heartbeat = all.heartbeat
  server.beat = loop.now() + all.heartbeat * 1e9
  return setmetatable(server, Server)
end

--- Opens a server and runs it in a task. An engine must be open. options: host,
-- port, certificate, key (texts in PEM), store (of server/storages), wanted
-- (requests need a token even if there are none), and limits. Returns the
-- server, whose field `port` is the one that it got, and whose future `ended`
-- ends with it; or nil and an error.
function M.open(options)
  local open = storages.is_shared(options.store) and open_shared or open_alone
  local parts, kind, why = open(options)
  if not parts then return failed("opening the store", kind, why) end
  local server, err = complete(parts, options, limits(options))
  if not server then
    parts.storage:close()
    return nil, err
  end
  function server.state.told()
    if server.web then server.web:wake() end
  end
  server.ended = tasks.spawn(run, server)
  return server
end

--- Ends it: connections are closed. Idempotent.
function Server:close()
  if not self.web then return end
  watch.close(self.state)
  self.state:close()
  self.web:close()
  self.web = false
  self.storage:close()
end

return M
