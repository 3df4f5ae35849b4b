-- SPDX-License-Identifier: Apache-2.0
--- A future stands for an operation that has been started and will end once.
-- Waiting for it gives the operation's results.
-- @classmod Future

-- A future is made for every asynchronous operation. It is an array, which
-- LuaJIT makes and frees in half the time of a table with six fields. Code that
-- runs in each call uses these slots; other code may use names (future.ended):
--
--   ENDED      false; then how many results there are, or -1 if it raises
--   VALUE      while pending whatever must stay alive for the core; then the
--              one result, a table of them, or what it raises
--   OPERATION  the core's number of it while pending, or false
--   WAITER     the signals that its end triggers (signal.lua), or false
--   OWNER      the object it belongs to: has `engine`, and is or has a session
--   FINISH     function (future, event): settles it with the event's results
--
-- Some have fields beside these:
--
--   doing      a description for messages: "running a task"
--   again      the call to make again in another session (call/again.lua)
--   inner      the future that this one follows
local check = require "perigee.runtime.check"
local errors = require "perigee.runtime.errors"
local loop = require "perigee.runtime.loop"
local native = require "perigee.native"
local signals = require "perigee.runtime.signal"

local C = native.C
local await, told, state = loop.await, loop.event, loop.state
local huge = math.huge
local setmetatable, rawget, rawset = setmetatable, rawget, rawset
local select, unpack, wake = select, unpack, signals.wake

local M = {}

local ENDED, WAITER = signals.ENDED, signals.WAITER
local VALUE, OPERATION, OWNER, FINISH = 2, 3, 5, 6
M.ENDED, M.VALUE, M.OPERATION, M.OWNER = ENDED, VALUE, OPERATION, OWNER
-- Of a prepared call (call/prepared.lua): the proxy, the arguments, and the
-- function that makes the call.
M.PROXY, M.ARGUMENTS, M.POST = 7, 8, 9
local SLOTS = { ended = ENDED, value = VALUE, operation = OPERATION,
                waiter = WAITER, owner = OWNER, finish = FINISH }

--- The metatable of futures that have these methods, and print as what.
function M.metatable(methods, what)
  return {
    __index = function(future, key)
      local method = methods[key]
      if method then return method end
      local slot = SLOTS[key]
      return slot and rawget(future, slot)
    end,
    __newindex = function(future, key, value)
      rawset(future, SLOTS[key] or key, value)
    end,
    __tostring = function(future)
      return ("%s (%s: %s)"):format(what, M.doing(future),
                                    future.ended and "ended" or "pending")
    end,
  }
end

local Future = {}
local META = M.metatable(Future, "future")
M.Future = Future

--- Has M.finish end a pending future at the event of its operation.
local function expect(engine, operation, future)
  engine.inflight[operation] = future
  engine.flying = engine.flying + 1
end
M.expect = expect

-- Makes a future that has ended the pending one of a started operation. What
-- the one before has left beside the slots would be taken for this one's.
local function begun_anew(future, operation, value, finish)
  future[ENDED], future[VALUE], future[OPERATION] = false, value, operation
  future[FINISH] = finish
  if rawget(future, "trace") then rawset(future, "trace", nil) end
  if rawget(future, "again") then rawset(future, "again", nil) end
  if rawget(future, "inner") then rawset(future, "inner", nil) end
  return future
end

--- Returns a pending future of a started operation; the loop finds it by the
-- operation's number. engine: the owner's, if that is known. ended: one of the
-- same owner that becomes it, in place of a new one.
function M.start(owner, operation, value, finish, engine, ended)
  local future = ended and begun_anew(ended, operation, value, finish)
    or setmetatable({ false, value, operation, false, owner, finish }, META)
  expect(engine or owner.engine, operation, future)
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
  local future = setmetatable({ false, false, false, false, owner or false,
                                false }, META)
  if doing then future.doing = doing end
  return future
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
  if future[ENDED] then return end
  local n = select("#", ...)
  if n == 1 then future[VALUE] = (...) else future[VALUE] = { ... } end
  future[OPERATION] = false
  future[ENDED] = n
  if future[WAITER] then wake(future) end
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
    future[FINISH](future, event)
  end
end

--- Ends future with what a function raised; waiting for it raises that.
function M.raise(future, raised)
  if future.ended then return end
  future.value, future.ended, future.operation = raised, -1, false
  if future.waiter then signals.wake(future) end
end

