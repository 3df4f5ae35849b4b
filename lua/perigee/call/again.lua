-- SPDX-License-Identifier: Apache-2.0
--- Calls of proxies that outlive their session. The proxy finds the peer by its
-- link when the peer is there again, and asks for the service's description.
-- Then the call goes on.
--
--   the call            what becomes of it
--   is made while the   waits for the peer `reconnect` seconds of its timeout,
--   peer is away        or, if its method is idempotent, all of it
--   was pending,        is made again, within its timeout
--   idempotent
--   was pending,        ends with peer_lost: its handler may have run
--   not idempotent
--   is not taken, as    waits for another peer of that name, all of its timeout
--   the peer drains     (but not at all if reconnect is 0)
--
-- A call goes on by a proxy of its own, which lasts as long as the call. The
-- binding of that proxy has these fields in addition:
--
--   root       the binding of the program's proxy
--   deadline   when the call's timeout is over (ns of the loop's clock)
--   patience   until when it waits for the peer (by the same clock)
--   sent       true if a handler may have run for it already
local bindings = require "perigee.call.binding"
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local futures = require "perigee.runtime.future"
local links = require "perigee.link"
local loop = require "perigee.runtime.loop"
local outcome = require "perigee.call.outcome"
local signals = require "perigee.runtime.signal"
local tasks = require "perigee.runtime.task"
local traces = require "perigee.serving.trace"

local huge = math.huge
local max, min = math.max, math.min
local now, left, settle = loop.now, loop.left, futures.settle
local start, note, ENGINE = futures.start, outcome.note, bindings.ENGINE

--- Set by proxy.lua: fit(class, session, timeout) updates class to the peer's
-- service (returns true, or nil and an error); unfit(class, version, session)
-- returns the error of a version that is not wanted, or nil; no_method(class,
-- name) returns the error of a missing method.
local M = { fit = false, unfit = false, no_method = false }

M.RESTARTED = "%s is in another life than the epoch that was asked for"

M.OLDER = "%s is not known to have its name since the term that was asked for"

local PAUSE = 25e6                      -- ns before a service is asked again
-- Errors that come from a worker that is still starting.
local STARTING = { peer_lost = true, no_service = true }

--- Has session's peer taken its name before the term that binding asks for?
function M.is_older(binding, session)
  return binding.term and (session.term or 0) < binding.term or false
end

-- ---- Waiting for the peer --------------------------------------------------

-- Tells whether a call that ended with err may go on: its session is over, or
-- the peer drains. Lua may not have been told yet of a session's end, if err is
-- one. The binding may be in another session by now, if a call that ended
-- before this one has gone on.
local function may(binding, session, err)
  if not binding.link or not binding.engine.handle then return false end
  return not session.closed and (not session.handle or err.kind == "peer_lost"
                                 or outcome.is_drained(err))
end

-- The kind of the error of a call that ended with err and could not go on
-- because of why.
local function kind_of(binding, err, why, deadline)
  if not binding.engine.handle then return "closed" end
  if not links.PASSING[why.kind] then return why.kind end
  if now() >= deadline then return "timeout" end
  local live = binding.link:live()
  return live and M.is_older(binding.root or binding, live) and "stale"
    or err.kind
end

-- Returns the error of such a call.
local function failed(binding, err, why, deadline, sent)
  if not why then return err end
  local kind = kind_of(binding, err, why, deadline)
  local tries, after = binding.link.tries, ""
  if tries > 0 then
    after = (", after %d attempt%s"):format(tries, tries > 1 and "s" or "")
  end
  local told = errors.new(kind, ("%s; then%s: %s"):format(err.message, after,
                                                          why.message), sent)
  told.code = kind == err.kind and err.code or nil
  return told
end

-- Waits for a session in which the peer has the service of class. Returns it,
-- with the error of a version that is not wanted if there is one; or nil and an
-- error, or nil and false if call, a future, has ended meanwhile. A peer that
-- is lost before it has told of its service was there: the patience with the
-- next one begins anew.
local function rejoin(binding, patience, deadline, call)
  local link, class = binding.link, binding.class
  local term = (binding.root or binding).term
  while true do
    local session, why = link:reach(patience, deadline, call, term)
    if not session then return nil, why end
    if call and call.ended then return nil, false end
    local fine
    fine, why = M.fit(class, session, left(deadline))
    if fine then return session, M.unfit(class, binding.version, session) end
    if not STARTING[why.kind] or now() >= patience then return nil, why end
    if why.kind == "peer_lost" then
      patience = max(patience, min(now() + binding.reconnect * 1e9, deadline))
    end
    loop.wait_signal(signals.new(1), min(now() + PAUSE, patience))
  end
end

-- Returns until when a call waits for its peer, and when its timeout is over:
-- the binding's deadline, or due, or as counted from when it began. A peer that
-- drains makes room for another, which is waited for as long as the call may
-- take; but if reconnect is 0, nobody is.
local function until_when(binding, method, began, due, drains)
  local time = now()
  local deadline = binding.deadline or due
  if not deadline then
    deadline = huge
    if binding.timeout < 9e9 then
      deadline = (began or time) + binding.timeout * 1e9
    end
  end
  if method.idempotent or drains and binding.reconnect > 0 then
    return deadline, deadline
  end
  local patience = binding.patience or time + binding.reconnect * 1e9
  return min(patience, deadline), deadline
