-- SPDX-License-Identifier: Apache-2.0
--- The rounds of a server whose store others write to as well (control/shared).
-- A round handles its requests, reads from the store what they ask for
-- (control/view), writes, and answers. Requests that come meanwhile queue for
-- the next round. Requests that need no store are answered beside the rounds,
-- and so are watches, which wait for a feed.
--
--   a round                               its requests are
--   could not read, or the store is away  refused: 503
--   found another's write                 handled again, by what there is now
--   has a write that the store refuses    handled again one by one; that write
--                                         is refused
--   has written                           answered
local log = require "perigee.runtime.log"
local loop = require "perigee.runtime.loop"
local problem = require "perigee.control.problem"
local routes = require "perigee.control.routes"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"
local watch = require "perigee.control.watch"

local M = {}

local MOST, LISTS = 64, 4               -- requests of a round; lists of these
local TURN = 1e6                        -- nanoseconds of feeding watchers
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
    if server.page then server.page:close() end -- who may comes back
    server.web:wake()
  end
  return true
end

-- ---- Handling --------------------------------------------------------------

local STATUS = { no_memory = 507, name_taken = 409, too_large = 413 }
-- Failures that are a request's, of no store.
local ITS_OWN = { name_taken = true, too_large = true }

local function refuse(call, status, kind, why)
  call.status, call.body, call.headers = problem(status, kind, why)
  call.stream = false
end

local function reset(list)
  for _, call in ipairs(list) do call.status, call.stream = false, false end
end