--- Ends future with what an xpcall with errors.marked has caught. Raises an
-- interrupt again.
function M.raise_caught(future, raised)
  if not errors.is_marked(raised) then return M.raise(future, raised) end
  M.settle(future, nil, errors.new("closed", M.doing(future)
    .. ": it was interrupted"))
  errors.raise(raised)
end

--- Ends future with what such an xpcall returned: results, or what was raised.
function M.settle_by(future, fine, ...)
  if fine then return M.settle(future, ...) end
  M.raise_caught(future, (...))
end

local function end_as(future, other)
  if other.ended == -1 then return M.raise(future, other.value) end
  M.settle(future, M.results(other))
end

--- Ends future when other ends, and with the same. Cancelling future cancels
-- other.
function M.follow(future, other)
  future.inner = other
  signals.attach(other, signals.new(1, function() end_as(future, other) end))
end

--- Begins an ended future anew. No operation of the core ends it.
function M.anew(future)
  return begun_anew(future, false, false, false)
end

--- Begins an ended future anew: it ends as other, which it follows.
function M.renew(future, other)
  M.anew(future)
  M.follow(future, other)
  return future
end

--- Returns a new future of a pending one's operation, which that one follows
-- from now on. It is for what goes on after the operation's event: when that
-- comes to its end, a prepared call may have been cancelled and posted again.
function M.apart(future)
  local own = setmetatable({ false, future[VALUE], future[OPERATION], false,
                             future[OWNER], future[FINISH] }, META)
  own.again, own.trace = future.again, future.trace
  future[OPERATION] = false
  M.follow(future, own)
  return own
end

--- Returns the error with which a future has failed, or nil; a handler's own
-- `nil, x` is no failure unless x is an error. Raises what waiting for the
-- future would raise.
function M.failure(future)
  local n, results = future[ENDED], future[VALUE]
  if n == -1 then error(results, 0) end
  if n ~= 2 then return nil end
  return results[1] == nil and errors.is_error(results[2]) and results[2]
    or nil
end

--- Tells whether a future has failed, or waiting for it would raise.
function M.failed(future)
  return future.ended == -1 or M.failure(future) ~= nil
end

--- Returns the results of a future that has ended, or raises what it ended
-- with.
function M.results(future)
  local n = future[ENDED]
  if n == 1 then return future[VALUE] end
  if n == -1 then error(future[VALUE], 0) end
  return unpack(future[VALUE], 1, n)
end
local results = M.results

--- Returns the error of a future that has ended with `peer_lost`, else nil. One
-- that a handler returned is of another peer. Never raises.
function M.lost(future)
  if future.ended ~= 2 then return nil end
  local got, err = future.value[1], future.value[2]
  return got == nil and errors.is_error(err) and err.kind == "peer_lost"
    and not err.remote and err or nil
end

--- Describes what is being done, and to whom.
function M.doing(future)
  local owner, what = future.owner, "an operation with "
  if future.doing then return future.doing end
  if owner and owner.session then owner, what = owner.session, "a call of " end
  if not (owner and owner.text) then return "waiting for a future" end
  return "waiting for " .. what .. owner:text()
end

--- By the finish of operations that a program may well leave pending: receives.
M.may_stay = {}

--- Says of a future that nobody will ever wait for it.
function M.leave(future) future.left = true end

--- Returns what engine's operations are doing that are pending and that nobody
-- waits for: a list of texts.
function M.forgotten(engine)
  local list = {}
  for _, future in pairs(engine.inflight) do
    if not (future.left or M.may_stay[future.finish]
            or signals.is_awaited(future)) then
      list[#list + 1] = M.doing(future)
    end
  end
  return list
end
jit.off(M.forgotten)

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
  local engine = future[OWNER].engine
  if engine.flying == 1 and not state.pinned and engine.handle
    and await(engine, future[OPERATION]) then
    M.finish(engine, told)
    if future[ENDED] then return results(future) end
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
  if type(self) ~= "table" then check.dotted("future", "wait", 2) end
  local ended = self[ENDED]
  if ended == 1 then return self[VALUE] end
  if ended then return results(self) end
  if ended == nil then check.dotted("future", "wait", 2) end
  if not seconds and self[OPERATION] then return short(self) end
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
  if type(self) ~= "table" or self[ENDED] == nil then
    check.dotted("future", "done", 2)
  end
  return self[ENDED] and true or false
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
  if type(self) ~= "table" or self[ENDED] == nil then
    check.dotted("future", "cancel", 2)
  end
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
  return type(x) == "table" and (getmetatable(x) == META
    or x.wait == Future.wait)
end

return M
