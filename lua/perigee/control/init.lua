-- SPDX-License-Identifier: Apache-2.0
--- The control server: names, entities and topologies over HTTP. One task runs
-- it. Again and again it reads the requests that have come, lines them up
-- (control/lines), and does a part of them: by control/alone, if the server has
-- a file of its own, or by control/rounds, if others write to its store, too.
local alone = require "perigee.control.alone"
local counts = require "perigee.control.counts"
local files = require "perigee.control.file"
local errors = require "perigee.runtime.errors"
local heaps = require "perigee.control.heap"
local recorded = require "perigee.control.known"
local lines = require "perigee.control.lines"
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local metrics = require "perigee.stats.metrics"
local rounds = require "perigee.control.rounds"
local shared = require "perigee.control.shared"
local signals = require "perigee.runtime.signal"
local states = require "perigee.control.state"
local stats = require "perigee.control.stats"
local storages = require "perigee.control.storages"
local tasks = require "perigee.runtime.task"
local tokens = require "perigee.control.tokens"
local vaults = require "perigee.control.vault"
local watch = require "perigee.control.watch"
local web = require "perigee.net.web"

local M = {}

local TICK = 250e6                      -- nanoseconds between looks at leases
local BUSY = 0.5e9                      -- of work without a look at them
local LATE = 1e9                        -- the same, where more is urgent
local KEPT = 1                          -- seconds of a text of metrics
local PAUSE = 0.3                       -- milliseconds between collector steps

--- The limits of a server without options.
M.LIMITS = { connections = 4096, per_host = 0, head = 2048, body = 2 ^ 20,
             patience = 30, queued = 4 * 2 ^ 20, backlog = 64 * 2 ^ 20,
             answers = 8 * 2 ^ 20, rate = 0, heartbeat = 15 }

local Server = {}
Server.__index = Server

-- ---- Running ---------------------------------------------------------------

-- Gives the loop a turn now and then, so that a stop is noticed however many
-- requests come.
local function yield(server)
  local now = loop.now()
  if now < server.turn then return end
  server.turn = now + TICK
  loop.wait_signal(signals.new(1), 0)
end

-- Waits until something comes, or a look at leases is due.
local function rest(server, wait)
  local longest = math.max(0, (server.due - loop.now()) * 1e-6)
  if heaps.collect(server.heap, server.state.gone) then
    longest = math.min(longest, PAUSE)
  end
  if server.page then longest = math.min(longest, server.page:tick()) end
  server.web:wait(wait < 0 and longest or math.min(wait, longest))
end

-- Requests that have come while the server was not running come first, so that
-- a pause of the server lets nobody's lease end. A client that asks all the
-- time keeps nobody's lease from ending, because time counts as far as the
-- server has worked.
local function look(server, began, has_worked)
  local now = loop.now()
  if has_worked then
    server.worked = server.worked + math.min(now - began, TICK)
    if server.worked < BUSY
      or server.worked < LATE and server.lines:is_urgent() then
      return false
    end
  end
  server.worked = 0
  if server.page then server.page:tick() end
  return server.how.pass(server, now, TICK)
end

local function serve(server)
  while server.web do
    local began = loop.now()
    local wait, n = server.how.take(server)
    if not server.web then return end
    local more = server.how.work(server)
    if not server.web then return end
    heaps.keep_up(server.heap)
    more = look(server, began, more or n > 0) or more
    if server.web and not more and n == 0 and wait ~= 0 then
      rest(server, wait)
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
           queued = all.queued, backlog = all.backlog, answers = all.answers,
           names = options.names }
end

local function failed(doing, kind, why)
  return nil, errors.new(kind, doing .. ": " .. why)
end

-- The fields of a server in a store that others share; or nil, a kind and why.
-- The store need not answer yet.
local function open_shared(options)
  local store, kind, why = storages.shared(options.store)
  if not store then return nil, kind, why end
  return { storage = vaults.new(store), state = shared.new(store),
           how = rounds, running = false, looking = false,
           away = true, failed = "the store has not answered yet",
           kind = "peer_lost", complaint = false }
end

-- The fields of a server with a file of its own; or nil, a kind and why.
local function open_alone(options)
  local storage, kind, why = files.open(options.store)
  if not storage then return nil, kind, why end
  local fine, state
  fine, kind, why = storage:own()
  if fine then state, kind, why = states.open(storage) end
  if state then
    return { storage = storage, state = state, how = alone, failed = false,
             writes = 0, cost = 0, ends = alone.ENDS }
  end
  storage:close()
  return nil, kind, why
end

-- What the server tells at /metrics; and on its page, where agents of this host
-- are, too.
local function metrics_of(server, has_files)
  return metrics.new {
    files = has_files, kept = KEPT,
    reported = function() return server.state.stats:list() end,
    families = function()
      return counts.families(server, server.how == alone)
    end }
end

-- Makes a server of what it has. Or nil, and an error.
local function complete(server, options, all)
  local known = tokens.new(server.storage, {
    wanted = options.wanted, own = options.own, strangers = options.strangers,
    rate = all.rate, mark = options.mark })
  if not known then
    return failed("opening the store", "unsupported",
                  "its tokens cannot be read")
  end
  local listening, err = web.open(target(options, all))
  if not listening then return nil, err end
  server.state.longest = all.body
  server.state.stats = stats.new(function(token)
    return known:has_many(token)
  end)
  server.web, server.port, server.tokens = listening, listening.port, known
  server.address, server.lines = listening:address(), lines.new()
  server.due, server.turn, server.checked = 0, 0, known.version
  server.worked, server.heap = 0, heaps.new(function()
    server.storage:trim()
    recorded.trim()
  end)
  server.counts, server.metrics = counts.new(), metrics_of(server, false)
  server.page = options.page and options.page(metrics_of(server, true)) or false
  server.heartbeat = all.heartbeat
  server.beat = loop.now() + all.heartbeat * 1e9
  return setmetatable(server, Server)
end

--- Opens a server and runs it in a task. An engine must be open. options: host,
-- port, certificate, key (texts in PEM), store (of control/storages), wanted
-- (requests need a token even if there are none), own, strangers and mark (of
-- control/tokens), names (that it goes by, as in web), and limits. Returns the
-- server, whose fields `address` and `port` are where it listens, and whose
-- future `ended` ends with it; or nil and an error.
function M.open(options)
  local open = storages.is_shared(options.store) and open_shared or open_alone
  local parts, kind, why = open(options)
  if not parts then return failed("opening the store", kind, why) end
  local server, err = complete(parts, options, limits(options))
  if not server then
    parts.state:close()
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
  if self.page then self.page:close() end
  self.state:close()
  self.web:close()
  self.web = false
  self.storage:close()
end

return M