-- Runs calls. Returns those of them that have to be run again.
local function run_all(server, view, list)
  local left = {}
  for _, call in ipairs(list) do
    call.state = view
    if not view:try(routes.run, server, call) then left[#left + 1] = call end
  end
  return left
end

-- True; or nil, a kind and why.
local function run_until_read(server, view, list)
  list = run_all(server, view, list)
  while list[1] do
    local known, kind, why = view:read()
    if not server.web then return nil, "closed", "the server has ended" end
    if not known then return nil, kind, why end
    list = run_all(server, view, list)
  end
  return true
end

local function note_commit(server, view, done)
  if not done then
    server.counts:commit(done == nil and "failed" or "disturbed")
  elseif view:has_written() then
    server.counts:commit "kept"
  end
end

-- True; false if another was quicker; or nil, a kind and why.
local function attempt(server, list)
  local view = server.state:view()
  local done, kind, why = run_until_read(server, view, list)
  if not done then return nil, kind, why end
  done, kind, why = view:commit()
  note_commit(server, view, done)
  if done then fine(server, view:has_written()) end
  return done, kind, why
end

-- Like attempt(), but tries again before it returns false.
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
  if done == nil and not ITS_OWN[kind] then failed(server, kind, why) end
  if AWAY[kind] or #list == 1 then
    local status = done == nil and STATUS[kind] or 503
    for _, call in ipairs(list) do refuse(call, status, kind, why) end
    return
  end
  reset(list)
  for _, call in ipairs(list) do handle(server, { call }) end
end

-- ---- Watching --------------------------------------------------------------

-- Refuses who may not watch any more, or cannot. Others wait for the feed of
-- what they watch, in a task of their own, as that may be slow.
local function begin_watch(server, call)
  local known, kind, why = nil, server.kind, server.failed
  if not server.away then
    known, kind, why = server.state:follow(call.scope, call.query.collection
                                          or "agents", call.trusted)
  end
  if not server.web then return end
  if not server.tokens:admits_still(call.token) then
    call = routes.admitted(server, call.request)
  elseif not known then
    refuse(call, 503, kind, why)
  end
  routes.send(server, routes.run(server, call))
  server.web:wake()
end

-- Does it ask for a stream that there is?
local function is_watch(call)
  return call.kind == "watch" and not call.status and call.method == "GET"
    and watch.KINDS[call.query.collection or "agents"]
end

-- ---- Rounds ----------------------------------------------------------------

-- The calls of requests; nil: the store does not tell the tokens. One that is
-- new may have been made just now.
local function admitted(server, requests)
  if not server.storage:written() and not learn(server) then return nil end
  local list, unknown = {}, false
  for i, request in ipairs(requests) do
    list[i] = routes.admitted(server, request)
    unknown = unknown or list[i].status == 401
  end
  if not unknown then return list end
  if not learn(server) then return nil end
  for i, call in ipairs(list) do
    if call.status == 401 then
      list[i] = routes.admitted(server, call.request)
    end
  end
  return list
end

-- The calls that the store has to be asked for.
local function pending(all)
  local list = {}
  for _, call in ipairs(all) do
    if not call.status then list[#list + 1] = call end
  end
  return list
end

-- Has streams begin in tasks of their own. Returns the other calls.
local function without_watches(server, all)
  local list = {}
  for _, call in ipairs(all) do
    if is_watch(call) then
      tasks.spawn(begin_watch, server, call)
    else
      list[#list + 1] = call
    end
  end
  return list
end

-- The answers to requests while not even the tokens are known.
local function refused(server, requests)
  local list = {}
  for i, request in ipairs(requests) do
    list[i] = { request = request }
    refuse(list[i], 503, "peer_lost", server.failed or "the server has ended")
  end
  return list
end

-- Those that a round takes of the requests that wait: LISTS of those that may
-- take long, at most.
local function next_of(server, most)
  local requests, lists = {}, 0
  for i = 1, most do
    local call = server.lines:next_urgent()
    if not call and lists < LISTS then
      call, lists = server.lines:next_long(server.web:room()), lists + 1
    end
    if not call then break end
    requests[i] = call.request
  end
  return requests
end

-- Refuses the calls that wait for the next round, as they would wait in vain.
local function refuse_queue(server)
  repeat
    local requests = next_of(server, MOST)
    for _, call in ipairs(refused(server, requests)) do
      routes.send(server, call)
    end
  until not requests[1]
end

local function round(server, requests)
  local began = loop.now()
  local list = admitted(server, requests)
  if list then
    list = without_watches(server, list)
    handle(server, pending(list))
  end
  list = list or refused(server, requests)
  if not server.web then return end
  server.counts:round(loop.now() - began)
  for _, call in ipairs(list) do routes.answer(server, call) end
  if server.away and AWAY[server.kind] then refuse_queue(server) end
  server.web:wake()
end

local function run(server)
  while server.web and server.lines:has_some(server.web:room()) do
    local requests = next_of(server, MOST)
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

-- Answers who asks of the server itself, by the tokens that the store has told:
-- it may be away.
local function answer_itself(server, call)
  if not call.status and call.route.role and not server.storage:written() then
    refuse(call, 503, "peer_lost", server.failed or "the store says nothing")
  end
  routes.answer(server, routes.run(server, routes.admit(server, call)))
end

--- Reads what has come. Requests that need no store are answered at once.
-- Returns as `Web:run` does, and how many have come.
function M.take(server)
  local requests = {}
  local wait = server.web:run(requests)
  for _, request in ipairs(requests) do
    local call = routes.found(server, request)
    if call.status or not call.scope then
      answer_itself(server, call)
    else
      call.trusted = server.tokens:knows(request)
      routes.line_up(server, call)
    end
  end
  return wait, #requests
end

--- Begins rounds, if there is anything to do. Is anything left that can be done
-- now?
function M.work(server)
  if not server.running and server.lines:has_some(server.web:room()) then
    server.running = true
    tasks.spawn(run, server)
  end
  local fed = watch.feed(server.state, loop.now() + TURN)
  if fed then loop.wait_signal(signals.new(1), 0) end
  return fed
end

-- ---- Time ------------------------------------------------------------------

--- To be called some times in a second: looks at the store, and ends streams
-- whose time is over. It also sends a comment to watchers now and then, but not
-- while the store is away, because a comment says that a watcher knows all.
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
    server.state.stats:list()           -- forgets those that are over
    if not server.away then watch.beat(server.state) end
  end
end

return M
