-- SPDX-License-Identifier: Apache-2.0
--- A future stands for an operation that has been started and will end once.
-- Waiting for it gives the operation's results.
-- @classmod Future

--   owner      the object it belongs to: has `engine`, and is or has a session
--   operation  the core's number of it while pending, or false
--   ended      false; then how many results there are, or -1 if it raises
--   value      while pending whatever must stay alive for the core; then the
--              one result, a table of them, or what it raises
--   finish     function (future, event): settles it with the event's results
--   waiter     the signals that its end triggers (loop.lua)
--   doing      nil, or a description for messages: "running a task"
--   again      nil, or the call to make again in another session
--              (call/again.lua)
--   inner      nil, or the future that this one follows
--
-- A future is made for every asynchronous operation, so it stays this small.
local errors = require "perigee.errors"
local loop = require "perigee.loop"
local native = require "perigee.native"
local signals = require "perigee.signal"

local C = native.C
local await, told, state = loop.await, loop.event, loop.state
local huge = math.huge

local M = {}

local Future = {}
Future.__index = Future
M.Future = Future

--- Has M.finish end a pending future at the event of its operation.
local function expect(engine, operation, future)
  engine.inflight[operation] = future
  engine.flying = engine.flying + 1
end
M.expect = expect

--- Returns a pending future of a started operation; the loop finds it by the
-- operation's number.
function M.start(owner, operation, value, finish)
  local future = setmetatable({ owner = owner, operation = operation,
                                ended = false, value = value, finish = finish,
                                waiter = false }, Future)
  expect(owner.engine, operation, future)
  return future
end

--- Gives a pending future a started operation, whose event will end it.
function M.begin(future, operation, value, finish)
  future.operation, future.value, future.finish = operation, value, finish
  expect(future.owner.engine, operation, future)
end

--- Returns a pending future that no operation of the core ends. doing describes
-- it in messages, if others get to see it.
function M.new(owner, doing)
  return setmetatable({ owner = owner or false, operation = false,
                        ended = false, value = false, finish = false,
                        waiter = false, doing = doing }, Future)
end

-- The inner of a future that nobody can cancel.
local NOBODYS = { cancel = function() end }

--- Returns such a future for many holders, none of whom can cancel it.
function M.shared(owner, doing)
  local future = M.new(owner, doing)
  future.inner = NOBODYS
  return future
end

--- Ends future with results; does nothing if it has ended already.
function M.settle(future, ...)
  if future.ended then return end
  local n = select("#", ...)
  if n == 1 then future.value = (...) else future.value = { ... } end
  future.operation = false
  future.ended = n
  if future.waiter then signals.wake(future) end
end

--- A future that has ended with results.
function M.done(...)
  local future = M.new()
  M.settle(future, ...)
  return future
end

--- The future of all operations that succeeded while they were submitted.
M.SUCCESS = M.done(true)

--- Ends the operation that event tells about.
function M.finish(engine, event)
  local operation = event.operation
  local future = engine.inflight[operation]
  if future then
    engine.inflight[operation] = nil
    engine.flying = engine.flying - 1
    future.finish(future, event)
  end
end

--- Ends future with what a function raised; waiting for it raises that.
function M.raise(future, raised)
  if future.ended then return end
  future.value, future.ended, future.operation = raised, -1, false
  if future.waiter then signals.wake(future) end
end

local function end_as(future, other)
  if other.ended == -1 then return M.raise(future, other.value) end
  M.settle(future, M.results(other))
end

--- Ends future when other ends, and with the same. Cancelling future cancels
-- other.
function M.follow(future, other)
  future.inner = other
  if other.ended then return end_as(future, other) end
  signals.attach(other, signals.new(1, function() end_as(future, other) end))
end

--- Returns the error with which a future has failed, or nil; a handler's own
-- `nil, x` is no failure. Raises what waiting for the future would raise.
function M.failure(future)
  if future.ended == -1 then error(future.value, 0) end
  if future.ended ~= 2 then return nil end
  local results = future.value
  return results[1] == nil and errors.is_error(results[2]) and results[2]
    or nil
end

