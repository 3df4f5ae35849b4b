-- SPDX-License-Identifier: Apache-2.0
--- The rounds of a server that has a file of its own. A round handles requests,
-- keeps what they wrote by one commit, and only then answers them and tells
-- watchers. So what was answered is durable, and many writers share a commit.
--
-- A round takes as long as a commit does, and a millisecond at least. Lists,
-- and the first words of watches, come between rounds, a millisecond of them
-- (control/lines). So nobody waits for what another asks for, however much that
-- is and however many they are.
--
-- A commit that fails leaves memory as it was before the round. The writers of
-- the round get an error, and its readers are answered anew.
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local problem = require "perigee.control.problem"
local routes = require "perigee.control.routes"
local watch = require "perigee.control.watch"

local M = {}

-- The share of a commit's time for which a round waits for more writers, if the
-- round before had several. Writers that were just answered come again at once.
-- Without the wait, they would have every other commit to themselves.
local GATHER = 1 / 8
local TURN = 1e6                        -- nanoseconds

-- The bounds of the number of leases that end in one portion. The number is
-- chosen so that a portion and its commit take no longer than LONG, if they
-- can.
local LEAST, MOST = 25, 250
local LONG, SHORT = 6e6, 3e6            -- nanoseconds

--- Those of the first portion.
M.ENDS = 100

-- ---- Handling --------------------------------------------------------------

local function unkept(server, kind, why)
  server.failed = "the last write was not kept: " .. why
  log.write("error", "what was written was not kept: " .. why)
  local status = kind == "no_memory" and 507 or 503
  return function(call)
    call.status, call.body, call.headers = problem(status, kind, why)
    call.stream = false
  end
end

-- Runs a call, and marks it if it wrote.
local function handled(server, call)
  local before = server.state.revision
  routes.run(server, call)
  call.wrote = server.state.revision ~= before
  return call
end

-- Handles calls until the round's time is over.
local function handle_some(server)
  local list, over = {}, loop.now() + math.max(TURN, server.cost)
  repeat
    local call = server.lines:next_urgent()
    if not call then break end
    list[#list + 1] = handled(server, call)
  until loop.now() >= over
  return list
end

-- Answers a round whose commit failed: writers are told so, and all others are
-- handled anew. A request that would write now is refused as well, and has
-- written nothing.
local function handle_anew(server, list, kind, why)
  local refuse = unkept(server, kind, why)
  for i, call in ipairs(list) do
    if not call.wrote then
      list[i] = handled(server, routes.admitted(server, call.request))
      if list[i].wrote then server.state:discard() end
    end
    if list[i].wrote then refuse(list[i]) end
  end
end

-- ---- Keeping ---------------------------------------------------------------

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
  server.counts:commit(list and "kept" or "failed")
  if not list then return nil, kind, why end
  server.failed = false
  return list, from
end

local function tell(server, list, from)
  for _, collection in ipairs(list) do
    watch.told(server.state, collection, from[collection])
  end
end

-- ---- Rounds ----------------------------------------------------------------

local function round(server)
  local began = loop.now()
  local calls = handle_some(server)
  local changed, from, why
  if server.state:is_dirty() then
    changed, from, why = commit(server)
    if not changed then handle_anew(server, calls, from, why) end
  else
    server.cost = 0
  end
  if calls[1] then server.counts:round(loop.now() - began) end
  for _, call in ipairs(calls) do routes.answer(server, call) end
  if changed then tell(server, changed, from) end
end

local function read_some(server)
  local over = loop.now() + TURN
  repeat
    local call = server.lines:next_long(server.web:room())
    if not call then return end
    routes.answer(server, routes.run(server, call))
  until loop.now() >= over
end

--- Reads what has come. Returns as `Web:run` does, and how many have come.
function M.take(server)
  local requests = {}
  local wait = server.web:run(requests)
  for _, request in ipairs(requests) do
    routes.line_up(server, routes.admitted(server, request))
  end
  return wait, #requests
end

-- Adds what comes within a part of the time that a commit takes.
local function gather(server)
  local over = loop.now() + server.cost * GATHER
  while server.web and loop.now() < over do
    if M.take(server) ~= 0 and server.web then
      server.web:wait(math.max(0, (over - loop.now()) * 1e-6))
    end
  end
end

--- Does a part of what there is to do. Is anything left that can be done now?
function M.work(server)
  if server.writes > 1 and server.lines:is_urgent() then gather(server) end
  server.writes = 0
  if not server.web then return false end
  round(server)
  read_some(server)
  local fed = watch.feed(server.state, loop.now() + TURN)
  return fed or server.lines:has_some(server.web:room())
end

-- ---- Time ------------------------------------------------------------------

-- Reads what tokens there are, by which watchers may lose their streams.
local function refresh(server)
  local known = server.tokens
  known:refresh()
  if server.checked == known.version then return end
  server.checked = known.version
  watch.check(server.state, known)
  if server.page then server.page:close() end   -- who may comes back
end

-- The number of leases of the next portion, by the time that the last one took.
local function portion(ends, took)
  if took > LONG then return math.max(LEAST, math.floor(ends / 2)) end
  if took < SHORT then return math.min(MOST, math.ceil(ends * 1.25)) end
  return ends
end

-- Ends leases that are over. Are there more?
local function end_some(server)
  local began = loop.now()
  local more, ended = server.state:pass(server.ends)
  if not server.state:is_dirty() then return more end
  local changed, from, why = commit(server)
  if changed then
    server.counts.ended = server.counts.ended + ended
    tell(server, changed, from)
  end
  if not changed then unkept(server, from, why) end
  server.ends = portion(server.ends, loop.now() - began)
  return more
end

--- To be called some times in a second. Returns whether more is to be done.
function M.pass(server, now, tick)
  if now < server.due then return false end
  watch.pass(server.state)
  refresh(server)
  local more = end_some(server)
  server.due = more and now or now + tick
  if now >= server.beat then
    server.beat = now + server.heartbeat * 1e9
    server.state.stats:list()           -- forgets those that are over
    watch.beat(server.state)
    if not server.state:is_dirty() then server.state:tidy() end
  end
  return more
end

return M
