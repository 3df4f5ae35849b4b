-- SPDX-License-Identifier: Apache-2.0
--- Calls of proxies that outlive their session: when the peer is there again,
-- such a proxy finds it by its link, asks what the service is like now, and the
-- call goes on.
--
--   the call            what becomes of it
--   is made while the   waits for the peer `reconnect` seconds of its timeout,
--   peer is away        or, if its method is idempotent, all of it
--   was under way,      is made again, within its timeout
--   idempotent
--   was under way,      ends in peer_lost: its handler may have run
--   any other
--
-- A call that goes on does so by a proxy of its own, which lasts as long as the
-- call: its binding has besides what bindings have
--
--   root       the binding of the program's proxy
--   deadline   when the call's timeout is over, patience: until when it waits
--              for the peer (nanoseconds of the loop's clock)
--   sent       may a handler have run for it already?
local check = require "perigee.check"
local errors = require "perigee.errors"
local futures = require "perigee.future"
local links = require "perigee.link"
local loop = require "perigee.loop"
local native = require "perigee.native"
local outcome = require "perigee.call.outcome"
local signals = require "perigee.signal"
local tasks = require "perigee.task"
local traces = require "perigee.trace"

local huge = math.huge
local min = math.min
local now, left, settle = loop.now, loop.left, futures.settle

--- The proxy's: fit(class, session, timeout) has class fit the peer's service
-- (true, or nil and an error), unfit(class, version, session) is the error of a
-- version that is not wanted, no_method(class, name) of a missing method.
local M = { fit = false, unfit = false, no_method = false }

M.RESTARTED = "%s is in another life than the epoch that was asked for"

local PAUSE = 25e6                      -- before a service is asked for again
-- What a worker that is starting may say.
local STARTING = { peer_lost = true, no_service = true }

-- ---- Waiting for the peer --------------------------------------------------

-- May a call that err was the end of go on? The session's end, if it is that,
-- may not have been told yet.
local function may(binding, err)
  if not binding.link or not binding.engine.handle then return false end
  local session = binding.session
  return not session.closed and (not session.handle or err.kind == "peer_lost")
end

-- The error of a call by binding that err was the end of, since why.
local function failed(binding, err, why, deadline, sent)
  if not why then return err end
  local kind = why.kind
  if not binding.engine.handle then
    kind = "closed"
  elseif links.PASSING[kind] then
    kind = now() < deadline and err.kind or "timeout"
  end
  local tries, after = binding.link.tries, ""
  if tries > 0 then
    after = (", after %d attempt%s"):format(tries, tries > 1 and "s" or "")
  end
  return errors.new(kind, ("%s; then%s: %s"):format(err.message, after,
                                                    why.message), sent)
end

-- A session in which the peer serves what class says; or nil and an error, or
-- false if call, a future, has ended meanwhile.
local function rejoin(binding, patience, deadline, call)
  local link, class = binding.link, binding.class
  while true do
    local session, why = link:reach(patience, deadline, call)
    if not session then return nil, why end
    if call and call.ended then return nil, false end
    local fine
    fine, why = M.fit(class, session, left(deadline))
    if fine then return session, M.unfit(class, binding.version, session) end
    if not STARTING[why.kind] or now() >= patience then return nil, why end
    loop.wait_signal(signals.new(1), min(now() + PAUSE, patience))
  end
end

local function until_when(binding, method, began)
  local time = now()
  local deadline = binding.deadline
  if not deadline then
    deadline = huge
    if binding.timeout < 9e9 then
      deadline = (began or time) + binding.timeout * 1e9
    end
  end
  if method.idempotent then return deadline, deadline end
  local patience = binding.patience or time + binding.reconnect * 1e9
  return min(patience, deadline), deadline
end

local function going_on(root, session, patience, deadline, sent)
  local binding = {
    session = session, engine = root.engine, message = native.message_t(),
    class = root.class, link = root.link, version = root.version,
    reconnect = root.reconnect, timeout = root.timeout, into = root.into,
    reader = root.reader, capacity = root.capacity, request = root.request,
    sliced = root.into, root = root, deadline = deadline, patience = patience,
    sent = sent, trace = root.trace,
  }
  binding.message.timeout = check.nanoseconds(left(deadline))
  return { binding }
end

--- What a call of method by proxy does that err was the end of: waits for the
-- peer, and gives the function and the proxy to go on with; or nil and the
-- error to end with. began: when the call was submitted, false if it was not;
-- call: its future, if others have it.
function M.renew(proxy, method, err, began, call)
  local binding = proxy[1]
  if not may(binding, err) then return nil, err end
  if binding.session.handle then
    loop.refresh(binding.engine)
    if not may(binding, err) or binding.session.handle then return nil, err end
  end
  local root = binding.root or binding
  local sent = binding.sent or began and err.sent ~= false or false
  local patience, deadline = until_when(binding, method, began)
  local session, why = rejoin(binding, patience, deadline, call)
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

--- In a task: goes on with future, that of a call that err was the end of. call
-- has its proxy, when it began (false: it was never tried), and its arguments.
local function go_on(future, call, method, err)
  local proxy, began = call.proxy, call.began
  if future.ended then return end
  loop.state.current.trace = call.trace
  local on, other = M.renew(proxy, method, err, began, future)
  if future.ended then return end
  if not on then return settle(future, nil, other) end
  local fine, inner = pcall(other[1].class.async.__index[method.name], other,
                            unpack(call, 1, call.n))
  if not fine then return futures.raise(future, inner) end
  futures.follow(future, inner)
end
M.go_on = go_on

--- The future of a call that could not be submitted, since err. What is wrong
-- with its arguments is then raised by who waits for it.
function M.later(proxy, method, err, ...)
  if not may(proxy[1], err) then return futures.done(nil, err) end
  local future = futures.new(proxy[1], outcome.doing(proxy[1], method))
  tasks.drive(future, go_on, { proxy = proxy, began = false,
                               trace = traces.here(), n = select("#", ...),
                               ... }, method, err)
  return future
end

--- Has the call of future, an idempotent one that has been submitted, be made
-- again if the peer is lost meanwhile. Returns future.
function M.guard(future, proxy, ...)
  future.again = { proxy = proxy, began = now(), n = select("#", ...),
                   trace = traces.here(), ... }
  return future
end

--- Goes on with a future that was guarded, and whose peer is lost.
function M.resume(future, method, told)
  local call, err = future.again, outcome.failure(future.owner, method, told)
  future.again, future.operation = nil, false
  future.doing = outcome.doing(future.owner, method)
  if not may(future.owner, err) then return settle(future, nil, err) end
  tasks.drive(future, go_on, call, method, err)
end

return M