--- Returns the results of a future that has ended, or raises what it ended
-- with.
function M.results(future)
  local n = future.ended
  if n == 1 then return future.value end
  if n == -1 then error(future.value, 0) end
  return unpack(future.value, 1, n)
end
local results = M.results

--- Returns the error of a future that has ended with `peer_lost`, else nil.
-- Never raises.
function M.lost(future)
  if future.ended ~= 2 then return nil end
  local got, err = future.value[1], future.value[2]
  return got == nil and errors.is_error(err) and err.kind == "peer_lost"
    and err or nil
end

--- Describes what is being done, and to whom.
function M.doing(future)
  local owner, what = future.owner, "an operation with "
  if future.doing then return future.doing end
  if owner and owner.session then owner, what = owner.session, "a call of " end
  if not (owner and owner.text) then return "waiting for a future" end
  return "waiting for " .. what .. owner:text()
end

-- Returns nil and the error of a wait that ended before its future.
function M.unfinished(what)
  if loop.state.stopping then
    return nil, errors.new("closed", what .. ": the loop was stopped")
  end
  return nil, errors.new("timeout", what .. ": the time to wait is over, the "
    .. "operation goes on")
end

-- Called in tail position, so that its caller is that of future:wait.
local function wait(future, seconds)
  if seconds ~= nil and not (type(seconds) == "number" and seconds >= 0) then
    error("future:wait takes seconds, a number of at least 0, or nothing", 2)
  end
  local deadline = huge
  if seconds then deadline = loop.deadline(seconds) end
  if loop.wait(future, deadline) then return results(future) end
  return M.unfinished(M.doing(future))
end

-- Waits for an operation of the core without a limit. Most end soon, so the
-- only operation in flight is awaited by itself; if there are several, the loop
-- finds many ends by one poll. The event may not end the future: a large reply
-- still has to be decoded, and a call may be made again.
local function short(future)
  local engine = future.owner.engine
  if engine.flying == 1 and not state.pinned and engine.handle
    and await(engine, future.operation) then
    M.finish(engine, told)
    if future.ended then return results(future) end
  end
  return wait(future)
end

--- Waits for the end of the operation and returns its results, or nil and an
-- error. Waiting again returns the same.
--
-- There are two timeouts. The operation's own timeout ends the operation. This
-- one only limits the waiting: if it is over first, the operation goes on, and
-- `Future:done` is still false.
-- @function Future:wait
-- @tparam[opt] number seconds default: as long as the operation takes
-- @return the results; or nil and an error
-- @errors `timeout`: the time is over, the operation goes on; else the
--   operation's
-- @waits yes
-- @usage
-- local future = calc.async:slow(1)
-- print(select(2, future:wait(0)).kind, future:done())      --> timeout false
-- print(future:wait())                                         --> done
function Future:wait(seconds)
  if self.ended == 1 then return self.value end
  if self.ended then return results(self) end
  if not seconds and self.operation then return short(self) end
  return wait(self, seconds)
end

--- Tells whether the operation has ended, with whatever results.
-- @function Future:done
-- @treturn boolean
-- @waits no
-- @usage
-- local future = calc.async:add(1, 2)
-- future:wait()
-- print(future:done())                                         --> true
function Future:done()
  return self.ended and true or false
end

--- Cancels the operation, which ends once: with `cancelled`, or with its
-- results if they came first. The handler of a cancelled call sees
-- `Context:cancelled`. Does nothing if the operation has ended, or if the
-- future only tells of an end (`Session:ended`).
-- @function Future:cancel
-- @waits no
-- @usage
-- local future = calc.async:slow(5)
-- future:cancel()
-- print(select(2, future:wait()).kind)                         --> cancelled
function Future:cancel()
  if self.ended then return end
  local operation, inner = self.operation, self.inner
  if operation then
    local handle = self.owner.engine.handle
    if handle then C.perigee_cancel(handle, operation) end
  elseif inner then
    inner:cancel()
  else
    M.settle(self, nil, errors.new("cancelled", M.doing(self)
      .. ": it was cancelled"))
  end
end

--- Tells whether x is a future, or something that can be waited for as one.
function M.is_future(x)
  return type(x) == "table" and (getmetatable(x) == Future
    or x.wait == Future.wait)
end

return M