end

local function going_on(root, session, patience, deadline, sent)
  local binding = bindings.new(session, {
    class = root.class, link = root.link, version = root.version,
    reconnect = root.reconnect, timeout = root.timeout, into = root.into,
    landing = root.landing, reader = root.reader, capacity = root.capacity,
    request = root.request, trace = root.trace,
    root = root, deadline = deadline, patience = patience, sent = sent,
  })
  binding.message.timeout = check.nanoseconds(left(deadline))
  return { binding }
end

--- Goes on with a call of method by proxy that ended with err. Waits for the
-- peer, and returns the function and the proxy to go on with; or nil and the
-- error to end with. future: the call's, if others have it. call has
--
--   session   the one in which the call was made, or could not be
--   began     when it was submitted, false if that is not known or it was not
--   due       when its timeout is over, if its end has told that
function M.renew(proxy, method, err, call, future)
  local binding, session, began = proxy[1], call.session, call.began
  if not may(binding, session, err) then return nil, err end
  if outcome.is_drained(err) then
    binding.link:avoid(session)
  elseif session.handle then
    loop.refresh(binding.engine)
    if session.handle or not may(binding, session, err) then return nil, err end
  end
  local root = binding.root or binding
  local sent = binding.sent or began and err.sent ~= false or false
  local patience, deadline = until_when(binding, method, began, call.due,
                                        outcome.is_drained(err))
  local why
  session, why = rejoin(binding, patience, deadline, future)
  if not root.link then return nil, outcome.gone(root, method) end
  if session and root.epoch and root.epoch ~= session.epoch then
    why = errors.new("stale", M.RESTARTED:format(session:text()), sent)
  end
  if session and not why then
    root.session = session
    if not root.class.methods[method.name] then
      why = M.no_method(root.class, method.name)
      why.sent = sent
      return nil, why
    end
    return root.class.sync.__index[method.name],
      going_on(root, session, patience, deadline, sent)
  end
  return nil, failed(binding, err, why, deadline, sent)
end

-- ---- Futures ---------------------------------------------------------------

--- Runs in a task: goes on with a call that ended with err, and ends its
-- future. call has what renew needs, the proxy, the trace, and its arguments.
local function go_on(future, call, method, err)
  if future.ended then return end
  loop.state.current.trace = call.trace
  local on, other = M.renew(call.proxy, method, err, call, future)
  if future.ended then return end
  if not on then return settle(future, nil, other) end
  local fine, inner = xpcall(other[1].class.async.__index[method.name],
                             errors.marked, other, unpack(call, 1, call.n))
  if not fine then return futures.raise_caught(future, inner) end
  futures.follow(future, inner)
end
M.go_on = go_on

--- Returns the future of a call that could not be submitted because of err.
-- Misuse in its arguments is raised by waiting for the future.
function M.later(proxy, method, err, ...)
  local binding = proxy[1]
  local session = binding.session
  if not may(binding, session, err) then return futures.done(nil, err) end
  local future = futures.new(binding, outcome.doing(binding, method))
  tasks.drive(future, go_on, { proxy = proxy, session = session, began = false,
                               trace = traces.here(), n = select("#", ...),
                               ... }, method, err)
  return future
end

--- Has the submitted call of future, an idempotent one, made again if the peer
-- is lost meanwhile. Returns future.
function M.guard(future, proxy, ...)
  future.again = { proxy = proxy, began = now(), n = select("#", ...),
                   trace = traces.here(), ... }
  return future
end

--- Returns the future of a call that was submitted, which goes on as its method
-- may. ended: nil, or the future of the same call before, which becomes this
-- one's. After kept come the call's arguments.
function M.started(method, finish, ended, proxy, operation, kept, ...)
  local binding = proxy[1]
  local future = start(binding, operation, kept, finish, binding[ENGINE], ended)
  if method.idempotent then return M.guard(future, proxy, ...) end
  note(future)
  return future
end

-- The call of an unguarded future, which its peer has refused. Its arguments
-- are those that were sent.
local function refused(future, arguments)
  local call = arguments(future.value)
  call.proxy, call.began = { future.owner }, false
  call.trace = future.trace or false
  return call
end

--- Goes on with the call of a future whose event tells that the peer is lost
-- (if the call is guarded), or has refused it as it drains. arguments(value)
-- returns its arguments, of what the future keeps. False: it does not go on.
function M.resume(future, method, told, arguments)
  local binding, call = future.owner, future.again
  local err = outcome.failure(binding, method, told)
  if not call and not outcome.is_drained(err) then return false end
  call = call or refused(future, arguments)
  call.session = binding.engine.sessions[told.session] or binding.session
  call.due = outcome.deadline(told)
  future.again, future.operation, future.value = nil, false, false
  future.doing = outcome.doing(binding, method)
  if may(binding, call.session, err) then
    tasks.drive(future, go_on, call, method, err)
  else
    settle(future, nil, err)
  end
  return true
end

return M
